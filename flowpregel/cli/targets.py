"""Functions that find the flow, store or checkpoint that a command's arguments name."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flowpregel._core.records import Address, Saved
from flowpregel._inspection.inert import InertCodec
from flowpregel._stores import store_plugin_at
from flowpregel.checkpoint.base import FLOW, FOLDER
from flowpregel.cli.console import has_flag
from flowpregel.errors import ConfigurationError, FlowPregelError, StoreError
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
        name: The module, and the name of the variable, of the flow's function, or of a
            task. A task stands for the flow that makes one call of it.
        folder: The folder of the module. If it does not have the module, the working
            directory is used.

    Raises:
        ConfigurationError: There is no such flow. The message lists the flows of the
            module.
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
    if hasattr(type(value), "as_flow"):
        # The name of a task stands for the workflow that makes one call of the task.
        value = value.as_flow(store=None)
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
    """Return the error for a name whose value is not a flow.

    Args:
        name: The module and the name, as on the command line.
        value: The value with this name, or None if there is none.
        flows: The flows of the module, by the names of their variables.
    """
    kind = type(value).__name__
    if value is not None and hasattr(value, "compile"):
        return ConfigurationError(
            f"{name!r} is a {kind} that is not compiled: name what .compile() returns"
        )
    problem = "does not exist" if value is None else f"is a {kind}, not a flow"
    module_name = name.rpartition(":")[0]
    names = ", ".join(flows) or "(none)"
    return ConfigurationError(
        f"{name!r} {problem}; the flows of {module_name} are: {names}"
    )


def _import(name: str, folder: str = "") -> ModuleType:
    """Import a module, or raise `ConfigurationError`.

    Args:
        name: The name of the module, or its file.
        folder: The folder of the module, if *name* is a module's name. If it does not
            have the module, the working directory is used.
    """
    if name.endswith(".py") or os.sep in name:
        path = os.path.realpath(name)
        if not os.path.isfile(path):
            raise ConfigurationError(f"there is no file {name}")
        folder, file = os.path.split(path)
        module_name = file.removesuffix(".py")
    else:
        module_name = name
        # The run may have been recorded on another machine. There the module may have
        # another folder, so the working directory is searched too.
        if not folder or PathFinder.find_spec(name.partition(".")[0], [folder]) is None:
            folder = os.getcwd()
    from flowpregel.pregel.outer_runs import (  # noqa: PLC0415 - keeps --help fast
        imported_module,
    )

    if folder not in sys.path:
        # The folder is put into `sys.path`, because worker processes get the same path,
        # and must find the module too.
        sys.path.insert(0, folder)
    token = imported_module.set(module_name)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        problem = _import_problem(error, module_name)
        raise ConfigurationError(f"{name} cannot be imported: {problem}") from error
    finally:
        imported_module.reset(token)
    _refuse_other_module(module_name.partition(".")[0], folder)
    return module


def _import_problem(error: Exception, module_name: str) -> str:
    """Return the reason why a module cannot be imported.

    Args:
        error: The error of the import.
        module_name: The name of the module.
    """
    if isinstance(error, ModuleNotFoundError) and error.name == module_name:
        return "there is no such module"
    if isinstance(error, FlowPregelError):
        # The message of an error of flowpregel, such as that of a store which the
        # module opens, is sufficient without the name of the error's class.
        return str(error)
    return f"{type(error).__name__}: {error}"


def _refuse_other_module(name: str, folder: str) -> None:
    """Check that the imported top-level module is the module in *folder*.

    Raises:
        ConfigurationError: Another module with this name had been imported.
    """
    spec = PathFinder.find_spec(name, [folder])
    if spec is None or not spec.origin:
        return
    loaded = getattr(sys.modules[name], "__file__", None) or "Python itself"
    if os.path.realpath(spec.origin) != os.path.realpath(loaded):
        raise ConfigurationError(
            f"{spec.origin} cannot be imported: another module {name!r} is already "
            f"imported, from {loaded}"
        )


@contextmanager
def flow_on(flow: Pregel, store: str | None) -> Iterator[Pregel]:
    """Return a context manager that provides *flow* with the store at *store*.

    If *store* is None, the flow keeps its own checkpointer.
    """
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
    """Import the flow of a thread and return it.

    Args:
        thread_id: The id of the thread.
        flow: The name of the flow, or None for the flow that the thread's run recorded.
        store: The store of the thread, or None.

    Raises:
        ConfigurationError: The run recorded no flow, because its graph is not a
            variable of a module, or the flow cannot be imported.
    """
    if flow is not None:
        if store is not None:
            existing_store(store)
        return load_flow(flow)
    with open_to_read(store) as saver:
        saved = newest_checkpoint(saver, thread_id)
    # The flow is imported only after the store is closed, because the flow's program
    # may open the same store for writing.
    return recorded_flow(saved)


def recorded_flow(saved: Saved) -> Pregel:
    """Import the flow that a run recorded.

    Raises:
        ConfigurationError: The run recorded no flow, or the flow cannot be imported.
    """
    return flow_in_metadata(saved.address.thread_id, saved.checkpoint.metadata)


def flow_in_metadata(thread_id: str, metadata: Mapping[str, Any]) -> Pregel:
    """Import the flow that the metadata of a thread's checkpoint name.

    Raises:
        ConfigurationError: They name no flow, or the flow cannot be imported.
    """
    name = metadata.get(FLOW)
    if not isinstance(name, str):
        raise ConfigurationError(
            f"thread {thread_id!r} does not record its flow: pass --flow MODULE:FLOW"
        )
    folder = str(metadata.get(FOLDER, ""))
    return load_flow(name, folder)


# ---------------------------------------------------------------- stores


def open_to_read(
    path: str | None,
    *,
    flow: bool = False,
) -> DurableSaver:
    """Open an existing store for reading only.

    Args:
        path: The store's folder, or the URL of a database.
        flow: True to decode values with their classes, for the user's flow. False to
            decode them without importing or running any of the user's code.

    Raises:
        ConfigurationError: *path* is None or empty.
        StoreError: There is no store, or it cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> with TemporaryDirectory() as folder:
        ...     LMDBSaver(folder).close()  # creates the store
        ...     with open_to_read(folder) as saver:
        ...         [*saver.threads()]
        []
    """
    codec = None if flow else InertCodec()
    return open_saver(existing_store(path), readonly=True, codec=codec)


def open_to_write(
    path: str | None,
    codec: Codec | None = None,
    *,
    lock_timeout: float | None = None,
) -> DurableSaver:
    """Open an existing store for writing.

    Args:
        path: The store's folder, or the URL of a database.
        codec: The encoder of values, or None for the default codec.
        lock_timeout: Seconds to wait for another process that writes, or None for the
            default of `StoreOptions`.

    Raises:
        ConfigurationError: *path* is None or empty.
        StoreError: There is no store, or it cannot be opened.
    """
    return open_saver(existing_store(path), codec=codec, lock_timeout=lock_timeout)


def open_saver(
    path: str,
    *,
    readonly: bool = False,
    codec: Codec | None = None,
    lock_timeout: float | None = None,
) -> DurableSaver:
    """Open a store, or create it.

    The encryption key is read from the file that `KEY_FILE` in the environment names.

    Args:
        path: The store's folder, or the URL of a database.
        readonly: True to open an existing store for reading only.
        codec: The encoder of values, or None for the default codec.
        lock_timeout: Seconds to wait for another process that writes, or None for the
            default of `StoreOptions`.

    Raises:
        ConfigurationError: No plug-in has the scheme of the URL, or the plug-in's saver
            lacks methods that the commands need.
    """
    # Imported here to keep `flowpregel --help` fast.
    from flowpregel.checkpoint.durable import DurableSaver  # noqa: PLC0415
    from flowpregel.storage.options import StoreOptions  # noqa: PLC0415

    key_file = os.environ.get(KEY_FILE)
    key = read_key(key_file) if key_file else None
    options = StoreOptions(
        encryption_key=key,
        trust=has_flag("--trust") or None,
    )
    if lock_timeout is not None:
        options = replace(options, lock_timeout=lock_timeout)
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
    """Return the encryption key in a file.

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


