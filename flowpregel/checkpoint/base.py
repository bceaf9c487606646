"""The contract of a saver, which stores the checkpoints and pending writes of threads.

A saver receives `Batch` records and returns `Saved` records. This module exports both
classes, and the classes of their fields. `LangGraphMethods` adds the methods that
programs written for LangGraph call. `flowpregel.plugins.langgraph.as_saver` turns a
LangGraph checkpointer into a saver, and `flowpregel.plugins.langgraph.SaverAdapter`
turns a saver into a LangGraph checkpointer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

from flowpregel._core.ids import AttemptRecord
from flowpregel._core.records import (
    ASKED,
    ATTEMPT,
    INTERRUPT,
    SAVED,
    Address,
    Batch,
    Checkpoint,
    Delta,
    PendingWrite,
    Saved,
    TaskWrites,
    Version,
    split_writes_and_attempts,
)
from flowpregel._pickling.process_bound import ProcessBound
from flowpregel.checkpoint.call_files import CallFiles
from flowpregel.checkpoint.call_output import CallOutput
from flowpregel.checkpoint.langgraph_methods import (
    CheckpointTuple,
    DeltaChannelHistory,
    LangGraphMethods,
    async_form,
    has_langgraphs_methods,
)
from flowpregel.checkpoint.parents import (
    greatest_version,
    node_results_by_parents,
)

__all__ = [
    "ASKED",
    "ATTEMPT",
    "INTERRUPT",
    "SAVED",
    "WRITES_IDX_MAP",
    "Address",
    "AttemptRecord",
    "BaseCheckpointSaver",
    "Batch",
    "CallOutput",
    "Checkpoint",
    "CheckpointTuple",
    "Delta",
    "DeltaChannelHistory",
    "Fences",
    "Lease",
    "OnConflict",
    "PendingWrite",
    "Saved",
    "Strategy",
    "TaskWrites",
    "Version",
    "greatest_version",
    "node_results_by_parents",
    "split_writes_and_attempts",
]

WRITES_IDX_MAP: dict[str, int] = {
    "__error__": -1,
    "__scheduled__": -2,
    "__interrupt__": -3,
    "__resume__": -4,
    "__error_source_node__": -5,
    "__call__": -6,
    "__ran__": -7,
    "__saved__": -8,
    "__asked__": -9,
}
"""The fixed position of each kind of control write, such as a task's error or question.
A newer control write replaces an older control write at the same position.

The last five kinds do not exist in LangGraph. Without fixed positions they would take
the positions of writes that the task makes in its next attempt.
"""

OnConflict: TypeAlias = Literal["raise", "wait", "takeover"]
"""The reaction if another run holds the lease of a thread: see
`BaseCheckpointSaver.lease`.
"""
Fences: TypeAlias = Callable[[Address, int], int]
"""A function that returns the stored fence of an address: a number that grows with each
lease. If its second argument is not 0, that number is stored as the fence first.
"""
FLOW = "flow"
"""The key in the metadata for the flow of a run: the flow's module and name."""
FOLDER = "flow_folder"
"""The key in the metadata for the folder from which the flow's module is imported."""
QUEUE = "queue"
"""The key in the metadata for the `QueuePosition` of an enqueued run. A run that has
begun has no such key.
"""
Strategy: TypeAlias = Literal["keep_latest", "delete"]
"""The choice of the checkpoints to delete: see `BaseCheckpointSaver.prune`."""


@dataclass(slots=True, eq=False)
class Lease:
    """The right to write to a thread's namespace. Every batch of its owner carries the
    lease's *fence*, a number by which the store refuses the batches of an earlier
    owner.
    """

    fence: int | None = None
    is_inherited: bool = False
    """True if the process that held the lease before died without releasing it."""
    stop: Callable[[str], None] | None = None
    """A function that asks the owner (the run that holds the lease) to stop. Its
    argument is the reason, and any OS thread may call it. None if the owner cannot be
    asked to stop.
    """
    live: Callable[[], Mapping[str, Any]] | None = None
    """A function that returns the current work of the owner, in a form that can be
    encoded as JSON. Any OS thread may call it. None if the owner does not report.
    """
    drawing: Callable[[], Mapping[str, Any]] | None = None
    """A function that returns the nodes and edges of the owner's graph as JSON, as
    `Graph.outline` does. The owner sets it together with *live*.
    """
    pools: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """A function that first resizes the pools for which another size was requested, and
    then returns the sizes of all pools of the owner's run. Any OS thread may call it.
    """

    def request_stop(self) -> None:
        """Ask the owner to stop, on behalf of another process. Any OS thread may call
        this.
        """
        if self.stop is not None:
            self.stop("it was cancelled from outside")


