"""The context of a task: one context variable, and the functions that read it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from flowpregel._core.commands import Interrupt
from flowpregel._core.effects import Notice, Report, StepContext
from flowpregel._core.ids import text_digest
from flowpregel._core.questions import NOTHING_KNOWN, AskedQuestions
from flowpregel._core.records import Interrupted, Task, Write
from flowpregel._pickling.copies import private_copy
from flowpregel.carried import headers_in, trace_headers
from flowpregel.errors import INVALID_RESUME, ConfigurationError, GraphInterrupt

PROGRESS_EVERY: Final = 0.05
"""Seconds for which a report of progress without a new message is left out."""
NOTHING_REPORTED: Final = (float("-inf"), None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunInfo:
    """The facts about a run that all tasks of the run may use."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """The config that the user gave; `get_config` adds the parts of the single task."""
    context: Any = None
    """The run's context, as the user gave it."""
    thread_id: str | None = None
    run_id: str | None = None
    has_saver: bool = False
    """Whether questions can be kept until they are answered."""
    store: Any = None
    """The long-term store, if there is one."""
    control: Any = None
    """The `RunControl` that may ask the run to stop, if there is one."""
    outer_runs: tuple[tuple[Any, ...], ...] = ()
    """The stores, threads and namespaces of the runs around the tasks, its own among
    them: those whose stores another process can open.
    """
    executor: Any = None
    """The executor of nodes that name none; unknown in a worker."""
    ending: list[str] = field(default_factory=list)
    """Why it was told to end in time; empty: it was not. In the coordinator alone."""

    def keep_output(self, job: Job, text: str) -> None:
        """Keep what a task of the run has printed or logged; in the coordinator
        alone.
        """


_NO_RUN = RunInfo()


@dataclass(slots=True, eq=False)
class Job:
    """One attempt of one task: what an executor is given, and what code inside the task
    can see.
    """

    task: Task
    """The task, planned by the core. Every executor gets the callable and the writers
    of the node.
    """
    place: StepContext
    """The superstep that the task belongs to. Its channels, in a worker those named by
    ``node.reads``, are the run's own: a reader copies before it applies anything."""
    run: RunInfo = _NO_RUN
    key: tuple[str, int] = ("", 1)
    """The key of the attempt's events: the id of the task, and the attempt's number.
    The task may have begun its next attempt by now.
    """
    compares: bool = False
    """True if the calls it makes are recorded, and compared with the record."""
    variables: Context = field(default_factory=Context)
    """Context variables for it to run with; others may run with the same, so it is
    given a copy.
    """
    executor: Any = None
    """The `Executor` that it was given to, in the process that started it."""
    owner: Any = None
    """The active run whose task it is, in the same process; opaque here."""
    priority: int = 0
    """The priority among the waiting jobs of the run: the highest goes first."""


def nothing(*_: Any) -> None:
    """Do nothing: the stream writer and its kin, for code outside a run."""


@dataclass(slots=True, eq=False)
class RunClient:
    """The task's ends of what connects it to its run; by default to none."""

    emit: Callable[[Any], None] = nothing
    """Give the run's stream a custom chunk, or a `Report`."""
    call: Callable[..., Any] = nothing
    """Make a call (node, arguments, what it asks for if it is recorded); returns its
    future, which may be given.
    """
    beat: Callable[[], None] = nothing
    """Show that the task is alive."""
    save: Callable[[Any], None] = nothing
    """Keep a state for the task's next attempt."""
    is_ending: Callable[[], bool | None] = nothing
    """Return True if the run was told to end soon."""


