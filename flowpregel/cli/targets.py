"""The flow, store, checkpoint and run that the arguments of a command name."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flowpregel._core.records import Address, Saved
from flowpregel._inspection.inert import InertCodec
from flowpregel._stores import store_plugin_at
from flowpregel.checkpoint.base import FLOW, FOLDER
from flowpregel.cli.console import has_flag
from flowpregel.errors import ConfigurationError, StoreError
from flowpregel.storage.codec import Codec

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.pregel.pregel import Pregel

KEY_FILE = "FLOWPREGEL_ENCRYPTION_KEY_FILE"
_STEP = re.compile(r"-?\d{1,7}")


# ---------------------------------------------------------------- flows


def load_flow(name: str, folder: str = "") -> Pregel:
    """Import the flow named ``package.module:flow`` or ``path/to/file.py:flow``.

    Args:
        name: The module and the name of the variable, or of the flow's function.
        folder: The folder of the module, if it is known; otherwise the working folder.

    Raises:
        ConfigurationError: There is no such flow; the message lists those that exist.
    """
    from flowpregel.pregel.naming import flow_labels, folder_of  # noqa: PLC0415
    from flowpregel.pregel.pregel import Pregel  # noqa: PLC0415 - keeps --help fast

    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        raise ConfigurationError(
            f"{name!r} names no flow: write MODULE:FLOW, such as jobs.census:count, "
            "or FILE.py:FLOW"
        )
    module = _import(module_name, folder)
    value: Any = module
    for part in attribute.split("."):
        value = getattr(value, part, None)
    flows = {
        variable: candidate
        for variable, candidate in vars(module).items()
        if isinstance(candidate, Pregel)
    }
    full_name = f"{module.__name__}:{attribute}"
    if isinstance(value, Pregel):
        flow: Pregel | None = value
    else:
        flow = _flow_of_function(full_name, flows.values())
    if flow is None:
        raise _not_a_flow(name, value, flows)
    if flow.once is not None:
        return flow
    labels = flow_labels(full_name, folder_of(module.__name__, module.__file__))
    return flow.with_config(metadata=labels)


def _flow_of_function(full_name: str, flows: Iterable[Pregel]) -> Pregel | None:
    """Return the flow whose function has this full name, or None."""
    for flow in flows:
        if flow.once and flow.once.owns(full_name):
            return flow
    return None


def _not_a_flow(
    name: str,
    value: Any,
    flows: Mapping[str, Pregel],
) -> ConfigurationError:
    """Return the error for a name that stands for *value*, which is no flow.

    Args:
        name: The module and the name, as the command line has it.
        value: The value with this name, or None if there is none.
        flows: The flows of the module, by the names of their variables.
    """
    kind = type(value).__name__
    if value is not None and hasattr(value, "compile"):
        return ConfigurationError(
            f"{name!r} is a {kind} that is not compiled: name what .compile() returns"
        )
    problem = "is not there" if value is None else f"is a {kind}, not a flow"
    module_name = name.rpartition(":")[0]
    names = ", ".join(flows) or "(none)"
    return ConfigurationError(
        f"{name!r} {problem}; the flows of {module_name} are: {names}"
    )


def _import(name: str, folder: str = "") -> ModuleType:
    """Import a module, or raise `ConfigurationError`.

    Args:
        name: The name of the module, or its file.
        folder: The folder of a module with this name, if it is known.
    """
    if name.endswith(".py") or os.sep in name:
        path = os.path.realpath(name)
        if not os.path.isfile(path):
            raise ConfigurationError(f"there is no file {name}")
        folder, file = os.path.split(path)
        module_name = file.removesuffix(".py")
    else:
        module_name = name
        if not os.path.isdir(folder):
            folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # worker processes get the same path
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            problem = "there is no such module"
        raise ConfigurationError(f"{name} cannot be imported: {problem}") from error
    _refuse_other_module(module_name.partition(".")[0], folder)
    return module


def _refuse_other_module(name: str, folder: str) -> None:
    """Raise an error if the imported top-level module is not the one in *folder*."""
    spec = PathFinder.find_spec(name, [folder])
    if spec is None or not spec.origin:
        return
    loaded = getattr(sys.modules[name], "__file__", None) or "Python itself"
    if os.path.realpath(spec.origin) != os.path.realpath(loaded):
        raise ConfigurationError(
            f"{spec.origin} cannot be imported: "
            f"there is a module {name!r} already, of {loaded}"
        )


@contextmanager
def flow_on(flow: Pregel, store: str | None) -> Iterator[Pregel]:
    """Give a flow on the store at *store*; None: on its own checkpointer."""
    if store is None:
        yield flow
        return
    with open_saver(store) as saver:
        yield flow.copy({"checkpointer": saver})


def flow_of_thread(
    thread_id: str,
    flow: str | None,
    store: str | None,
) -> Pregel:
    """Import a thread's flow: *flow*, or the flow that the thread's run recorded.

    Raises:
        ConfigurationError: The run recorded none: its graph is no variable of a module.
    """
    if flow is not None:
        if store is not None:
            existing_store(store)
        return load_flow(flow)
    with open_to_read(store) as saver:
        saved = newest_checkpoint(saver, thread_id)
    # The store is closed: the program may open the same one to write to it.
    return recorded_flow(saved)


def recorded_flow(saved: Saved) -> Pregel:
    """Import the flow that a run recorded.

    Raises:
        ConfigurationError: The run recorded none, or it cannot be imported.
    """
    metadata = saved.checkpoint.metadata
    name = metadata.get(FLOW)
    if not isinstance(name, str):
        raise ConfigurationError(
            f"thread {saved.address.thread_id!r} does not say which flow it is of: "
            "pass --flow MODULE:FLOW"
        )
    folder = str(metadata.get(FOLDER, ""))
    return load_flow(name, folder)


# ---------------------------------------------------------------- stores


def open_to_read(
    path: str | None,
    *,
    flow: bool = False,
) -> DurableSaver:
    """Open an existing store to read it, and change nothing in the store.

    Args:
        path: The store's folder, or the URL of a database.
        flow: Whether the user's flow reads it: values are decoded with their classes.
            Otherwise nothing of the user's is imported or run.

    Raises:
        ConfigurationError: There is no path.
        StoreError: There is no store, or it cannot be opened.
    """
    codec = None if flow else InertCodec()
    return open_saver(existing_store(path), readonly=True, codec=codec)


def open_to_write(
    path: str | None,
    codec: Codec | None = None,
) -> DurableSaver:
    """Open an existing store to change it.

    Raises:
        ConfigurationError: There is no path.
        StoreError: There is no store, or it cannot be opened.
    """
    return open_saver(existing_store(path), codec=codec)


def open_saver(
    path: str,
    *,
    readonly: bool = False,
    codec: Codec | None = None,
) -> DurableSaver:
    """Open or make a store, with the key in the file that a variable names.

    Args:
        path: The store's folder, or the URL of a database.
        readonly: Only read; make and change nothing.
        codec: The encoder of values; None stands for any Python value, exactly.

    Raises:
        ConfigurationError: No plug-in has the scheme of the URL, or the saver of the
            plug-in lacks what the commands need.
    """
    from flowpregel.checkpoint.durable import DurableSaver  # noqa: PLC0415 - fast --help
    from flowpregel.checkpoint.lmdb import StoreOptions  # noqa: PLC0415 - fast --help

    key_file = os.environ.get(KEY_FILE)
    key = read_key(key_file) if key_file else None
    options = StoreOptions(
        encryption_key=key,
        trust=has_flag("--trust") or None,
    )
    plugin = store_plugin_at(path)
    saver = plugin.open_saver(path, readonly=readonly, codec=codec, options=options)
    if not isinstance(saver, DurableSaver):
        saver.close()
        raise ConfigurationError(
            f"the commands cannot use {path}: {type(saver).__name__} is not derived "
            "from flowpregel.checkpoint.durable.DurableSaver"
        )
    return saver


def read_key(file: str) -> bytes:
    """Return the encryption key that a file holds.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    try:
        with open(file, "rb") as source:
            return source.read()
    except OSError as error:
        raise ConfigurationError(
            f"the key file {file} cannot be read: {error.strerror}"
        ) from error


