"""The calls of callback handlers when a run stops to ask a question, and when it
resumes.

A run resumes at its first superstep, and so does each run that is nested in it. Only
the outermost run stops, because a question of a nested run is also a question of the
outermost run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final
from uuid import UUID

from flowpregel._core.effects import Commit, Effect, Submit
from flowpregel._core.records import Kind
from flowpregel._core.run import Result
from flowpregel.events import (
    GraphInterruptEvent,
    GraphLifecycleStatus,
    GraphResumeEvent,
)

LIFECYCLE_METHODS: Final = ("on_interrupt", "on_resume")


class LifecycleCalls:
    """The calls of callback handlers when one run stops or resumes.

    Args:
        call: A function that calls a method of each handler.
        run_id: The id of the run, as handlers get it.
        interrupt_after: The nodes after which the run stops; ``"*"`` means all nodes.
    """

    def __init__(
        self,
        call: Callable[..., None],
        run_id: UUID,
        interrupt_after: Collection[str] = (),
    ) -> None:
        self._call = call
        self._run_id = run_id
        self._interrupt_after = interrupt_after
        self._checkpoint_id = ""
        self._namespace = ""
        self._nodes: set[str] = set()
        """The names of the nodes in the last superstep that has started."""
        self._has_resumed = False

    def begin(self, effect: Effect) -> None:
        """Note the checkpoint and the nodes of the run's superstep, if *effect* begins
        one, and call the callback handlers if the run resumes.
        """
        if isinstance(effect, Submit):
            step = effect.step
            self._checkpoint_id = step.checkpoint_id
            self._namespace = step.namespace
            planned = [task.name for task in effect.tasks if task.kind is not Kind.CALL]
            if planned:
                self._nodes = {*planned}
            if step.resuming and not self._has_resumed:
                self._has_resumed = True
                self._call("on_resume", self._resume_event())
        elif isinstance(effect, Commit) and effect.batch.checkpoint is not None:
            self._checkpoint_id = effect.batch.checkpoint.id
            self._namespace = effect.batch.address.namespace

    def end(self, result: Result) -> None:
        """Call the callback handlers if the run has stopped at a question or a
        breakpoint.
        """
        if result.paused:
            event = GraphInterruptEvent(
                run_id=self._run_id,
                status=self._status_of(result),
                checkpoint_id=self._checkpoint_id,
                checkpoint_ns=self._labels(),
                interrupts=result.interrupts,
            )
            self._call("on_interrupt", event)

    def _resume_event(self) -> GraphResumeEvent:
        return GraphResumeEvent(
            run_id=self._run_id,
            status="pending",
            checkpoint_id=self._checkpoint_id,
            checkpoint_ns=self._labels(),
        )

    def _labels(self) -> tuple[str, ...]:
        return tuple(self._namespace.split("|")) if self._namespace else ()

    def _status_of(self, result: Result) -> GraphLifecycleStatus:
        if result.interrupts:
            return "pending"
        is_after = "*" in self._interrupt_after or not self._nodes.isdisjoint(
            self._interrupt_after
        )
        return "interrupt_after" if is_after else "interrupt_before"
