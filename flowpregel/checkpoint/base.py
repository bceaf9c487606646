"""The contract of a saver: it keeps the checkpoints and pending writes of threads.

A saver receives `Batch` records and returns `Saved` ones. This module exports both and
the records they consist of. `LangGraphMethods` adds the methods that LangGraph's
programs call. `flowpregel.plugins.langgraph.as_saver` makes a saver of a LangGraph
checkpointer, `flowpregel.plugins.langgraph.SaverAdapter` does the reverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

from flowpregel._core.ids import AttemptRecord
from flowpregel._core.records import (
    Address,
    Batch,
    Checkpoint,
    Delta,
    PendingWrite,
    Saved,
    TaskWrites,
    Version,
)
from flowpregel._pickling.process_bound import ProcessBound
from flowpregel.checkpoint.langgraph_methods import (
    CheckpointTuple,
    LangGraphMethods,
    async_form,
)
from flowpregel.checkpoint.output import CallOutput

__all__ = [
    "WRITES_IDX_MAP",
    "Address",
    "BaseCheckpointSaver",
    "Batch",
    "CallOutput",
    "Checkpoint",
    "CheckpointTuple",
    "Delta",
    "Lease",
    "OnConflict",
    "PendingWrite",
    "Saved",
    "TaskWrites",
    "Version",
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
"""The position of each kind of control write: a newer write replaces the older one.

The last five are ours. If they were numbered like other writes, they would take the
positions of writes that the task makes when it is tried again.
"""

OnConflict: TypeAlias = Literal["raise", "wait", "takeover"]
Fences: TypeAlias = Callable[[Address, int], int]
"""A function that returns the fence of an address in the store; one that is not 0 is
put there first.
"""
FLOW = "flow"
"""The key in the metadata for the flow of a run: its module and its name."""
FOLDER = "flow_folder"
"""The key in the metadata for the folder that the module is imported from."""
Strategy: TypeAlias = Literal["keep_latest", "delete"]


@dataclass(slots=True, eq=False)
class Lease:
    """The right to write a thread's namespace; *fence* goes with every batch."""

    fence: int | None = None
    is_inherited: bool = False
    """True if the process that held the lease before died while it held it."""
    stop: Callable[[str], None] | None = None
    """A function that asks the owner to stop, for a reason; any OS thread may call it.
    Set by an owner that can stop.
    """
    live: Callable[[], Mapping[str, Any]] | None = None
    """A function that returns the current work of the owner, fit for JSON; any OS
    thread may call it. Set by an owner that can report.
    """
    drawing: Callable[[], Mapping[str, Any]] | None = None
    """A function that returns the graph of the owner's run, as `Graph.outline` does.
    Set together with *live*.
    """


class Leases(Protocol):
    """The leases that this process holds in one store."""

    held: set[tuple[str, int]]
    """The thread and the fence of each lease."""

    def hold(
        self, address: Address, on_conflict: OnConflict, fences: Fences
    ) -> AbstractContextManager[Lease]:
        """Hold the right to write at *address* while the context is open."""