class Leases(Protocol):
    """The leases that this process holds in one store."""

    held: set[tuple[str, int]]
    """The thread id and the fence of each lease that this process holds."""

    def hold(
        self, address: Address, on_conflict: OnConflict, fences: Fences
    ) -> AbstractContextManager[Lease]:
        """Hold the right to write at *address* while the context is open.

        Args:
            address: The thread and the namespace.
            on_conflict: As `BaseCheckpointSaver.lease` takes it.
            fences: A function that returns the fence (the number of the newest lease)
                of an address. If its second argument is not 0, that number is stored as
                the fence first.
        """


class BaseCheckpointSaver(LangGraphMethods, ProcessBound, ABC):
    """The base class of savers, which store the checkpoints and pending writes of
    threads.

    A subclass implements `load`, `history`, `commit`, `namespaces` and
    `delete_thread`, and as many of the optional methods as it can. Any OS thread may
    call them. A saver that was written for LangGraph implements `get_tuple`, `list`,
    `put` and `put_writes` instead, or their async forms.

    Args:
        serde: The serializer of a saver that was written for LangGraph: an object with
            the methods ``dumps_typed`` and ``loads_typed``.
    """

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    """Support for annotations such as ``BaseCheckpointSaver[int]``, as in LangGraph's
    programs.
    """

    keeps_deltas: ClassVar[bool] = True
    """True if `commit` stores what a superstep adds to a channel (a delta). Otherwise
    `commit` gets the channel's full value instead.
    """
    keeps_attempts: ClassVar[bool] = False
    """True if the saver stores the attempt records of nodes with their writes."""
    keeps_arguments: ClassVar[bool] = False
    """True if the saver stores the arguments of failed calls. Its `prepare` encodes
    them.
    """
    needs_loop: ClassVar[bool] = False
    """True if the saver's methods may wait for the running event loop. In this case
    they must not be called on the OS thread of that loop.
    """
    commits_at_once: ClassVar[bool] = False
    """True if a commit takes less time than passing the batch to another OS thread that
    commits it.
    """
    owns_versions: ClassVar[bool] = False
    """True if runs get the versions of channels from `get_next_version`, and do not
    create them themselves. A subclass that overrides `get_next_version` sets this to
    True.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.get_next_version is not LangGraphMethods.get_next_version:
            cls.owns_versions = True

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # A saver that was written for LangGraph does not implement the abstract methods
        # of this class, but can be used all the same.
        if cls.__abstractmethods__ and has_langgraphs_methods(cls):
            _allow_instances(cls)
        return super().__new__(cls)

    def __init__(self, *, serde: Any = None) -> None:
        self.serde = serde

    @property
    def is_on_its_loop(self) -> bool:
        """True if this OS thread runs the event loop for which the saver's methods
        wait, so that a call would never return.
        """
        return False

    @abstractmethod
    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        """Return the checkpoint at *address*, or None if there is none.

        Args:
            address: The thread, the namespace and, optionally, the checkpoint. Without
                a ``checkpoint_id``, the newest checkpoint is returned.
            before: Return only a checkpoint with a smaller id than this.
            lazy_results: True if a run resumes from the checkpoint. In this case the
                saver may leave the results of finished calls in the store and set
                `Saved.lazy_results`, from which the run reads each result when it
                replays the call.
        """

    @abstractmethod
    def history(
        self,
        address: Address,
        *,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Saved]:
        """Yield the checkpoints of one thread and namespace, newest first.

        Args:
            address: The thread and namespace. If it has a ``checkpoint_id``, only that
                checkpoint is yielded.
            filter: Yield only checkpoints whose metadata, ``source`` and ``step`` have
                these values.
            before: Yield only checkpoints with a smaller id than this.
            limit: The greatest number of checkpoints to yield.
        """

    def prepare(self, batch: Batch) -> Batch:
        """Return *batch* in a form that can be committed later, even if its values are
        changed until then.

        A run calls this before any result in *batch* becomes visible. The default
        returns *batch* itself.

        Raises:
            ValueEncodingError: A value cannot be stored.

        Example:
            >>> from flowpregel import InMemorySaver
            >>> from flowpregel.checkpoint.base import Address, Batch, TaskWrites
            >>> saver, names = InMemorySaver(), ["ada"]
            >>> writes = TaskWrites("checkpoint-1", "task-1", "", (("names", names),))
            >>> batch = saver.prepare(Batch(Address("1"), (writes,)))
            >>> names.append("bob")  # does not change the batch
            >>> saver.commit([batch])
        """
        return batch

    @abstractmethod
    def commit(self, batches: Sequence[Batch]) -> None:
        """Store all of *batches*, in order, in one transaction.

        If this raises an error, nothing is stored.

        Args:
            batches: The batches, which may or may not have been returned by `prepare`.

        Raises:
            LeaseLostError: Another run has taken over the lease of a batch.
            ValueEncodingError: A value cannot be stored.
        """

    @abstractmethod
    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        """Yield the address of every namespace that has a checkpoint.

        Args:
            thread_id: The thread, or None to yield the namespaces of all threads.
        """

    @abstractmethod
    def delete_thread(self, thread_id: str) -> None:
        """Delete all records of a thread, in every namespace.

        Args:
            thread_id: The id of the thread.
        """

    @async_form(delete_thread)
    async def adelete_thread(self, *args: Any, **kwargs: Any) -> Any:
        """`delete_thread`, without blocking the event loop."""
        return await self._off_loop(self.delete_thread, *args, **kwargs)

    # -------------------------------------------------------- optional

    def outline(self, address: Address) -> Iterator[Saved]:
        """Yield the checkpoints of `history`, perhaps without the channel values.

        Args:
            address: The thread and the namespace.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> from flowpregel.checkpoint.base import Address
            >>> saver = InMemorySaver()
            >>> @entrypoint(checkpointer=saver)
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.run(4, id="1")
            8
            >>> [saved.checkpoint.step for saved in saver.outline(Address("1"))]
            [0, -1]
        """
        return self.history(address)

    def lease(
        self, thread_id: str, namespace: str = "", *, on_conflict: OnConflict = "raise"
    ) -> AbstractContextManager[Lease]:
        """Hold the right to write to a thread's namespace while the context is open.

        Args:
            thread_id: The id of the thread.
            namespace: The namespace of a nested run, or an empty string.
            on_conflict: The reaction if another run holds the right: ``"raise"`` raises
                an error, ``"wait"`` waits for the end of that run, and ``"takeover"``
                takes the right from it, so that it can commit nothing more.

        Raises:
            ThreadBusyError: Another run holds this right, and *on_conflict* is
                ``"raise"``.

        Example:
            >>> from flowpregel import InMemorySaver
            >>> saver = InMemorySaver()
            >>> with saver.lease("1"):
            ...     saver.delete_thread("1")
        """
        return nullcontext(Lease())

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata has one of these ``run_id`` values.

        Args:
            run_ids: The ``run_id`` values.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> saver = InMemorySaver()
            >>> @entrypoint(checkpointer=saver)
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.invoke(4, thread_id="1", run_id="monday")
            8
            >>> saver.delete_for_runs(["monday"])
            >>> [*double.get_state_history(thread_id="1")]
            []
        """
        raise self._not_offered("delete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all records of a thread to another thread, with the same checkpoint ids.

        If the source has no checkpoints, nothing happens.

        Args:
            source_thread_id: The thread to copy.
            target_thread_id: The thread that gets the copies.

        Raises:
            ConfigurationError: The target thread has checkpoints already.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> saver = InMemorySaver()
            >>> @entrypoint(checkpointer=saver)
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.run(4, id="1")
            8
            >>> saver.copy_thread("1", "2")
            >>> double.get_state(thread_id="2").values
            8
        """
        raise self._not_offered("copy_thread")

    def prune(
        self, thread_ids: Sequence[str], *, strategy: Strategy = "keep_latest"
    ) -> None:
        """Delete checkpoints of threads.

        The content of the remaining checkpoints does not change.

        Args:
            thread_ids: The ids of the threads.
            strategy: ``"keep_latest"`` deletes all but the newest checkpoint of each
                namespace, ``"delete"`` deletes the threads.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> saver = InMemorySaver()
            >>> @entrypoint(checkpointer=saver)
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.run(4, id="1")
            8
            >>> saver.prune(["1"])
            >>> len([*double.get_state_history(thread_id="1")])
            1
        """
        raise self._not_offered("prune")

    def send_signal(self, thread_id: str, name: str, value: Any) -> None:
        """Store *value* for a run that waits, or will wait, for the signal *name*.

        Once this returns, the value is as durable as a checkpoint.

        Args:
            thread_id: The thread of the run.
            name: The name of the signal.
            value: The value that the run receives.

        Example:
            >>> from flowpregel import InMemorySaver
            >>> saver = InMemorySaver()
            >>> saver.send_signal("1", "paid", 20)
            >>> saver.receive_signal("1", "paid", receiver="call-1")
            (20,)
        """
        raise self._not_offered("send_signal")

    def receive_signal(
        self, thread_id: str, name: str, receiver: str
    ) -> tuple[Any] | None:
        """Return the signal's first value that no call has received, in a tuple of one
        item.

        None is returned if there is no such value. A value that is returned belongs to
        *receiver* from then on: a later attempt of that call gets the same value again.

        Args:
            thread_id: The thread of the run.
            name: The name of the signal.
            receiver: The id of the call.

        Example:
            >>> from flowpregel import InMemorySaver
            >>> saver = InMemorySaver()
            >>> saver.receive_signal("1", "paid", receiver="call-1") is None
            True
            >>> saver.send_signal("1", "paid", 20)
            >>> saver.receive_signal("1", "paid", receiver="call-1")
            (20,)
            >>> saver.receive_signal("1", "paid", receiver="call-2") is None
            True
        """
        raise self._not_offered("receive_signal")

    def source_of(self, code: str) -> str:
        """Return the source code of a task that has recorded calls, or an empty string
        if it is not stored.

        Args:
            code: The digest of the task's code.

        Example:
            >>> from flowpregel import InMemorySaver
            >>> saver = InMemorySaver()
            >>> saver.source_of("0" * 32)  # no recorded call has this code
            ''
        """
        return ""

    def node_results(
        self, address: Address
    ) -> Iterator[tuple[str | None, AttemptRecord]]:
        """Yield the attempts of nodes whose writes led to a checkpoint, or are stored
        with it.

        These are the attempts of the run that created the checkpoint, last attempt
        first. Each comes with the id of the checkpoint from which it started, or with
        None if that checkpoint is not stored. No result is decoded. The default yields
        nothing.

        Args:
            address: The checkpoint to which the writes led, or that has them.

        Example:
            >>> from flowpregel import InMemorySaver, entrypoint
            >>> from flowpregel.checkpoint.base import Address
            >>> saver = InMemorySaver()
            >>> @entrypoint(checkpointer=saver)
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> double.run(4, id="1")
            8
            >>> newest = saver.load(Address("1"))
            >>> [attempt.name for _, attempt in saver.node_results(newest.address)]
            ['double']
        """
        return iter(())

    def output_files(self, address: Address) -> Iterator[CallFiles]:
        """Yield the recorded output files of the calls and nodes of a run.

        The run is the one that created the checkpoint at *address*. The tasks of the
        last superstep come first. Tasks without output files are left out. No result is
        decoded. The default yields nothing.

        Args:
            address: The checkpoint. Without a ``checkpoint_id``, it is the newest.

        Example:
            >>> from flowpregel import InMemorySaver, Runtime, entrypoint, task
            >>> from flowpregel.checkpoint.base import Address
            >>> @task(executor="inline")
            ... def write(text: str, *, runtime: Runtime) -> None:
            ...     runtime.output("report.txt").write_text(text)
            >>> saver = InMemorySaver()
            >>> @entrypoint(checkpointer=saver)
            ... def report(text: str) -> None:
            ...     write(text).result()
            >>> report.run("done", id="1")
            >>> for call in saver.output_files(Address("1")):
            ...     print(call.name, [file.path for file in call.files])
            write('done') ['report.txt']
        """
        return iter(())

    def keep_output(self, address: Address, part: CallOutput) -> None:
        """Append *part* to the stored output of a task.

        This must not block: the saver may write the output with the next commit, or a
        second later. The default stores nothing.

        Args:
            address: The checkpoint from which the task started.
            part: The new output.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.base import Address, CallOutput
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> part = CallOutput("checkpoint-1", "task-1", "f(4)", 0, b"hello", b"", 5)
            >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
            ...     saver.keep_output(Address("1"), part)
        """

    def kept_output(self, address: Address) -> list[CallOutput]:
        """Return the stored output of tasks, in the order in which they first printed.

        Args:
            address: The checkpoint from which the tasks started. Without a
                ``checkpoint_id``, the output of all tasks of the thread and namespace
                is returned.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> from flowpregel.checkpoint.base import Address, CallOutput
            >>> from flowpregel.checkpoint.lmdb import LMDBSaver
            >>> part = CallOutput("checkpoint-1", "task-1", "f(4)", 0, b"hello", b"", 5)
            >>> with TemporaryDirectory() as folder:
            ...     with LMDBSaver(folder) as saver:
            ...         saver.keep_output(Address("1"), part)
            ...     with LMDBSaver(folder) as saver:
            ...         [output.text for output in saver.kept_output(Address("1"))]
            ['hello']
        """
        return []

    def close(self) -> None:
        """Release the saver's resources. It is safe to call this more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _not_offered(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not offer {method}")


def _allow_instances(owner: Any) -> None:
    """Let the class *owner* be instantiated, although it has abstract methods."""
    owner.__abstractmethods__ = frozenset[str]()
