"""The calls of one body (the code of a workflow or task that makes calls), with their
order, failures and records.

Each attempt runs the body again. `CallSequence` counts the calls of the present
attempt; `BodyCalls` has the state that all attempts share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowpregel._core.equal_calls import ReorderedCalls
from flowpregel._core.ids import CallRecord
from flowpregel._core.records import Outcome, Task, Write


class CallFailure(NamedTuple):
    """The failure of a call that a body (the code of a workflow or task) has made."""

    task: Task
    error: BaseException | None
    """The exception, or None if the present attempt of the body did not make the
    call.
    """
    is_late: bool
    """True if the body had ended before the call failed."""


@dataclass(slots=True, eq=False)
class CallSequence:
    """The calls that the present attempt of a body (the code of a workflow or task) has
    made, in order.
    """

    call_count: int = 0
    position: int = 0
    """The number of calls so far whose order is determined by the body's code. The next
    such call gets this number as its position.
    """
    graph_count: int = 0
    """The number of the calls that run a graph."""
    occurrences: dict[tuple[str, str], int] = field(default_factory=dict)
    """The number of calls made so far, by the task's name and the digest of the
    arguments. Calls for which both are the same are equal calls.
    """
    open_tasks: dict[Any, Task] = field(default_factory=dict)
    """The tasks of the calls that have not ended, by `effects.Call.reply`."""
    reordered: ReorderedCalls = field(default_factory=ReorderedCalls)
    """The calls that got the result recorded for another, equal call."""
    used: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of results that the body used, by the name of the called task and the
    digest of the code that made them. A file in the arguments of a call has an entry
    too: its size, by its name and a digest of the content.
    """


@dataclass(slots=True, eq=False)
class BodyCalls:
    """The calls that a body (the code of a workflow or task) has made in all its
    attempts.
    """

    may_repeat: bool
    """True if a later attempt of the body may make the same calls, and get their
    results from this object.
    """
    caller: str = ""
    """A digest of the body's code and input, or an empty string until a call is
    recorded.
    """
    sequence: CallSequence = field(default_factory=CallSequence)
    running: int = 0
    """The number of calls that have not ended yet."""
    failures: dict[str, CallFailure] = field(default_factory=dict)
    """The failed calls, by task id."""
    observed_failures: Collection[str] | None = None
    """The ids of the calls whose failures the body has seen, or None if the body's
    executor does not report them.
    """
    interrupts: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """The interrupts of the calls, by task path."""
    outcome: Outcome | None = None
    """The outcome of a body that has ended while its calls still run."""
    recorded: dict[str, Sequence[Write]] = field(default_factory=dict)
    """The writes of calls that ended in this superstep, by task id. Nothing is added if
    the body cannot repeat its calls.
    """
    executed: dict[int, CallRecord] = field(default_factory=dict)
    """The calls that ran, by their position in the body. Nothing is added if the body
    cannot repeat its calls.
    """
    replayed: int = 0
    """The number of calls that the present attempt has made, and that an earlier run
    had recorded. They are counted only for the body of a planned task, not for a body
    that was itself called.
    """
    has_new_result: bool = False
    """True if a recorded result was computed again. Later calls of the body may depend
    on the result, so they may differ from the recorded calls.
    """

    def restart(self) -> None:
        """Begin an empty sequence of calls, because an attempt has ended and the next
        one makes its calls again.
        """
        self.sequence = CallSequence()
        self.replayed = 0
