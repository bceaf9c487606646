"""Modules of the program that the machines lack, and whose code is sent to them.

::

    coordinator                                   machine
    -----------                                   -------
    task: code by name, "jobs:parse"  --------->  ModuleNotFoundError: jobs
    NO_MODULE, "jobs"                 <---------
    `jobs` is local: unpack the task,
    pack it again with `jobs` by value -------->  the task begins

A task that a machine cannot unpickle has not begun, so it may be sent again. Its bytes
are unpacked and packed again. They are not made from the job again, because the caller
may have changed the arguments since the call. A module of an installed package is not
sent automatically, because its code may depend on other files and on C code. The user
can name such a module with ``ship=``.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from types import ModuleType
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from flowpregel._core.records import Node, Raised
from flowpregel._loggers import worker_log
from flowpregel._pickling.sent_modules import (
    SENT_MODULES,
    is_local,
    is_part_of,
    send_by_value,
)
from flowpregel.context import Job
from flowpregel.errors import ConfigurationError, ExecutorUnavailableError
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.coordinator.assign import InFlight
from flowpregel.executors.processes.coordinator.code_cache import PackedCodes, codes
from flowpregel.executors.processes.coordinator.encoder import JobEncoder
from flowpregel.executors.processes.wire import serialization
from flowpregel.executors.processes.wire.messages import unpack_head
from flowpregel.executors.processes.wire.node_code import NodeCode
from flowpregel.executors.processes.wire.protocol import Frame
from flowpregel.executors.processes.wire.serialization import BufferRef
from flowpregel.executors.processes.wire.shared_memory import Arena


class Parcel(NamedTuple):
    """The new bytes of a task that was packed again."""

    code: NodeCode
    body: bytes
    refs: Sequence[BufferRef]


class ShippingEncoder(JobEncoder):
    """A `JobEncoder` that packs tasks with the code of some modules by value, for
    machines that lack these modules.

    Args:
        arena: The large buffers of tasks.
    """

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.repeats_calls = True
        self._modules: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._codes = PackedCodes()
        self._sent_with: WeakKeyDictionary[NodeCode, frozenset[str]]
        self._sent_with = WeakKeyDictionary()
        """The modules whose code was packed by value. The key is the packed code that
        contains theirs.
        """
        self.code_of = self._code_by_value

    def ship(self, *names: str) -> None:
        """Send the code of some modules and packages by value from now on."""
        with self._lock:
            self._modules |= set(names)

    def by_value(self) -> AbstractContextManager[None]:
        """Return a context in which the code of the shipped modules is packed by
        value.
        """
        return send_by_value(self._modules)

    def encode(
        self,
        job: Job,
        mailbox: Mailbox,
    ) -> InFlight:
        """Pack *job*, and return it as a record of the pool."""
        modules = self._modules
        if not modules:
            return super().encode(job, mailbox)
        with send_by_value(modules):
            task = super().encode(job, mailbox)
            if job.task.code is not None:
                # A function that is not a task, passed to `submit`, was packed before
                # it was known which pool would run it. So its packed code lacks the
                # shipped modules, and is packed again here.
                task.code = self._code_by_value(job.task.node)
            return task

    def _code_by_value(self, node: Node) -> NodeCode:
        """Return the packed code of *node* in its present state, with the code of the
        shipped modules.
        """
        modules = SENT_MODULES.get()
        if not modules:
            return codes.code_of(node)
        return self._packed(node, id(node), modules)

    def _packed(
        self,
        node: Node,
        key: int | bytes,
        modules: frozenset[str],
    ) -> NodeCode:
        code = self._codes.code_of(node, (key, modules))
        self._sent_with[code] = modules
        return code

    def repack(
        self,
        task: InFlight,
        module: str,
    ) -> Parcel | Raised:
        """Pack *task* again for a machine that lacks a module. Return its new bytes, or
        the error with which the task fails.

        Args:
            task: The task that the machine could not unpickle.
            module: The name of the module.
        """
        try:
            self._check_can_send(task, module)
            self._ship_missing(module.partition(".")[0])
            return self._packed_again(task)
        except BaseException as error:  # noqa: BLE001 - the task fails with it
            return Raised(error)

    def _check_can_send(self, task: InFlight, module: str) -> None:
        """Raise an `ExecutorUnavailableError` if the code of *module* cannot be sent,
        or if the machine lacks the module although its code was sent with *task*.
        """
        problem = ""
        if is_part_of(module, self._sent_with.get(task.code, ())):
            problem = "its code was sent by value, but refers to the module by name; "
        elif is_local(module):
            return
        raise ExecutorUnavailableError(
            f"task {task.job.task.name!r} cannot begin on a machine of the cluster, "
            f"which lacks the module {module!r}: {problem}{MODULE_ADVICE}"
        )

    def _packed_again(self, task: InFlight) -> Parcel:
        """Pack *task* again, with the code of all modules that are shipped by now."""
        modules = self._modules
        _, packed = pickle.loads(task.code.data)
        node: Node = pickle.loads(packed)
        content = serialization.unpack(task.body, self.arena.view)
        with send_by_value(modules):
            code = self._packed(node, task.code.digest, modules)
            body, refs = serialization.pack(content, self.arena.share)
        return Parcel(code, body, refs)

    def _ship_missing(self, package: str) -> None:
        """Send the code of *package* with tasks from now on, and log that once."""
        if package not in self._modules:
            self.ship(package)
            worker_log.warning(
                "the machines of the cluster lack the module %r of this program: its "
                "code is sent to them by value",
                package,
            )


MODULE_ADVICE: Final = (
    "install it on all machines (in their image, or with Ray's "
    "runtime_env={'pip': [...]}), or send it: DaskExecutor(ship=[...]) or "
    "RayExecutor(ship=[...]) for Python code, client.upload_file() of Dask or "
    "runtime_env={'working_dir': ...} of Ray for a package with data files"
)
"""Advice for error messages about a module that the machines lack."""


def missing_module(frame: Frame) -> str:
    """Return the name of the module that a frame with the flag NO_MODULE reports."""
    return unpack_head(frame.body).failed_ids.decode()


def module_names(modules: Sequence[str | ModuleType]) -> list[str]:
    """Return the names of *modules*, each of which is a module or a name.

    Raises:
        ConfigurationError: There is no such module here, or *modules* is a single
            string.
    """
    if isinstance(modules, str):
        raise ConfigurationError(f"ship={modules!r}: use a list, [{modules!r}]")
    names: list[str] = []
    for module in modules:
        name = module.__name__ if isinstance(module, ModuleType) else module
        if not _exists(name):
            raise ConfigurationError(
                f"ship={modules!r}: there is no module {name!r} here; use the names of "
                "modules and packages that this program can import"
            )
        names.append(name)
    return names


def _exists(module: str) -> bool:
    """Return whether this program can import a module."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False
