"""The bases of all errors, and the errors of runs that are resumed.

`flowpregel.errors` exports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform


class FlowPregelError(Exception):
    """The base class of all errors that flowpregel itself raises."""


@dataclass_transform(eq_default=False)
class _DetailedError(FlowPregelError):
    """An error with fields, which are the constructor's arguments, and a message."""

    text: ClassVar[str] = ""
    """The message, with the names of fields in braces."""
    __match_args__: ClassVar[tuple[str, ...]] = ()
    """The names of the fields."""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        # Unpickling calls the constructor with `args`, so these must be the
        # constructor's arguments.
        self.args = tuple(getattr(self, name) for name in self.__match_args__)

    def __str__(self) -> str:
        return self.text.format(**vars(self))


class RunNotice(UserWarning):
    """A notice for the user of a run, such as that results of other code were used."""


class CodeChangedError(_DetailedError):
    """A recorded result is from different code (for ``on_code_change="error"``)."""

    task: str
    call: str
    recorded: str
    now: str
    text = (
        "the code of {task!r} has changed since {call} was recorded "
        "(recorded {recorded:.8}, now {now:.8}): pass on_code_change='keep' to "
        "use what is recorded, or 'rerun' to make it anew"
    )


class UnmatchedCallsError(_DetailedError):
    """A changed body makes none of a task's recorded calls, and *on_unmatched* is
    ``"error"``.
    """

    task: str
    count: int
    recorded: str
    called: str

    @property
    def summary(self) -> str:
        """The recorded calls and the new ones, in short."""
        calls = "call" if self.count == 1 else "calls"
        fit = "does" if self.count == 1 else "do"
        return (
            f"{self.count:,} recorded {calls} of {self.task} {fit} not fit "
            f"(recorded {self.recorded}, asked for {self.called})"
        )

    def __str__(self) -> str:
        return (
            f"{self.summary}: ask for what was asked before; write "
            f"@task(adopts={self.task!r}) if the task has become a method or has a new "
            "name or decorator; or pass on_unmatched='run' to make such calls again"
        )


class ReplayMismatchError(_DetailedError):
    """A body made another call than recorded, although code and input are the same."""

    recorded: str
    called: str
    text = (
        "the resumed body diverges from what was recorded, though its code and its "
        "input are the same\n  recorded: {recorded}\n  now:      {called}\nmake the "
        "body deterministic: what it calls may depend on its input and on results, not "
        "on the time, on chance, or on what changes outside"
    )


class InputMismatchError(_DetailedError):
    """A run cannot be resumed with input that differs from its first input."""

    thread_id: str
    why: str
    """The difference."""
    adopts: bool = False
    """True if the run may be resumed with the new input."""

    def __str__(self) -> str:
        if self.adopts:
            return (
                f"the run {self.thread_id!r} cannot go on with this input: {self.why}; "
                "pass the same input, or adopt=True (--adopt) to go on with the new "
                "one (what was asked before is not asked again), or start anew with "
                "another id"
            )
        return (
            f"the run of thread {self.thread_id!r} cannot go on with this input: "
            f"{self.why}; pass the same input, or invoke(None) to go on with the "
            "recorded one, or start anew with another thread_id, or without resume= "
            "and run_id="
        )


class FlowMismatchError(_DetailedError):
    """The id of a run belongs to a stored run of another workflow."""

    thread_id: str
    recorded: str
    """The name of the workflow that is recorded."""
    flow: str
    """The name of the workflow that was called."""
    text = (
        "the run {thread_id!r} is one of workflow {recorded!r}, not of "
        "{flow!r}: use another id; or, if that is its old name, write "
        "@entrypoint(..., adopts={recorded!r})"
    )


class RunDiedError(_DetailedError):
    """The process of a run ended before the run did.

    The error is passed to the workflow's ``on_failure=`` function, and never raised.
    """

    thread_id: str
    text = "the process that had the run {thread_id!r} ended before the run did"


class UnansweredError(_DetailedError):
    """A run, whose id is *thread_id*, stopped to ask the questions *interrupts*."""

    thread_id: str
    interrupts: Sequence[Any]

    def __str__(self) -> str:
        questions = "; ".join(map(repr, self.interrupts))
        return (
            f"the run {self.thread_id!r} waits for an answer: {questions}. Answer with "
            f"flow.invoke(Command(resume=...), thread_id={self.thread_id!r}), and run "
            "it again"
        )


class ResourcesError(_DetailedError):
    """A task requests more of a resource than it can ever get."""

    task: str
    resource: str
    """The name of the resource."""
    requested: float
    available: float
    """The amount of the resource in the whole pool."""
    holders: Sequence[str] = ()
    """The tasks that have the resource while they wait for this or similar calls."""

    def __str__(self) -> str:
        name = self.resource
        needs = f"task {self.task!r} needs {self.requested:,g} of {name!r}"
        total = f"{self.available:,g}"
        if self.holders:
            return (
                f"{needs}, and would wait for ever: of the {total} that there are, "
                "tasks hold too much that wait "
                f"for their own calls ({', '.join(self.holders)}); let the tasks that "
                "are called say what they take, and not those that call them"
            )
        return (
            f"{needs}, and there are {total}: ask for less, "
            f"or say that there is more with ProcessExecutor(limits={{{name!r}: ...}})"
        )
