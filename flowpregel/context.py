"""What code inside a task can use: one context variable, and functions that read it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from flowpregel._core.commands import Interrupt
from flowpregel._core.effects import Report
from flowpregel._core.ids import interrupt_id
from flowpregel._core.records import Arguments, Node, Write
from flowpregel.carried import headers_in, trace_headers
from flowpregel.errors import ConfigurationError, GraphInterrupt

PROGRESS_EVERY: Final = 0.05
"""Seconds for which a report of progress without a new message is left out."""
NOTHING_REPORTED: Final = (float("-inf"), None)


class RunValues(NamedTuple):
    """What the user gave a run, and its thread."""

    config: Mapping[str, Any]
    """The run's config; `get_config` adds what is the task's own."""
    context: Any
    """The run's context, as the user gave it."""
    previous: Any
    """What the thread's previous run saved (functional API)."""


@dataclass(slots=True, eq=False)
class RunInfo:
    """What every task of a run may know about it."""

    values: RunValues = field(default_factory=lambda: RunValues({}, None, None))
    thread_id: str | None = None
    run_id: str | None = None
    has_saver: bool = False
    """Whether questions can be kept until they are answered."""
    executor: Any = None
    """Where nodes run that name no executor; unknown in a worker."""


_NO_RUN = RunInfo()


@dataclass(slots=True, eq=False)
class TaskInfo:
    """What a task may know about itself: plain data that travels with it."""

    task_id: str
    name: str
    namespace: str
    """``checkpoint_ns`` of graphs called in it, and the source of its interrupts' ids."""
    step: int
    stop: int
    """The step at which the run reaches its recursion limit."""
    attempt: int = 1
    first_started: int = 0
    """Wall-clock nanoseconds of the first attempt."""
    triggers: tuple[str, ...] = ()
    path: str = ""
    answers: tuple[Any, ...] = ()
    """Answers to its interrupts, in the order they were asked."""
    checkpoint_id: str | None = None
    error: Any = None
    """The `NodeError` that an error handler is given."""
    compares: bool = False
    """Whether the calls it makes are recorded, and compared with the record."""
    run: RunInfo = _NO_RUN
    """What it shares with all tasks of its run. Last: what comes before travels by position."""


@dataclass(slots=True, eq=False)
class RunClient:
    """The task's ends of what connects it to its run."""

    emit: Callable[[Any], None]
    """Give the run's stream a custom chunk, or a `Report`."""
    call: Callable[[Node, Arguments, str | None, str], Any]
    """Make a call (node, arguments, fingerprint, description); returns a future."""
    beat: Callable[[], None]
    """Show that the task is alive."""


class RunControl:
    """Asks a run to stop at the next barrier; safe from any OS thread.

    Example:
        >>> control = RunControl()
        >>> control.request_drain("deploy")
        >>> control.drain_reason
        'deploy'
    """

    __slots__ = ("_reason",)

    def __init__(self) -> None:
        self._reason: str | None = None

    def request_drain(self, reason: str = "shutdown") -> None:
        """Ask the run to stop when the tasks that are running have ended."""
        self._reason = reason

    @property
    def drain_requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self._reason is not None

    @property
    def drain_reason(self) -> str | None:
        """Why, or None."""
        return self._reason