def read_secret(file: str) -> bytes:
    """Return the secret key for checksums that a file has, without blanks around it.

    Raises:
        ConfigurationError: The file cannot be read, or has no key.
    """
    key = read_key(file).strip()
    if not key:
        raise ConfigurationError(
            f"{file} contains no key; write a secret into it, such as the output of "
            "`openssl rand -hex 32`"
        )
    return key


def named_store(path: str | None) -> str:
    """Return the path or the URL of a store, which need not exist.

    Raises:
        ConfigurationError: *path* is None or empty.
    """
    if not path:
        raise ConfigurationError(
            "which store? pass --store PATH, or set FLOWPREGEL_STORE"
        )
    return path


def existing_store(path: str | None) -> str:
    """Return the full path or the URL of an existing store.

    Raises:
        ConfigurationError: *path* is None or empty.
        StoreError: There is no store at *path*.
    """
    path = named_store(path)
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
    """Return the checkpoint with this id, or without an id the thread's newest one.

    Raises:
        ConfigurationError: The store has no such thread.
    """
    saved = saver.load(Address(thread_id, "", checkpoint_id))
    if saved is None:
        raise unknown_thread(saver, thread_id)
    return saved


def unknown_thread(saver: DurableSaver, thread_id: str) -> ConfigurationError:
    """Return the error for a thread that is not in a store."""
    return ConfigurationError(
        f"the store at {saver.path} has no thread {thread_id!r}; "
        "`flowpregel ls` lists them"
    )


def find_checkpoint(
    saver: DurableSaver,
    thread_id: str,
    name: str | None,
) -> Saved:
    """Return the checkpoint of a thread that *name* identifies.

    Args:
        saver: The open store.
        thread_id: The id of the thread.
        name: The id of the checkpoint, or a unique beginning of the id; the number of a
            superstep, such as ``3``, for its newest checkpoint; or None for the
            thread's newest checkpoint.

    Raises:
        ConfigurationError: No checkpoint matches, or several checkpoints match.
    """
    newest = newest_checkpoint(saver, thread_id)
    if name is None:
        return newest
    ids: list[str] = []
    for saved in saver.outline(Address(thread_id)):
        checkpoint = saved.checkpoint
        if _STEP.fullmatch(name):
            # Checkpoints are listed newest first, so only the newest checkpoint of a
            # superstep matches.
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
