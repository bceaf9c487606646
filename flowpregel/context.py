"""The context of a task: one context variable, and the functions that read it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from math import inf, nan
from random import Random
from typing import Any, Final, cast

from flowpregel._core.commands import Interrupt
from flowpregel._core.effects import (
    Notice,
    Report,
    StepContext,
    labels_of,
)
from flowpregel._core.ids import Preview, text_digest
from flowpregel._core.metric_series import (
    MetricPoint,
    MetricSeries,
    MetricValues,
    UnsentPoints,
)
from flowpregel._core.prepared_writes import prepared_writes
from flowpregel._core.previews import (
    LONGEST_NAME,
    MOST_FIELDS,
    NO_PREVIEW,
    PreviewDraft,
    field_value,
)
from flowpregel._core.questions import NOTHING_KNOWN, AskedQuestions
from flowpregel._core.records import Interrupted, Task, Write
from flowpregel._pickling.copies import private_copy
from flowpregel.carried import carry, headers_in, trace_headers
from flowpregel.channels.base import PrepareWrite
from flowpregel.errors import INVALID_RESUME, ConfigurationError, GraphInterrupt

PROGRESS_EVERY: Final = 0.05
"""Seconds after a progress report during which reports with the same message are
dropped.
"""
NOTHING_REPORTED: Final = (float("-inf"), None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunInfo:
    """The information about a run that is the same for all tasks of the run."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """The config that the user passed; `get_config` adds the parts for a single task.
    """
    context: Any = None
    """The run's context, as the user passed it."""
    thread_id: str | None = None
    run_id: str | None = None
    has_saver: bool = False
    """True if the run has a checkpointer, which can store interrupts until they are
    answered.
    """
    store: Any = None
    """The long-term store, if there is one."""
    control: Any = None
    """The `RunControl` that may ask the run to stop, if there is one."""
    checks_mutations: bool = False
    """True to check whether tasks change their arguments in place, and to name these
    arguments in a notice to the user.
    """
    outer_runs: tuple[tuple[Any, ...], ...] = ()
    """The store, thread and namespace of this run and of each outer run, if another
    process can open the store.
    """
    executor: Any = None
    """The executor of nodes that name no executor. It is not set in a worker."""
    ending: list[str] = field(default_factory=list)
    """A list that contains the reason why the run was asked to end, and is empty before
    that. It is used only in the coordinator.
    """

    def keep_output(self, job: Job, text: str) -> None:
        """Store text that a task of the run has printed or logged. Here this does
        nothing; the subclass for runs in the coordinator stores the text.
        """


_NO_RUN = RunInfo()


@dataclass(slots=True, eq=False)
class Job:
    """One attempt of one task, as an executor receives it and as the code inside the
    task sees it.
    """

    task: Task
    """The task, planned by the core. It contains the function of the node, and the
    functions that write the node's output to channels.
    """
    step: StepContext
    """The superstep that the task belongs to. Its channels (in a worker, only those
    named by ``node.reads``) are shared with the run: a reader must copy a channel
    before applying writes to it.
    """
    run: RunInfo = _NO_RUN
    key: tuple[str, int] = ("", 1)
    """The key of the attempt's events: the id of the task, and the number of this
    attempt. The number is needed because the task may already be in its next attempt
    when an event arrives.
    """
    compares: bool = False
    """True if the calls that the task makes are recorded, and compared with the
    recorded calls of earlier attempts and runs.
    """
    variables: Context = field(default_factory=Context)
    """The `contextvars.Context` of the task. The task runs in a copy, because other
    tasks may share the same context.
    """
    executor: Any = None
    """The `Executor` that got the job, in the process that submitted it."""
    owner: Any = None
    """The active run that the task belongs to, if it is in the same process. This
    module does not use its attributes.
    """
    priority: int = 0
    """The priority among the waiting jobs of the run. The highest starts first."""
    preview: Preview = NO_PREVIEW
    """The preview of the call (short texts and numbers that views show), once the
    attempt has ended in this process.
    """


def nothing(*_: Any) -> None:
    """Do nothing, in place of the stream writer and similar functions outside a run."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The corrected cost of a running task. It is sent to the run in the same way as a
    chunk of the stream, but it does not appear in the stream.
    """

    tokens: float


