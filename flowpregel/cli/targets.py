"""The flow, the store, the checkpoint and the run that the arguments of a command
name.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flowpregel._core.records import Address, Saved
from flowpregel._lmdb.codec import Codec
from flowpregel._urls import is_url
from flowpregel.checkpoint.base import FLOW, FOLDER
from flowpregel.checkpoint.work import Work, work_of
from flowpregel.cli.console import is_asked
from flowpregel.errors import ConfigurationError, StoreError
from flowpregel.watching.inert import InertCodec

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.checkpoint.lmdb import LMDBSaver
    from flowpregel.checkpoint.postgres import PostgresSaver
    from flowpregel.pregel.pregel import Pregel

KEY_FILE = "FLOWPREGEL_ENCRYPTION_KEY_FILE"
_STEP = re.compile(r"-?\d{1,7}")


# ---------------------------------------------------------------- flows


def load_flow(name: str, folder: str = "") -> Pregel:
    """Import the flow named ``package.module:flow`` or ``path/to/file.py:flow``.

    Args:
        name: Its name: of the variable, or of its function.
        folder: Where its module is, if that is known; otherwise the working folder.

    Raises:
        ConfigurationError: There is none; the message lists those that exist.
    """
    from flowpregel.pregel.naming import folder_of, labels_of  # noqa: PLC0415 - as above
    from flowpregel.pregel.pregel import Pregel  # noqa: PLC0415 - keeps --help fast

    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise ConfigurationError(
            f"{name!r} names no flow: write MODULE:FLOW, such as jobs.census:count, or "
            "FILE.py:FLOW"
        )
    module = _module(where, folder)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    flows = {
        key: value for key, value in vars(module).items() if isinstance(value, Pregel)
    }
    full = f"{module.__name__}:{attribute}"
    if not isinstance(found, Pregel):
        owners = [each for each in flows.values() if each.once and each.once.owns(full)]
        found = owners[0] if owners else found
    if isinstance(found, Pregel):
        if found.once is not None:
            return found
        labels = labels_of(full, folder_of(module.__name__, module.__file__))
        return found.with_config(metadata=labels)
    kind = type(found).__name__
    if found is not None and hasattr(found, "compile"):
        raise ConfigurationError(
            f"{name!r} is a {kind} that is not compiled: name what .compile() returns"
        )
    what = "is not there" if found is None else f"is a {kind}, not a flow"
    raise ConfigurationError(
        f"{name!r} {what}; the flows of {where} are: {', '.join(flows) or '(none)'}"
    )


def _module(where: str, folder: str = "") -> ModuleType:
    """Import a module, or raise `ConfigurationError`.

    Args:
        where: Its name or its file.
        folder: Where it is to be, if it is named by its name and that is known.
    """
    name, place = where, folder if os.path.isdir(folder) else os.getcwd()
    if where.endswith(".py") or os.sep in where:
        path = os.path.realpath(where)
        if not os.path.isfile(path):
            raise ConfigurationError(f"there is no file {where}")
        place, file = os.path.split(path)
        name = file.removesuffix(".py")
    if place not in sys.path:
        sys.path.insert(0, place)  # worker processes get the same path
    try:
        module = importlib.import_module(name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        why = (
            "there is no such module" if missing else f"{type(error).__name__}: {error}"
        )
        raise ConfigurationError(f"{where} cannot be imported: {why}") from error
    top = name.partition(".")[0]
    meant = PathFinder.find_spec(top, [place])
    loaded = getattr(sys.modules[top], "__file__", None) or "Python itself"
    if (
        meant
        and meant.origin
        and os.path.realpath(meant.origin) != os.path.realpath(loaded)
    ):
        raise ConfigurationError(
            f"{meant.origin} cannot be imported: there is a module {top!r} already, of "
            f"{loaded}"
        )
    return module


@contextmanager
def flow_on(flow: Pregel, store: str | None) -> Iterator[Pregel]:
    """Give a flow on the store at *store*, or on its own if that is None."""
    if store is None:
        yield flow
        return
    with opened(store) as saver:
        yield flow.copy({"checkpointer": saver})


def flow_of(thread_id: str, flow: str | None, store: str | None) -> Pregel:
    """Import a thread's flow: *flow*, or the one that its run recorded.

    Raises:
        ConfigurationError: Its run records none: it is of a graph that no module has.
    """
    if flow is not None:
        if store is not None:
            existing(store)
        return load_flow(flow)
    with reading(store) as saver:
        saved = newest(saver, thread_id)
    # Closed again: the program may open the same store to write to it.
    return recorded_flow(saved)


def recorded_flow(saved: Saved) -> Pregel:
    """Import the flow that a run recorded; raises as `flow_of` does."""
    metadata = saved.checkpoint.metadata
    found = metadata.get(FLOW)
    if not isinstance(found, str):
        raise ConfigurationError(
            f"thread {saved.address.thread_id!r} does not say which flow it is of: "
            "pass --flow MODULE:FLOW"
        )
    return load_flow(found, str(metadata.get(FOLDER, "")))


# ---------------------------------------------------------------- stores


def reading(path: str | None, *, flow: bool = False) -> LMDBSaver | PostgresSaver:
    """Open a store that exists, to look at it; nothing in it is made or changed.

    Args:
        path: The store's folder, or the URL of its database.
        flow: The user's flow is to read it: values are decoded with their classes.
            Otherwise nothing of the user's is imported or run.

    Raises:
        ConfigurationError: No path was given.
        StoreError: There is no store, or it cannot be opened.
    """
    real, codec = existing(path), None if flow else InertCodec()
    return opened(real, readonly=True, lock=os.access(real, os.W_OK), codec=codec)


def writing(path: str | None, codec: Codec | None = None) -> LMDBSaver | PostgresSaver:
    """Open a store that exists, to change it; raises as `reading` does."""
    return opened(existing(path), codec=codec)


def opened(path: str, *, lock: bool = True, **asked: Any) -> LMDBSaver | PostgresSaver:
    """Open a store, or make it, with the key in the file that a variable names."""
    from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions  # noqa: PLC0415 - as above

    file = os.environ.get(KEY_FILE)
    key = key_in(file) if file else None
    options = StoreOptions(encryption_key=key, trust=is_asked("--trust") or None)
    if is_url(path):
        from flowpregel.checkpoint.postgres import PostgresSaver  # noqa: PLC0415 - an extra

        return PostgresSaver(path, options=options, **asked)
    return LMDBSaver(path, options=options, lock=lock, **asked)


def key_in(file: str) -> bytes:
    """Return the encryption key that a file holds.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        with open(file, "rb") as source:
            return source.read()
    except OSError as error:
        raise ConfigurationError(
            f"the key file {file} cannot be read: {error.strerror}"
        ) from error