class BaseCheckpointSaver(LangGraphMethods, ProcessBound, ABC):
    """Keeps the checkpoints and pending writes of threads.

    A subclass gives `load`, `history`, `commit`, `namespaces` and `delete_thread`,
    and as many of the other methods as it can. Any OS thread may call them.
    """

    keeps_deltas: ClassVar[bool] = True
    """True if `commit` keeps deltas; otherwise the engine passes full values."""
    keeps_attempts: ClassVar[bool] = False
    """True if the attempts of nodes are kept with the writes."""
    keeps_arguments: ClassVar[bool] = False
    """True if `prepare` takes the arguments of failed calls out of a batch and keeps
    them.
    """
    needs_loop: ClassVar[bool] = False
    """True if a call may wait for the running event loop, so that it must not be made
    on the loop's OS thread.
    """
    commits_at_once: ClassVar[bool] = False
    """True if a commit costs less than handing it to a writer's OS thread."""
    owns_versions: ClassVar[bool] = False
    """True if versions come from `get_next_version` rather than from the engine."""

    @property
    def is_on_its_loop(self) -> bool:
        """True if this OS thread runs the event loop that a call would wait for: the
        call would never return.
        """
        return False

    @abstractmethod
    def load(
        self, address: Address, *, before: str | None = None, lazy_results: bool = False
    ) -> Saved | None:
        """Return the checkpoint at *address*: the newest, if it names none.

        Args:
            address: Thread, namespace and perhaps checkpoint.
            before: Only a checkpoint with a smaller id than this.
            lazy_results: A run resumes from the checkpoint. The saver may leave the
                results of finished calls in the store, and return
                `Saved.lazy_results`, by which the run reads each result when the call
                is replayed.
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
            address: Whose; with a ``checkpoint_id`` just that one.
            filter: Only those whose metadata, ``source`` and ``step`` have these
                values.
            before: Only those with a smaller id than this.
            limit: At most this many.
        """

    def prepare(self, batch: Batch) -> Batch:
        """Return *batch* in a form for a later `commit`, safe from changes of values.

        Called before any result in *batch* becomes visible. By default *batch* itself
        is returned.

        Raises:
            ValueEncodingError: A value cannot be kept.
        """
        return batch

    @abstractmethod
    def commit(self, batches: Sequence[Batch]) -> None:
        """Keep all of *batches*, prepared or not, in order, in one transaction.

        Raises:
            LeaseLostError: A batch has the fence of a lease that another run holds now;
                nothing is kept.
            ValueEncodingError: A value cannot be kept; nothing is.
        """

    @abstractmethod
    def namespaces(self, thread_id: str | None = None) -> Iterator[Address]:
        """Yield every (thread, namespace) that has a checkpoint, or those of one
        thread.
        """

    @abstractmethod
    def delete_thread(self, thread_id: str) -> None:
        """Forget everything of a thread, in every namespace."""

    adelete_thread = async_form(delete_thread)

    # -------------------------------------------------------- optional

    def outline(self, address: Address) -> Iterator[Saved]:
        """Yield the checkpoints that `history` does; the values of channels may be left
        out.
        """
        return self.history(address)

    def lease(
        self, thread_id: str, namespace: str = "", *, on_conflict: OnConflict = "raise"
    ) -> AbstractContextManager[Lease]:
        """Hold the right to write a thread's namespace while the context is open.

        Raises:
            ThreadBusyError: Another run holds it, and *on_conflict* is ``"raise"``.
        """
        return nullcontext(Lease())

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Forget the checkpoints whose metadata has one of these ``run_id``."""
        raise self._not_offered("delete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of a thread to another, under the same checkpoint ids.

        Copying a thread that has nothing does nothing.

        Raises:
            ConfigurationError: The target has something already.
        """
        raise self._not_offered("copy_thread")

    def prune(
        self, thread_ids: Sequence[str], *, strategy: Strategy = "keep_latest"
    ) -> None:
        """Forget history: all but the newest checkpoint of each namespace, or all.

        What is kept reads as it did before.
        """
        raise self._not_offered("prune")

    def send_signal(self, thread_id: str, name: str, value: Any) -> None:
        """Keep *value* for a run that waits, or will wait, for a signal of that name.

        Once this returns it is as durable as a checkpoint.
        """
        raise self._not_offered("send_signal")

    def receive_signal(
        self, thread_id: str, name: str, receiver: str
    ) -> tuple[Any] | None:
        """Return the first value that has not been received, in a tuple; None if there
        is none.

        The value then belongs to *receiver*, the id of a call: the same receiver gets
        it again in a later attempt.
        """
        raise self._not_offered("receive_signal")

    def source_of(self, code: str) -> str:
        """Return the source of a task that has recorded calls; empty if it is not kept.

        Args:
            code: The digest of the task's code.
        """
        return ""

    def node_results(
        self, address: Address
    ) -> Iterator[tuple[str | None, AttemptRecord]]:
        """Yield the attempts of nodes whose writes led to a checkpoint, or are kept on
        it.

        They are the attempts of the checkpoint's run, the last one first, each with the
        id of the checkpoint that it started from, or None if that is not kept. No
        result is decoded. By default there are none.

        Args:
            address: The checkpoint.
        """
        return iter(())

    def keep_output(self, address: Address, part: CallOutput) -> None:
        """Append *part* to the stored output of a task.

        This must not block: the output may wait for the next commit, or for a second.
        By default nothing is kept.

        Args:
            address: The checkpoint that the task started from.
            part: The new output.
        """

    def kept_output(self, address: Address) -> list[CallOutput]:
        """Return the output of tasks so far, in the order in which they first printed.

        Args:
            address: The checkpoint that the tasks started from; without a
                ``checkpoint_id``, all tasks of the thread and namespace are meant.
        """
        return []

    def close(self) -> None:
        """Release what the saver holds; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _not_offered(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not offer {method}")
