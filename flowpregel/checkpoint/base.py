"""The contract of a saver: it keeps the checkpoints and pending writes of threads.

A saver is given `Batch` records and gives back `Saved` ones; both, and what they
consist of, are names of this module. The methods that LangGraph's programs call come on
top. A
LangGraph checkpointer becomes a saver by `flowpregel.plugins.langgraph.as_saver`,
and a saver a LangGraph checkpointer by
`flowpregel.plugins.langgraph.SaverAdapter`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

from flowpregel._core.copies import ProcessBound
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
"""Where control writes are kept: one place each, so a newer one replaces the older.

The last five are ours: under positions of their own they would take the places of
writes that the task makes when it is tried again.
"""

OnConflict: TypeAlias = Literal["raise", "wait", "takeover"]
Fences: TypeAlias = Callable[[Address, int], int]
"""Returns the fence the store knows of an address; one that is not 0 is put there
first.
"""
FLOW = "flow"
"""Under this name metadata keep whose run it is: the module and the name of a flow."""
FOLDER = "flow_folder"
"""Under this name they keep the folder that the module is imported from."""
Strategy: TypeAlias = Literal["keep_latest", "delete"]


@dataclass(slots=True, eq=False)
class Lease:
    """The right to write a thread's namespace; *fence* goes with every batch."""

    fence: int | None = None
    is_inherited: bool = False
    """Whether the process that held it before has died with it."""
    stop: Callable[[str], None] | None = None
    """Called, from any OS thread, with the reason why the owner is to stop; set by an
    owner that can.
    """
    live: Callable[[], Mapping[str, Any]] | None = None
    """Called, from any OS thread, for what the owner does now; set by an owner that can
    tell. It is fit for JSON.
    """
    drawing: Callable[[], Mapping[str, Any]] | None = None
    """Returns the graph that the owner runs, as `Graph.outline` does; set as *live*
    is.
    """


class Leases(Protocol):
    """The leases that this process holds in one store."""

    held: set[tuple[str, int]]
    """The thread and the fence of each."""

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
    """Whether `commit` keeps deltas; where not, the engine gives full values."""
    keeps_attempts: ClassVar[bool] = False
    """Whether it keeps how nodes ran beside what they wrote."""
    keeps_arguments: ClassVar[bool] = False
    """Whether `prepare` takes the arguments of calls that failed out of a batch, to
    keep them.
    """
    needs_loop: ClassVar[bool] = False
    """Whether a call may wait for the running event loop: not to be made on its OS
    thread.
    """
    commits_at_once: ClassVar[bool] = False
    """Whether a commit costs less than handing it to a writer's OS thread."""
    owns_versions: ClassVar[bool] = False
    """Whether versions come from `get_next_version` rather than from the engine."""

    @property
    def is_on_its_loop(self) -> bool:
        """Whether this OS thread runs the event loop that a call would wait for, for
        ever.
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
            lazy_results: A run goes on from it. The saver may leave the results of
                finished calls where they are, and give the run the means to read each
                when the call is replayed (`Saved.lazy_results`).
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
        """Return *batch* as `commit` may be given it later: no change of a value
        reaches it.

        Called before anybody is shown what *batch* records. By default it is *batch*.

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
        """Yield what `history` does; a saver may leave out what the channels held."""
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
        """Return the first value sent that nobody received, in a tuple; None: there is
        none.

        From then on it is *receiver*'s (the id of a call), who gets it again if it asks
        again.
        """
        raise self._not_offered("receive_signal")

    def source_of(self, code: str) -> str:
        """Return the source of a task of which calls are recorded; empty: it is not
        kept.

        Args:
            code: The digest of its code.
        """
        return ""

    def node_results(
        self, address: Address
    ) -> Iterator[tuple[str | None, AttemptRecord]]:
        """Yield how each node ran whose writes led to a checkpoint, or are kept on it.

        They are those of its run, the last one first, each with the id of the
        checkpoint that it started from; None: that is not kept. No result is decoded.
        By default there are none.

        Args:
            address: The checkpoint.
        """
        return iter(())

    def keep_output(self, address: Address, part: CallOutput) -> None:
        """Keep what a task has printed or logged, at the end of what is kept of it.

        Must not block: it may wait for the next commit, or for a second. By default
        nothing is kept.

        Args:
            address: The checkpoint that the task started from.
            part: What was added to that.
        """

    def kept_output(self, address: Address) -> list[CallOutput]:
        """Return what tasks have printed and logged so far, the first that printed
        first.

        Args:
            address: The checkpoint that they started from; without a ``checkpoint_id``,
                the thread and namespace of all of them.
        """
        return []

    def close(self) -> None:
        """Release what the saver holds; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _not_offered(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not offer {what}")