@dataclass(slots=True, eq=False)
class Scope:
    """The objects that the code of one attempt can reach."""

    job: Job
    ends: RunClient
    questions: AskedQuestions | None = None
    """The questions of the attempt, once it has asked one."""
    question: GraphInterrupt | None = None
    """The question without an answer; the code of the task may have caught it."""
    refused: Interrupted | None = None
    """The question whose answer did not fit, though its code may have caught that."""
    writes: list[Write] = field(default_factory=list)
    """The writes of the attempt so far."""
    deferred: set[Any] = field(default_factory=set)
    """For each call that waits for others, a future that is done when the call is made.
    For each stream of results that is not at its end, the object that gives up its
    calls.
    """
    streams: int = 0
    """The number of streams of random numbers that the attempt was given."""
    files: Any = None
    """The `AttemptFiles` of the attempt, if it has any."""
    reported: tuple[float, str | None] = NOTHING_REPORTED
    """The time of the last report of progress (monotonic seconds), and its message."""

    def read(self, names: Sequence[str], *, fresh: bool) -> dict[str, Any]:
        """Return the available ones of the channels *names*.

        Args:
            names: The names; the node must have declared them in its ``reads``.
            fresh: True: with this task's own writes applied, and no others.
        """
        values: dict[str, Any] = {}
        own_writes: dict[str, list[Any]] = {}
        for name, value in self.writes if fresh else ():
            own_writes.setdefault(name, []).append(value)
        step = self.job.place
        for name in names:
            if name in step.managed:
                values[name] = step.managed[name].get(step.step, step.stop)
                continue
            channel = step.channels[name]
            if fresh and (name in own_writes or channel.reacts_to_silence):
                channel = channel.copy()
                channel.update(own_writes.get(name, ()))
            if channel.is_available():
                values[name] = channel.get()
        return values

    def asked_questions(self) -> AskedQuestions:
        """Return the questions of the attempt."""
        if self.questions is None:
            task = self.job.task
            known = task.attempt.questions or NOTHING_KNOWN
            self.questions = AskedQuestions(
                task.name, task.namespace, known, len(task.attempt.answers)
            )
        return self.questions

    def end_questions(self) -> None:
        """Tell the user of the answers that the task, which has returned, did not ask
        for.

        Raises:
            GraphInterrupt: It asked, and an `except` that catches everything caught the
                question.
        """
        if self.question is not None:
            raise self.question
        if self.job.task.attempt.questions is not None:
            self.asked_questions().note_unused()
            self.tell_notices()

    def tell_notices(self) -> None:
        """Give the user the notices about the questions so far."""
        if self.questions is not None:
            notices, self.questions.notices = self.questions.notices, []
            for text in notices:
                self.ends.emit(Notice(text))

    def rng(self) -> Any:
        """Return random numbers of this call's own; see `Runtime.rng`."""
        job, used, self.streams = self.job, self.streams, self.streams + 1
        position = job.run.thread_id, job.place.namespace, job.place.step
        seed = int(text_digest(*position, *job.task.stream, used), 16)
        try:
            from numpy.random import default_rng  # noqa: PLC0415 - only where it is installed
        except ImportError:
            return Random(seed)
        return default_rng(seed)

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report the progress of the task; see `report_progress`."""
        report = Report(
            _number(done, "done"),
            None if total is None else _number(total, "total"),
            message,
        )
        now = time.monotonic()
        last, last_message = self.reported
        if (
            now < last + PROGRESS_EVERY
            and message == last_message
            and report.done != report.total
        ):
            return
        self.reported = now, message
        self.ends.emit(report)


def _number(value: Any, name: str) -> float:
    """Return *value* as a plain number: it goes to other processes, and into JSON."""
    if type(value) is int or type(value) is float:
        return value
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"progress({name}={value!r}): use a number") from error


current: ContextVar[Scope | None] = ContextVar("flowpregel_scope", default=None)
"""The attempt that the running code belongs to."""


def current_scope(asked_by: str) -> Scope:
    """Return the scope of the running task.

    Raises:
        RuntimeError: The code does not run inside a task; *asked_by* is named.
    """
    scope = current.get()
    if scope is None:
        raise RuntimeError(
            f"{asked_by} was called outside of a run: call it from a node, a task or "
            "an entrypoint (an OS thread you start yourself needs "
            "contextvars.copy_context().run)"
        )
    return scope


def get_config() -> dict[str, Any]:
    """Return the config of the run the calling code belongs to.

    Beside what the user passed, ``metadata`` says which step, node and triggers
    the code runs for, and ``configurable`` where its checkpoints are.

    Raises:
        RuntimeError: Called outside of a run.
    """
    return config_of(current_scope("get_config()"))


def config_of(scope: Scope) -> dict[str, Any]:
    """Return the config that the task of *scope* is shown."""
    job, task = scope.job, scope.job.task
    config = dict(job.run.config)
    config["metadata"] = {
        **config.get("metadata", {}),
        **labels_of(task, job.place.step),
    }
    config["configurable"] = {
        **config.get("configurable", {}),
        "checkpoint_ns": task.namespace,
        "checkpoint_id": job.place.checkpoint_id,
    }
    return config


def labels_of(task: Task, step: int) -> dict[str, Any]:
    """Return the entries of a *task* of superstep *step* in its metadata."""
    return {
        "langgraph_step": step,
        "langgraph_node": task.name,
        "langgraph_triggers": task.triggers,
        "langgraph_path": task.path,
        "langgraph_checkpoint_ns": task.namespace,
    }


def get_store() -> Any:
    """Return the run's long-term store.

    Raises:
        RuntimeError: Called outside of a run, or the run has no store.
    """
    store = current_scope("get_store()").job.run.store
    if store is None:
        raise RuntimeError(
            "this run has no store: pass store= where the graph is built"
        )
    return store


def get_trace_context() -> dict[str, str]:
    """Return the W3C trace headers for what the calling code asks of other services.

    They are those of the current OpenTelemetry span; without one, those of the
    span its caller was in, in whichever process; without one, what the run's
    ``configurable`` has under ``traceparent`` and ``tracestate``. May be empty.

    Example:
        >>> get_trace_context()
        {}
    """
    headers, scope = trace_headers(), current.get()
    if headers or scope is None:
        return headers
    return dict(headers_in(scope.job.run.config))


def get_stream_writer() -> Callable[[Any], None]:
    """Return the function that gives the run's ``custom`` stream a chunk.

    Raises:
        RuntimeError: Called outside of a run.
    """
    return current_scope("get_stream_writer()").ends.emit


def report_progress(
    done: float, total: float | None = None, message: str | None = None
) -> None:
    """Report the progress of the running task to live views and streams of mode
    ``progress``.

    A report arrives while the task runs, labelled with the task, and is a sign of life
    for an idle timeout. Call this as often as you like: of reports that follow each
    other within 50 ms, with the same message, only the first is sent, and the one with
    ``done == total``. ``runtime.progress`` is the same.

    Args:
        done: The amount that is done, in any unit.
        total: The amount of all the work; None if that is not known.
        message: What it is doing.

    Raises:
        ConfigurationError: *done* or *total* is no number.
        RuntimeError: Called outside of a run.

    Example:
        >>> from flowpregel.func import entrypoint
        >>> @entrypoint()
        ... def flow(count: int) -> None:
        ...     for number in range(count):
        ...         report_progress(number + 1, count, "counting")
        >>> [part["done"] for part in flow.stream(1, stream_mode="progress")]
        [1]
    """
    current_scope("report_progress()").progress(done, total, message)


def interrupt(value: Any, *, response_schema: Any = None) -> Any:
    """Stop the run to ask *value*, and return the answer when it is resumed.

    The task is run again from its beginning on each resume; an interrupt that
    was answered returns its answer at once. A question is known by what it asks.
    If the same code asks something else in its place, the answer counts by order, and
    the user gets a notice; if other code does, the new question is asked.

    Args:
        value: What is asked; anything that can be kept.
        response_schema: A pydantic model, dataclass or TypedDict, which an answer must
            fit and becomes (with pydantic installed); or a JSON schema, which is only
            shown to whoever answers.

    Raises:
        GraphInterrupt: There is no answer yet (control flow: let it pass).
        pydantic.ValidationError: The answer does not fit. It is not kept, and the
            question waits for another; `is_invalid_resume` tells this error from
            others.
        ConfigurationError: The run has no checkpointer to keep the question.

    Example:
        >>> def approve(state):  # a node
        ...     return {"approved": interrupt({"really?": state["amount"]})}
    """
    scope = current_scope("interrupt()")
    task = scope.job.task
    if not scope.job.run.has_saver:
        raise ConfigurationError(
            f"node {task.name!r} called interrupt(), but the run has no checkpointer "
            "to keep the question until it is answered: pass checkpointer="
        )
    if scope.question is not None:
        raise scope.question  # it was caught, and still has no answer
    questions = scope.asked_questions()
    index = questions.find(value)
    scope.tell_notices()
    adapter: Any = None if response_schema is None else _adapter_of(response_schema)
    # A copy: the answers may be recorded again, with one that is refused.
    if questions.is_answered(index) and adapter is None:
        return private_copy(task.attempt.answers[index])
    schema = response_schema if adapter is None else adapter.json_schema()
    question = Interrupt(value, questions.records[index].id, schema)
    if not questions.is_answered(index):
        scope.question = GraphInterrupt((question,))
        raise scope.question
    try:
        return adapter.validate_python(private_copy(task.attempt.answers[index]))
    except Exception as error:
        setattr(error, INVALID_RESUME, question.id)
        others = task.attempt.answers[:index] + task.attempt.answers[index + 1 :]
        scope.refused = Interrupted(
            (question,), others, error, questions.without_answer(index)
        )
        raise


def _adapter_of(schema: Any) -> Any:
    """Return an adapter that makes answers fit *schema*; None: they need none."""
    if isinstance(schema, Mapping):
        return None
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415 - only when asked for
    except ImportError:
        return None
    return TypeAdapter(schema)