@dataclass(slots=True, eq=False)
class RunClient:
    """The functions through which a task reaches its run. By default they do
    nothing.
    """

    emit: Callable[[Any], None] = nothing
    """A function that adds a custom chunk, or a `Report`, to the run's stream."""
    call: Callable[..., Any] = nothing
    """A function that makes a call, and returns its future. The arguments are the node,
    the arguments of the call, the call's key if the call is recorded, and optionally
    the future to complete with the result.
    """
    beat: Callable[[], None] = nothing
    """A function that reports that the task is alive."""
    save: Callable[[Any], None] = nothing
    """A function that stores a state for the task's next attempt."""
    channels: Callable[[Sequence[str]], Any] = nothing
    """A function that returns the run's channels and managed values with the given
    names, as two dicts. If it returns None, the task already has all channels of the
    run.
    """
    is_ending: Callable[[], bool | None] = nothing
    """A function that returns True if the run was asked to end soon."""
    open_calls: Any = None
    """The calls of the attempt (an `OpenCalls`), or None if it can make no calls."""


@dataclass(slots=True, eq=False)
class Scope:
    """The objects that the code of one attempt can reach."""

    job: Job
    run_client: RunClient
    add_report: Callable[..., None] = nothing
    """Add the preview of a value to the preview of the call: ``add_report(scope, value,
    title)``.
    """
    preview: PreviewDraft | None = None
    """The preview of the call, if it is recorded and has arguments, metrics or
    reports.
    """
    questions: AskedQuestions | None = None
    """The questions (interrupts) of the attempt, once it has asked one."""
    question: GraphInterrupt | None = None
    """The raised interrupt that has no answer yet. The task's code may have caught the
    interrupt.
    """
    refused: Interrupted | None = None
    """The interrupt whose answer did not fit the response schema. The task's code may
    have caught the validation error.
    """
    writes: list[Write] = field(default_factory=list)
    """The writes that the attempt has made so far."""
    deferred: set[Any] = field(default_factory=set)
    """The work to finish when the body returns: for each call that waits for other
    calls, a future that is done when the call is made; for each unfinished stream of
    results, the object that cancels the stream's calls.
    """
    streams: int = 0
    """The number of random number generators that the attempt has created."""
    files: Any = None
    """The `AttemptFiles` of the attempt, if it has any."""
    reported: tuple[float, str | None] = NOTHING_REPORTED
    """The time (monotonic seconds) and the message of the last progress report."""

    def read(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of the channels *names* that have a value, with the task's
        own writes applied, and no other writes.

        Args:
            names: Channel names, which the node must have declared in its ``reads``.
        """
        values: dict[str, Any] = {}
        own_writes: dict[str, list[Any]] = {}
        step = self.job.step
        for name, value in self.writes:
            own_writes.setdefault(name, []).append(value)
        for name in names:
            if name in step.managed:
                values[name] = step.managed[name].get(step.step, step.stop)
                continue
            channel = step.channels[name]
            if name in own_writes or channel.reacts_to_silence:
                channel = channel.copy()
                updates: Sequence[Any] = own_writes.get(name, ())
                if channel.prepares_with is not None:
                    updates = self._prepared_updates(name, channel.prepares_with)
                channel.update(updates)
            if channel.is_available():
                values[name] = channel.get()
        return values

    def fetch(self, names: Sequence[str]) -> set[str]:
        """Get the channels *names* from the run, unless this process has them.

        Returns:
            Those of *names* that exist.
        """
        step = self.job.step
        missing = [name for name in names if not _has_channel(step, name)]
        fetched = self.run_client.channels(missing) if missing else None
        if fetched is not None:
            # Only a task whose run is in another process fetches channels, so the two
            # dicts of the superstep belong to this task alone. They are changed in
            # place and not replaced, because another OS thread of the task may add to
            # them at the same time.
            channels, managed = fetched
            cast("dict[str, Any]", step.channels).update(channels)
            cast("dict[str, Any]", step.managed).update(managed)
        return {name for name in names if _has_channel(step, name)}

    def read_at_start(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the values that the channels *names* had at the start of the
        superstep. Channels without a value are left out.

        Args:
            names: Channel names, which the node must have declared in its ``reads``.
        """
        values: dict[str, Any] = {}
        step = self.job.step
        for name in names:
            if name in step.managed:
                values[name] = step.managed[name].get(step.step, step.stop)
            elif step.channels[name].is_available():
                values[name] = step.channels[name].get()
        return values

    def _prepared_updates(self, name: str, prepare: PrepareWrite) -> list[Any]:
        """Return the values that the task has written to a channel so far, completed by
        *prepare* (for example, with the ids of messages) as the run will complete them
        when the task has ended.

        Args:
            name: The name of the channel.
            prepare: The channel's function that prepares writes.
        """
        writes = prepared_writes({name: prepare}, self.job.task.id, self.writes)
        return [value for channel, value in writes if channel == name]

    def asked_questions(self) -> AskedQuestions:
        """Return the questions (interrupts) of the attempt, which are created when they
        are first needed.
        """
        if self.questions is None:
            task = self.job.task
            known = task.attempt.questions or NOTHING_KNOWN
            self.questions = AskedQuestions(
                task.name, task.namespace, known, len(task.attempt.answers)
            )
        return self.questions

    def end_questions(self) -> None:
        """Emit notices about answers that the task has not used, when it returns.

        Raises:
            GraphInterrupt: The task has an unanswered interrupt, which an `except` that
                catches everything has caught.
        """
        if self.question is not None:
            raise self.question
        if self.job.task.attempt.questions is not None:
            self.asked_questions().notify_unused()
            self.emit_notices()

    def emit_notices(self) -> None:
        """Emit the notices about the questions (interrupts) that the task has asked so
        far.
        """
        if self.questions is not None:
            notices, self.questions.notices = self.questions.notices, []
            for text in notices:
                self.run_client.emit(Notice(text))

    def rng(self) -> Any:
        """Return a new random number generator for this call, as `Runtime.rng` does."""
        job, used, self.streams = self.job, self.streams, self.streams + 1
        position = job.run.thread_id, job.step.namespace, job.step.step
        seed = int(text_digest(*position, *job.task.stream, used), 16)
        try:
            from numpy.random import default_rng  # noqa: PLC0415 - if it is installed
        except ImportError:
            return Random(seed)
        return default_rng(seed)

    def preview_draft(self) -> PreviewDraft | None:
        """Return the preview of the running task, or None if the run is not stored."""
        if self.preview is None and self.job.run.has_saver:
            self.preview = PreviewDraft()
        return self.preview

    def metric(self, name: str, value: float, step: float | None = None) -> None:
        """Record a number with the running task, as `Runtime.metric` does."""
        if not 0 < len(name) <= LONGEST_NAME:
            raise ConfigurationError(
                f"metric({name!r}, ...): use a name of 1 to {LONGEST_NAME} characters"
            )
        try:
            number = float(value)
            position = nan if step is None else float(step)
        except (TypeError, ValueError) as error:
            step_text = "" if step is None else f", step={step!r}"
            raise ConfigurationError(
                f"metric({name!r}, {value!r}{step_text}): use a number"
            ) from error
        draft = self.preview_draft()
        if draft is None:
            return
        metrics = draft.parts.setdefault("m", {})
        if name not in metrics and len(metrics) >= MOST_FIELDS:
            raise ConfigurationError(
                f"metric({name!r}, ...): a task can record {MOST_FIELDS} metrics"
            )
        metrics[name] = field_value(value if type(value) is int else number)
        if draft.series is None or draft.unsent is None:
            draft.series = {}
            draft.unsent = UnsentPoints()
        now = time.monotonic()
        series = draft.series.setdefault(name, MetricSeries())
        series.add(now, number, position)
        unsent = draft.unsent.add(name, MetricPoint(now, number, position))
        if unsent:
            self._send_points(unsent)

    def _send_points(self, points: Mapping[str, Sequence[MetricPoint]]) -> None:
        """Send values of the metrics to the readers of the run's activity, such as the
        page.

        Args:
            points: The points by the names of the metrics, with monotonic times.
        """
        clock_offset = time.time() - time.monotonic()
        sent: dict[str, list[MetricPoint]] = {}
        for name, series in points.items():
            sent[name] = [
                point._replace(at=point.at + clock_offset) for point in series
            ]
        self.run_client.emit(MetricValues(sent))

    def spent(self, tokens: float) -> None:
        """Correct the cost of the running task, as `Runtime.spent` does."""
        amount = _number(tokens, "spent")
        if not 0 <= amount < inf:
            raise ConfigurationError(f"spent({tokens!r}): use a number of 0 or more")
        self.run_client.emit(Spent(amount))

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report the progress of the task, as `report_progress` does."""
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
        self.run_client.emit(report)


def _has_channel(step: StepContext, name: str) -> bool:
    """Return whether *step* has a channel or a managed value of this name."""
    return name in step.channels or name in step.managed


def _number(value: Any, name: str) -> float:
    """Return *value* as a plain number, which can be sent to other processes and
    converted to JSON.
    """
    if type(value) is int or type(value) is float:
        return value
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"progress({name}={value!r}): use a number") from error


@dataclass(slots=True)
class PathRun:
    """One call of the path function of a conditional edge."""

    output: Any = None
    """The result of the path function, once the function has returned."""
    delay: Awaitable[None] | None = None
    """An awaitable that finishes the pending calls of async callback handlers, or None.
    It must be awaited before the function is called.
    """


class NodeCallbacks:
    """LangChain's callback handlers for the code of one attempt. This base class calls
    none; the engine's subclass does.
    """

    def enter(
        self, scope: Scope, call: Callable[..., Any], *, on_loop: bool
    ) -> Generator[Awaitable[None], None, Callable[..., Any]]:
        """Make the callback handlers available to the code of an attempt that begins.

        Args:
            scope: The scope of the attempt.
            call: A function that calls one of the node's callables (its steps).
            on_loop: Whether the attempt runs on an event loop.

        Yields:
            The objects that the attempt must await before it calls the node.

        Returns:
            The function to use in place of *call*.
        """
        raise NotImplementedError

    def path(
        self, scope: Scope, name: str | None, tag: str, state: Any, *, on_loop: bool
    ) -> AbstractContextManager[PathRun]:
        """Return a context manager that calls the callback handlers when the path
        function of a conditional edge starts and ends.

        Args:
            scope: The scope of the attempt.
            name: The name of the function, or None for a ``Runnable``, which calls the
                handlers itself.
            tag: The tag with which the function's run is reported.
            state: The input of the function.
            on_loop: Whether the function is awaited on an event loop.
        """
        raise NotImplementedError


node_callbacks: ContextVar[NodeCallbacks | None] = carry(
    ContextVar("node_callbacks", default=None)
)
"""The callback handlers for the running attempt, or None if the run has none."""
callback_manager: ContextVar[Any] = ContextVar("callback_manager", default=None)
"""LangChain's callback manager for the code of the running attempt, or None."""
current: ContextVar[Scope | None] = ContextVar("flowpregel_scope", default=None)
"""The scope of the attempt that the running code belongs to."""


configurable_of_tasks: Final[dict[str, Any]] = {}
"""Entries that plug-ins add to the ``configurable`` of the config that tasks get. Each
process has its own. The values must be picklable, because code may send its config to
another process.
"""


def current_scope(asked_by: str) -> Scope:
    """Return the scope of the running task.

    Raises:
        RuntimeError: The code does not run inside a task. The message begins with
            *asked_by*, the name of the caller.
    """
    scope = current.get()
    if scope is None:
        raise RuntimeError(
            f"{asked_by} was called outside of a runnable context: call it from a "
            "node, a task or an entrypoint (an OS thread you start yourself needs "
            "contextvars.copy_context().run)"
        )
    return scope


def get_config() -> dict[str, Any]:
    """Return the config of the run that the calling code belongs to.

    In addition to the user's values, ``metadata`` has the step, the node and the
    triggers of the running task, and ``configurable`` has the namespace and the id of
    the checkpoint.

    Raises:
        RuntimeError: Called outside of a run.
    """
    return config_of(current_scope("get_config()"))


def config_of(scope: Scope) -> dict[str, Any]:
    """Return the config for the code of the task of *scope*."""
    job, task = scope.job, scope.job.task
    config = dict(job.run.config)
    config["metadata"] = {
        **config.get("metadata", {}),
        **labels_of(task, job.step.step),
    }
    config["configurable"] = {
        **config.get("configurable", {}),
        **configurable_of_tasks,
        "checkpoint_ns": task.namespace,
        "checkpoint_id": job.step.checkpoint_id,
    }
    manager = callback_manager.get()
    if manager is not None:
        config["callbacks"] = manager
    return config


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
    """Return the W3C trace headers for requests that the calling code sends to other
    services.

    The headers identify the current OpenTelemetry span. Without a current span, they
    identify the span in which the task was called, even in another process. Without
    such a span, they are the ``traceparent`` and ``tracestate`` of the run's
    ``configurable``, if present. The result may be empty.

    Example:
        >>> get_trace_context()
        {}
    """
    headers, scope = trace_headers(), current.get()
    if headers or scope is None:
        return headers
    return dict(headers_in(scope.job.run.config))


def get_stream_writer() -> Callable[[Any], None]:
    """Return the function that adds a chunk to the run's ``custom`` stream.

    Raises:
        RuntimeError: Called outside of a run.
    """
    return current_scope("get_stream_writer()").run_client.emit


def report_progress(
    done: float, total: float | None = None, message: str | None = None
) -> None:
    """Report the progress of the running task to live views and streams of mode
    ``progress``.

    A report arrives while the task runs, labelled with the task, and is a sign of life
    for an idle timeout. Call this function as often as you like: a report within 50 ms
    of the last sent one is dropped, unless it has a new message or ``done == total``.
    ``runtime.progress`` is the same function.

    Args:
        done: The amount of work that is done, in any unit.
        total: The total amount of work, or None if unknown.
        message: A description of the current activity.

    Raises:
        ConfigurationError: *done* or *total* is not a number.
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
    """Stop the run to ask a question, and return the answer when the run is resumed.

    On each resume the task runs again from its beginning, and an interrupt that was
    answered returns its answer at once. A question is identified by its *value*. If
    unchanged code asks a different question, answers are assigned by order, and the
    user gets a notice. If the code has changed, the new question is asked.

    Args:
        value: The question: any value that can be stored.
        response_schema: A pydantic model, dataclass or TypedDict, which an answer must
            fit and is converted to (if pydantic is installed); or a JSON schema, which
            is only shown to the person or program that answers.

    Raises:
        GraphInterrupt: There is no answer yet. This is control flow; do not catch it.
        pydantic.ValidationError: The answer does not fit. The answer is not stored, and
            the question waits for another one. `is_invalid_resume` distinguishes this
            error from other validation errors.
        ConfigurationError: The run has no checkpointer to store the question.

    Example:
        >>> from flowpregel import InMemorySaver, entrypoint
        >>> from flowpregel.types import Command
        >>> @entrypoint(checkpointer=InMemorySaver())
        ... def order(number: int) -> str:
        ...     return "sent" if interrupt(f"Send order {number}?") else "refused"
        >>> order.invoke(7, thread_id="1")["__interrupt__"][0].value
        'Send order 7?'
        >>> order.invoke(Command(resume=True), thread_id="1")
        'sent'
    """
    scope = current_scope("interrupt()")
    task = scope.job.task
    if not scope.job.run.has_saver:
        raise ConfigurationError(
            f"node {task.name!r} called interrupt(), but the run has no checkpointer "
            "to keep the question until it is answered: pass checkpointer= "
            "(MISSING_CHECKPOINTER)"
        )
    if scope.question is not None:
        # The task caught the interrupt, but its question still has no answer.
        raise scope.question
    questions = scope.asked_questions()
    index = questions.find(value)
    if questions.notices:
        scope.emit_notices()
    adapter: Any = None if response_schema is None else _adapter_of(response_schema)
    # The task gets a copy of the answer, which it may change. The original must not
    # change: if a later answer is refused, all other answers are recorded again, and
    # this record replaces the one with the refused answer.
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
    """Return a pydantic adapter that validates answers by *schema*, or None if answers
    are not validated.
    """
    if isinstance(schema, Mapping):
        return None
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415 - only when asked for
    except ImportError:
        return None
    return TypeAdapter(schema)
