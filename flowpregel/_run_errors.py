"""The bases of all errors, and the errors of runs that are resumed.

`flowpregel.errors` exports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

from flowpregel._shell import command_line, command_words


class FlowPregelError(Exception):
    """The base class of all errors that flowpregel itself raises."""


@dataclass_transform(eq_default=False)
class _DetailedError(FlowPregelError):
    """An error with a message, and with fields that are the constructor's arguments."""

    text: ClassVar[str] = ""
    """The message, in which ``{field}`` stands for the value of a field."""
    __match_args__: ClassVar[tuple[str, ...]] = ()
    """The names of the fields."""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        # Unpickling calls the constructor with `args`, so these must be the
        # constructor's arguments.
        self.args: tuple[Any, ...] = tuple(
            getattr(self, name) for name in self.__match_args__
        )

    def __str__(self) -> str:
        return self.text.format(**vars(self))


class RunNotice(UserWarning):
    """A notice for the user of a run, for example that the run used results of
    different code.
    """


class CodeChangedError(_DetailedError):
    """A recorded result is from different code (for ``on_code_change="error"``)."""

    task: str
    call: str
    recorded: str
    now: str
    text = (
        "the code of {task!r} has changed since {call} was recorded (recorded "
        "{recorded:.8}, now {now:.8}): pass on_code_change='keep' to use the "
        "recorded result, or 'rerun' to compute it again"
    )


class UnmatchedCallsError(_DetailedError):
    """The changed code of a workflow makes none of a task's recorded calls any more,
    and *on_unmatched* is ``"error"``.
    """

    task: str
    count: int
    recorded: str
    called: str

    @property
    def summary(self) -> str:
        """A short description of the recorded calls and the new ones."""
        calls = "call" if self.count == 1 else "calls"
        fit = "does" if self.count == 1 else "do"
        return (
            f"{self.count:,} recorded {calls} of {self.task} {fit} not match the "
            f"calls made now (recorded {self.recorded}, now {self.called})"
        )

    def __str__(self) -> str:
        return (
            f"{self.summary}: make the same calls as before; write "
            f"@task(adopts={self.task!r}) if the task was renamed, decorated or "
            "turned into a method; or pass on_unmatched='run' to run the new calls"
        )


class ReplayMismatchError(_DetailedError):
    """The body of a workflow made a different call from the recorded one, although its
    code and input are the same.
    """

    recorded: str
    called: str
    text = (
        "the resumed body made another call than recorded, although its code and its "
        "input are the same\n  recorded: {recorded}\n  now:      {called}\nmake the "
        "body deterministic: its calls may depend on its input and on results, but "
        "not on the time, on chance, or on anything that changes outside"
    )


class InputMismatchError(_DetailedError):
    """A run cannot be resumed with input that differs from its first input."""

    thread_id: str
    why: str
    """A description of the difference between the two inputs."""
    adopts: bool = False
    """True if the run may be resumed with the new input."""

    @property
    def summary(self) -> str:
        """The message of the error, without the advice on what to do."""
        run = f"the run {self.thread_id!r}"
        if not self.adopts:
            run = f"the run of thread {self.thread_id!r}"
        return f"{run} cannot resume with this input: {self.why}"

    def __str__(self) -> str:
        if self.adopts:
            return (
                f"{self.summary}; pass the same input, or pass adopt=True (--adopt) to "
                "resume with the new one (recorded calls keep their results), or "
                "start a new run under another id"
            )
        return (
            f"{self.summary}; pass the same input, or call invoke(None) to resume with "
            "the recorded one, or start a new run: use another thread_id, or leave "
            "out resume= and run_id="
        )


class FlowMismatchError(_DetailedError):
    """The id of a run belongs to a stored run of another workflow."""

    thread_id: str
    recorded: str
    """The name of the workflow of the stored run."""
    flow: str
    """The name of the workflow that was called."""
    text = (
        "the run {thread_id!r} belongs to workflow {recorded!r}, not to {flow!r}: "
        "use another id; or, if {recorded!r} is its old name, write @entrypoint(..., "
        "adopts={recorded!r})"
    )


class RunDiedError(_DetailedError):
    """The process of a run ended before the run did.

    The error is passed to the workflow's ``on_failure=`` function, and never raised.
    """

    thread_id: str
    text = "the process of the run {thread_id!r} ended before the run did"


class UnansweredError(_DetailedError):
    """A run, whose id is *thread_id*, stopped to ask the questions *interrupts*."""

    thread_id: str
    interrupts: Sequence[Any]
    flow: str = "flow"
    """The name of the workflow."""
    store: str = ""
    """The path or URL of the store, or an empty string if other processes cannot open
    it.
    """

    def __str__(self) -> str:
        questions = "; ".join(map(repr, self.interrupts))
        answer = "..."
        options: list[str] = []
        if len(self.interrupts) > 1:
            ids = (getattr(question, "id", "...") for question in self.interrupts)
            answer = f"{{{', '.join(f'{name!r}: ...' for name in ids)}}}"
            options += ["--id", "ID"]
        text = (
            f"the run {self.thread_id!r} is waiting for an answer: {questions}. "
            f"Answer with {self.flow}.answer({answer}, id={self.thread_id!r})"
        )
        if self.store:
            options += ["--store", self.store]
            words = command_words("answer", self.thread_id, "ANSWER", options=options)
            text += f", or in a shell with: {command_line(words)}"
        return f"{text}; the answer resumes the run"


class ResourcesError(_DetailedError):
    """A task requests more of a resource than it can ever get."""

    task: str
    resource: str
    """The name of the resource."""
    requested: float
    available: float
    """The amount of the resource in the whole pool, or in the machine of a cluster that
    has most of it.
    """
    holders: Sequence[str] = ()
    """The tasks that occupy the resource while they wait for this call or similar
    calls.
    """
    machine: str = ""
    """The machine of a cluster that has most of the resource, or an empty string for
    resources of a pool.
    """

    def __str__(self) -> str:
        name = self.resource
        needs = f"task {self.task!r} needs {self.requested:,g} of {name!r}"
        total = f"{self.available:,g}"
        if self.holders:
            where = self.machine or "the pool"
            return (
                f"{needs}, and would wait forever: tasks that wait for their own "
                f"calls ({', '.join(self.holders)}) hold too much of the {total} in "
                f"{where}; declare resources on the called tasks, not on their "
                "callers"
            )
        if self.machine:
            return (
                f"{needs}, but no machine of the cluster has that much: the largest, "
                f"{self.machine}, has {total}; request less, or add a larger machine"
            )
        return (
            f"{needs}, but the pool has {total}: request less, or give the pool more "
            f"with ProcessExecutor(limits={{{name!r}: ...}})"
        )