def existing_store(path: str | None) -> str:
    """Return the full path or the URL of an existing store."""
    if not path:
        raise ConfigurationError(
            "which store? pass --store PATH, or set FLOWPREGEL_STORE"
        )
    plugin = store_plugin_at(path)
    full_path = plugin.full_location(path)
    if not plugin.exists(full_path):
        raise StoreError(f"there is no store at {full_path}")
    return full_path


# ---------------------------------------------------------------- checkpoints


def newest_checkpoint(
    saver: DurableSaver,
    thread_id: str,
    checkpoint_id: str | None = None,
) -> Saved:
    """Return a thread's newest checkpoint, or the one with this id.

    Raises:
        ConfigurationError: The store has no such thread.
    """
    saved = saver.load(Address(thread_id, "", checkpoint_id))
    if saved is None:
        raise ConfigurationError(
            f"the store at {saver.path} has no thread {thread_id!r}; "
            "`flowpregel ls` lists them"
        )
    return saved


def find_checkpoint(
    saver: DurableSaver,
    thread_id: str,
    name: str | None,
) -> Saved:
    """Return a checkpoint of a thread: the newest if *name* is None.

    Args:
        saver: The open store.
        thread_id: The id of the thread.
        name: A step (``3``; the newest checkpoint of that step), an id, or the
            beginning of an id that no other has.

    Raises:
        ConfigurationError: There is none, or more than one.
    """
    newest = newest_checkpoint(saver, thread_id)
    if name is None:
        return newest
    ids: list[str] = []
    for saved in saver.outline(Address(thread_id)):
        checkpoint = saved.checkpoint
        if _STEP.fullmatch(name):
            # The first one of a step is the newest.
            is_match = checkpoint.step == int(name) and not ids
        else:
            is_match = checkpoint.id.startswith(name)
        if is_match:
            ids.append(checkpoint.id)
    if not ids:
        raise ConfigurationError(
            f"thread {thread_id!r} has no checkpoint {name!r}; "
            "`flowpregel history` lists them"
        )
    if len(ids) > 1:
        raise ConfigurationError(
            f"several checkpoints of thread {thread_id!r} begin with {name!r}; "
            "give more of the id"
        )
    return newest_checkpoint(saver, thread_id, ids[0])