def existing(path: str | None) -> str:
    """Return the real path of a store that exists; of a database, its URL."""
    if not path:
        raise ConfigurationError(
            "which store? pass --store PATH, or set FLOWPREGEL_STORE"
        )
    if is_url(path):
        return path
    from flowpregel._lmdb import files  # noqa: PLC0415 - loads LMDB

    real = files.real_path(path)
    if not files.exists(real):
        raise StoreError(f"there is no store at {real}")
    return real


# ---------------------------------------------------------------- checkpoints


def newest(
    saver: DurableSaver, thread_id: str, checkpoint_id: str | None = None
) -> Saved:
    """Return a thread's newest checkpoint, or the one of an id that it has.

    Raises:
        ConfigurationError: The store has no such thread.
    """
    saved = saver.load(Address(thread_id, "", checkpoint_id))
    if saved is None:
        raise ConfigurationError(
            f"the store at {saver.path} has no thread {thread_id!r}; `flowpregel ls` "
            "lists them"
        )
    return saved


def find_checkpoint(saver: DurableSaver, thread_id: str, name: str | None) -> Saved:
    """Return a checkpoint of a thread: the newest if *name* is None.

    Args:
        saver: The open store.
        thread_id: Whose.
        name: A step (``3``; the newest checkpoint of that step), an id, or the
            beginning of an id that no other has.

    Raises:
        ConfigurationError: There is none, or more than one.
    """
    latest = newest(saver, thread_id)
    if name is None:
        return latest
    every = [each.checkpoint for each in saver.outline(Address(thread_id))]
    if _STEP.fullmatch(name):
        found = [each.id for each in every if each.step == int(name)][:1]
    else:
        found = [each.id for each in every if each.id.startswith(name)]
    if not found:
        raise ConfigurationError(
            f"thread {thread_id!r} has no checkpoint {name!r}; `flowpregel history` "
            "lists them"
        )
    if len(found) > 1:
        raise ConfigurationError(
            f"several checkpoints of thread {thread_id!r} begin with {name!r}; give "
            "more of the id"
        )
    return newest(saver, thread_id, found[0])


def work_of_last_run(
    saver: DurableSaver, thread_id: str, limit: int | None = None
) -> list[Work]:
    """Return the tasks of a thread's last run, of the newest *limit* supersteps, in
    order.
    """
    from flowpregel.pregel.runs import last_run  # noqa: PLC0415 - keeps --help fast

    history = last_run(saver, Address(thread_id), limit)
    return [each for saved in history for each in work_of(saved)]
