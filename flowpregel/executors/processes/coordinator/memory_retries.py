"""The next attempts of calls that ran out of memory.

An attempt has run out of memory if the kernel's OOM killer killed its worker, or if it
raised a ``MemoryError``. The run decides whether there is another attempt, by the retry
policy of the task. The pool only remembers how the attempt ended. When the next attempt
arrives, it needs more than other calls of the task:

* With ``on_memory="alone"``, the next attempt needs all CPUs of the pool. So it begins
  when the running tasks have ended, and no other task begins beside it.
* With a factor, the next attempt claims more memory than the last one has used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from flowpregel._core.effects import Emitted, Notice
from flowpregel._core.records import Task
from flowpregel.executors.processes.coordinator.assign import InFlight, Needs
from flowpregel.executors.unread import UnreadEvent

_MOST_NOTED: Final = 1024
"""The maximum number of attempts that ran out of memory and that a pool remembers. The
limit is for the attempts of runs that have ended, because no next attempt arrives for
them.
"""


def memory_policy(task: Task) -> Literal["alone"] | float | None:
    """Return the option ``on_memory`` of the first retry policy of *task* that has one,
    or None.

    Args:
        task: The task with the retry policies.
    """
    for policy in task.node.retry:
        if policy.on_memory is not None:
            return policy.on_memory
    return None


@dataclass(slots=True, eq=False)
class MemoryNotice(UnreadEvent):
    """The notice that a call ran out of memory, and what its next attempt needs."""

    task: Task
    text: str
    """The text of the notice, which follows the description of the call."""
    is_plain = False

    def read(self) -> Emitted:
        """Return the notice as an event for the run."""
        # The description of the call is made only here, on the OS thread of the run,
        # because the call's arguments may have to be unpickled for it.
        call = self.task.call or self.task.name
        return Emitted(self.task.id, Notice(f"{call} {self.text}"))


class MemoryRetries:
    """The calls in a pool whose last attempt ran out of memory.

    Args:
        totals: The amounts of the pool's resources.
    """

    def __init__(self, totals: Mapping[str, float]) -> None:
        self.totals: Mapping[str, float] = totals
        self._used: dict[str, float] = {}
        """The memory of the last attempt in bytes, by the id of the task: the measured
        or the claimed amount, whichever is greater. The oldest entry comes first.
        """

    def note(self, task: InFlight, peak: int) -> None:
        """Note that the attempt of *task* ran out of memory.

        Args:
            task: The task of the attempt.
            peak: The peak memory of the worker in bytes, or 0 if it is unknown.
        """
        planned = task.job.task
        if memory_policy(planned) is None:
            return
        claim = 0.0
        if task.needs is not None:
            claim = task.needs.amounts.get("memory", 0.0)
        self._used[planned.id] = max(claim, peak)
        if len(self._used) > _MOST_NOTED:
            del self._used[next(iter(self._used))]

    def needs_after(self, task: InFlight, needs: Needs) -> Needs:
        """Return the needs of the next attempt of *task*. If its last attempt ran out
        of memory, send its run a notice.

        If it did not, return *needs*, the object that all calls of the task share.

        Args:
            task: The task whose next attempt has arrived.
            needs: The needs of the task's other calls.
        """
        planned = task.job.task
        used = self._used.pop(planned.id, None)
        policy = memory_policy(planned)
        if used is None or policy is None:
            return needs
        # If the memory that the last attempt used is unknown (0), the next attempt
        # claims all memory.
        claim = self.totals["memory"]
        if used:
            factor = 1.0 if policy == "alone" else policy
            claim = min(claim, used * factor)
        amounts = {**needs.amounts, "memory": claim}
        text = f"is tried again, and claims {_megabytes(claim)}"
        if policy == "alone":
            amounts["cpus"] = self.totals["cpus"]
            text = "is tried again alone in the pool"
        # Only a run on this machine can show a notice. Its mailbox has a backlog; the
        # mailbox of a remote caller has none.
        if task.mailbox.backlog is not None:
            ended = f"ran out of memory (it used {_megabytes(used)})"
            task.mailbox.post(MemoryNotice(planned, f"{ended}: it {text}"))
        return replace(
            needs, amounts=amounts, is_measured=True, is_exclusive=policy == "alone"
        )

    def has_noted(self, task: InFlight) -> bool:
        """Return whether the last attempt of *task* ran out of memory, and its next
        attempt has not begun.
        """
        return task.job.task.id in self._used


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"
