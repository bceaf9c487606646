"""What a run raises that goes on, and the base of all errors; `flowpregel.errors` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class FlowPregelError(Exception):
    """The base of every error flowpregel raises itself."""


class RunNotice(UserWarning):
    """What the user of a run is to know, once: results of other code were used, for one."""


class CodeChangedError(FlowPregelError):
    """With ``on_code_change="error"``, a recorded result is one of other code than now."""

    def __init__(self, task: str, call: str, recorded: str, now: str) -> None:
        super().__init__(task, call, recorded, now)
        self.task, self.call, self.recorded, self.now = task, call, recorded, now

    def __str__(self) -> str:
        return (
            f"the code of {self.task!r} has changed since {self.call} was recorded "
            f"(recorded {self.recorded[:8]}, now {self.now[:8]}): pass on_code_change='keep' to "
            "use what is recorded, or 'rerun' to make it anew"
        )


class ReplayMismatchError(FlowPregelError):
    """A body whose code and input are the same made another call than the one recorded."""

    def __init__(self, recorded: str, called: str) -> None:
        super().__init__(recorded, called)
        self.recorded, self.called = recorded, called

    def __str__(self) -> str:
        return (
            "the resumed body diverges from what was recorded, though its code and its input "
            "are the same\n"
            f"  recorded: {self.recorded}\n"
            f"  now:      {self.called}\n"
            "make the body deterministic: what it calls may depend on its input and on results, "
            "not on the time, on chance, or on what changes outside"
        )


class InputMismatchError(FlowPregelError):
    """A run that was to go on was started with other input than it is now given.

    *thread_id* names its thread, *why* says what is different, *adopts* whether it may go on
    with the new input.
    """

    def __init__(self, thread_id: str, why: str, adopts: bool = False) -> None:
        super().__init__(thread_id, why, adopts)
        self.thread_id, self.why, self.adopts = thread_id, why, adopts

    def __str__(self) -> str:
        if self.adopts:
            return (
                f"the run {self.thread_id!r} cannot go on with this input: {self.why}; pass the "
                "same input, or adopt=True (--adopt) to go on with the new one (what was asked "
                "before is not asked again), or start anew with another id"
            )
        return (
            f"the run of thread {self.thread_id!r} cannot go on with this input: {self.why}; "
            "pass the same input, or invoke(None) to go on with the recorded one, or start anew "
            "with another thread_id, or without resume= and run_id="
        )


class FlowMismatchError(FlowPregelError):
    """Under the id of a run is kept the work of another workflow.

    *recorded* names that one, *flow* the one that was to run.
    """

    def __init__(self, thread_id: str, recorded: str, flow: str) -> None:
        super().__init__(thread_id, recorded, flow)
        self.thread_id, self.recorded, self.flow = thread_id, recorded, flow

    def __str__(self) -> str:
        return (
            f"the run {self.thread_id!r} is one of workflow {self.recorded!r}, not of "
            f"{self.flow!r}: use another id; or, if that is its old name, write "
            f"@entrypoint(..., adopts={self.recorded!r})"
        )


class RunDiedError(FlowPregelError):
    """The process of a run ended before the run did; told to its ``on_failure=``, never raised."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id)
        self.thread_id = thread_id

    def __str__(self) -> str:
        return f"the process that had the run {self.thread_id!r} ended before the run did"


class UnansweredError(FlowPregelError):
    """A run stopped to ask; *interrupts* are its questions, *thread_id* is its id."""

    def __init__(self, thread_id: str, interrupts: Sequence[Any]) -> None:
        super().__init__(thread_id, tuple(interrupts))
        self.thread_id, self.interrupts = thread_id, tuple(interrupts)

    def __str__(self) -> str:
        asked = "; ".join(map(repr, self.interrupts))
        return (
            f"the run {self.thread_id!r} waits for an answer: {asked}. Answer with "
            f"flow.invoke(Command(resume=...), thread_id={self.thread_id!r}), and run it again"
        )


class ResourcesError(FlowPregelError):
    """A task asks for more of a resource than it can ever get.

    *task* names it, *resource* what it lacks, *asked* how much of that it wants and *there* how
    much there is; *holders* are the tasks that hold it and wait for this one or its like.
    """

    def __init__(
        self, task: str, resource: str, asked: float, there: float, holders: Sequence[str] = ()
    ) -> None:
        super().__init__(task, resource, asked, there, holders)
        self.task, self.resource, self.asked = task, resource, asked
        self.there, self.holders = there, holders

    def __str__(self) -> str:
        name, asked, there = self.resource, f"{self.asked:,g}", f"{self.there:,g}"
        if self.holders:
            return (
                f"task {self.task!r} needs {asked} of {name!r}, and would wait for ever: of the "
                f"{there} that there are, tasks hold too much that wait for their own calls "
                f"({', '.join(self.holders)}); let the tasks that are called say what they take, "
                "and not those that call them"
            )
        return (
            f"task {self.task!r} needs {asked} of {name!r}, and there are {there}: ask for less, "
            f"or say that there is more with ProcessExecutor(limits={{{name!r}: ...}})"
        )