@dataclass(slots=True, eq=False)
class Scope:
    """What one attempt of a task can reach."""

    info: TaskInfo
    ends: RunClient
    store: Any = None
    control: RunControl | None = None
    channels: Mapping[str, Any] = field(default_factory=dict)
    managed: Mapping[str, Any] = field(default_factory=dict)
    asked: int = 0
    """How many interrupts it has passed or raised."""
    question: GraphInterrupt | None = None
    """What it cannot go on without an answer to, though its code may have caught it."""
    writes: list[Write] = field(default_factory=list)
    """What it has written so far."""
    reported: tuple[float, str | None] = NOTHING_REPORTED
    """When it last said how far it is (monotonic seconds), and its message."""

    def read(self, names: Sequence[str], *, fresh: bool) -> dict[str, Any]:
        """Return the available ones of the channels *names*.

        Args:
            names: Which; the node must have declared them in its ``reads``.
            fresh: As this task's own writes alone would leave them.
        """
        found: dict[str, Any] = {}
        own: dict[str, list[Any]] = {}
        for name, value in self.writes if fresh else ():
            own.setdefault(name, []).append(value)
        for name in names:
            if name in self.managed:
                found[name] = self.managed[name]
                continue
            channel = self.channels[name]
            if fresh and (name in own or channel.reacts_to_silence):
                channel = channel.copy()
                channel.update(own.get(name, ()))
            if channel.is_available():
                found[name] = channel.get()
        return found

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far the task is; see `report_progress`."""
        report = Report(
            _number(done, "done"), None if total is None else _number(total, "total"), message
        )
        now = time.monotonic()
        last, said = self.reported
        if now < last + PROGRESS_EVERY and message == said and report.done != report.total:
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
            f"{asked_by} was called outside of a run: call it from a node, a task or an "
            "entrypoint (an OS thread you start yourself needs contextvars.copy_context().run)"
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
    info = scope.info
    config = dict(info.run.values.config)
    config["metadata"] = {
        **config.get("metadata", {}),
        "langgraph_step": info.step,
        "langgraph_node": info.name,
        "langgraph_triggers": info.triggers,
        "langgraph_path": info.path,
        "langgraph_checkpoint_ns": info.namespace,
    }
    config["configurable"] = {
        **config.get("configurable", {}),
        "checkpoint_ns": info.namespace,
        "checkpoint_id": info.checkpoint_id,
    }
    return config


def get_store() -> Any:
    """Return the run's long-term store.

    Raises:
        RuntimeError: Called outside of a run, or the run has no store.
    """
    scope = current_scope("get_store()")
    if scope.store is None:
        raise RuntimeError("this run has no store: pass store= where the graph is built")
    return scope.store


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
    return dict(headers_in(scope.info.run.values.config))


def get_stream_writer() -> Callable[[Any], None]:
    """Return the function that gives the run's ``custom`` stream a chunk.

    Raises:
        RuntimeError: Called outside of a run.
    """
    return current_scope("get_stream_writer()").ends.emit


def report_progress(done: float, total: float | None = None, message: str | None = None) -> None:
    """Say how far the running task is: live views show it, and streams of mode ``progress``.

    It arrives while the task runs, labelled with the task, and is a sign of life
    for an idle timeout. Call it as often as you like: of reports that follow each
    other within 50 ms, with the same message, only the first is sent, and the one
    that says ``done == total``. ``runtime.progress`` is the same.

    Args:
        done: How much is done, in any unit.
        total: How much there is to do; None if that is not known.
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
    was answered returns its answer at once. Interrupts are told apart by the
    order in which a task asks them.

    Args:
        value: What is asked; anything that can be kept.
        response_schema: A pydantic model, which an answer must fit and becomes;
            anything else is handed on for the asker's use.

    Raises:
        GraphInterrupt: There is no answer yet (control flow: let it pass).
        ConfigurationError: The run has no checkpointer to keep the question.

    Example:
        >>> def approve(state):  # a node
        ...     return {"approved": interrupt({"really?": state["amount"]})}
    """
    scope = current_scope("interrupt()")
    info = scope.info
    if not info.run.has_saver:
        raise ConfigurationError(
            f"node {info.name!r} called interrupt(), but the run has no checkpointer to "
            "keep the question until it is answered: pass checkpointer="
        )
    index, scope.asked = scope.asked, scope.asked + 1
    if index < len(info.answers):
        answer, validate = info.answers[index], getattr(response_schema, "model_validate", None)
        return answer if validate is None else validate(answer)
    question = Interrupt(value, interrupt_id(info.namespace, index), response_schema)
    scope.question = GraphInterrupt([question])
    raise scope.question
