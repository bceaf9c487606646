"""The contents of messages between coordinator and worker: jobs (attempts of tasks),
and the outcomes of tasks and calls.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from dataclasses import fields, replace
from operator import attrgetter
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from flowpregel._core.chunks import ItemOutcomes
from flowpregel._core.effects import StepContext
from flowpregel._core.ids import Cost, Preview, Span
from flowpregel._core.records import (
    RETURN,
    Arguments,
    Attempt,
    Escaped,
    Interrupted,
    Kind,
    Node,
    Outcome,
    Raised,
    Returned,
    Task,
    TaskOrigin,
    Withdrawn,
    add_failed_calls,
    failed_calls,
)
from flowpregel._pickling import crossing
from flowpregel._pickling.crossing import find_culprit, first_unpicklable
from flowpregel._tracebacks import WorkerTraceback, leave_out_ours
from flowpregel.carried import brought, carried_by, variable_place
from flowpregel.context import Job, RunInfo
from flowpregel.errors import TaskCancelled, TaskSerializationError
from flowpregel.executors.misplaced import misplaced_future
from flowpregel.executors.processes.wire import serialization
from flowpregel.executors.processes.wire.serialization import Open, Share, pack, unpack

_KINDS: Final = tuple(Kind)
_RUN_FIELDS: Final = tuple(
    field.name
    for field in fields(RunInfo)
    if field.name not in ("store", "executor", "ending")
)
"""The fields of a `RunInfo` that are sent to workers."""
_task_values: Final = attrgetter("id", "path", "triggers", "namespace", "error")
_origin_values: Final = attrgetter("record", "stream", "depth")
_attempt_values: Final = attrgetter(
    "number", "answers", "questions", "saved", "first_started"
)
_run_values: Final = attrgetter(*_RUN_FIELDS)
_step_values: Final = attrgetter(
    "checkpoint_id", "namespace", "step", "stop", "previous"
)


# ------------------------------------------------ jobs

AskStore: TypeAlias = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
"""A function that takes the name of a method of the run's store, and arguments. It
calls the method with these arguments, and returns the result.
"""


def pack_job(job: Job, share: Share | None) -> serialization.Message:
    """Return *job* as a message, without its node, which is sent separately.

    Args:
        job: The attempt of a task.
        share: A function that puts large buffers into shared memory, or None if there
            is no shared memory.

    Raises:
        TaskSerializationError: A part of *job* cannot be pickled.
    """
    task, run, step = job.task, job.run, job.step
    # The job is pickled as plain tuples and numbers, because pickling an instance of a
    # class of flowpregel takes ten times as long.
    task_input = task.input
    is_call = type(task_input) is Arguments
    if is_call:
        task_input = task_input.args, task_input.kwargs
    read = channels_of(step, task.node.reads)
    try:
        content = (
            (int(task.kind), is_call, task_input, *_task_values(task)),
            None if task.origin is None else _origin_values(task.origin),
            _attempt_values(task.attempt),
            _step_values(step),
            _run_values(run),
            run.store is not None,
            job.key,
            job.compares,
            read,
            carried_by(job.variables, run.config),
        )
        return pack(content, share)
    except Exception as error:
        misplaced = _misplaced_future_of(job)
        raise misplaced or first_unpicklable(
            job.task.name, _job_parts(job, *read), error
        ) from error


def channels_of(
    step: StepContext, names: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return those channels and managed values of a superstep that have one of *names*.
    Unknown names are left out.
    """
    channels: dict[str, Any] = {}
    managed: dict[str, Any] = {}
    for name in names:
        if name in step.channels:
            channels[name] = step.channels[name]
        elif name in step.managed:
            managed[name] = step.managed[name]
    return channels, managed


class StoreProxy:
    """A proxy for the run's long-term store, for a task in a worker.

    The proxy has all public methods of the store. Each call goes over the link to the
    coordinator, whose store answers it.
    """

    def __init__(self, ask: AskStore) -> None:
        self._ask = ask

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._ask(name, args, kwargs)


def unpack_job(data: bytes, node: Node, ask: AskStore, open_ref: Open | None) -> Job:
    """Return the job that `pack_job` has packed.

    Args:
        data: The message's data.
        node: The node of the task.
        ask: A function that calls a method of the run's store, if there is a store.
        open_ref: A function that opens a buffer in shared memory, or None.

    Raises:
        BaseException: Any error that unpickling a part raises.
    """
    plan, origin, attempt, step, run, has_store, key, compares, read, carried = unpack(
        data, open_ref
    )
    kind, is_call, task_input, task_id, path, triggers, task_namespace, error = plan
    task = Task(
        id=task_id,
        node=node,
        kind=_KINDS[kind],
        input=Arguments(*task_input) if is_call else task_input,
        path=path,
        triggers=triggers,
        namespace=task_namespace,
        error=error,
        origin=None if origin is None else TaskOrigin(*origin),
        attempt=Attempt(*attempt),
    )
    return Job(
        task,
        StepContext(*step, *read),
        RunInfo(
            store=StoreProxy(ask) if has_store else None,
            **dict(zip(_RUN_FIELDS, run, strict=True)),
        ),
        key,
        compares,
        Context() if carried is None else brought(carried),
    )


def _misplaced_future_of(job: Job) -> TypeError | None:
    """Return the error that a future is inside an argument of a task, where it would
    have to be pickled, or None if there is no future.
    """
    task = job.task
    if not isinstance(task.input, Arguments):
        return None
    func = task.node.steps[0].func or task.node.steps[0].coroutine
    return misplaced_future(task.name, func, task.input.args, task.input.kwargs)


def _job_parts(
    job: Job, channels: object, managed: object
) -> Iterator[tuple[str, str, Any]]:
    """Yield the user's values in a job, each with its kind and its name. They are used
    to find the one that cannot be pickled.

    *channels* and *managed* contain only the values that the node may read while it
    runs.
    """
    task = job.task
    if isinstance(task.input, Arguments):
        for position, argument in enumerate(task.input.args):
            yield "input", f"args[{position}]", argument
        for name, argument in task.input.kwargs.items():
            yield "input", f"argument {name}", argument
    else:
        yield "input", "input", task.input
    others = {
        "config": job.run.config,
        "context": job.run.context,
        "channels": channels,
        "previous": job.step.previous,
        "answers": task.attempt.answers,
        "error": task.error,
        "managed": managed,
        "control": job.run.control,
        "saved": task.attempt.saved,
    }
    for variable, value in job.variables.items():
        location = variable_place(variable)
        if location is not None:
            others[f"context variable {location[1]!r}"] = value
    for name, part in others.items():
        yield name, name, part
    # If each part can be pickled by itself, the error names the last one: the input.
    yield "input", "input", None


# ------------------------------------------------ outcomes

_COST_CODES: Final = {float: "f", int: "Q"}
"""The codes of `struct` for the types of the fields of a `Cost`."""
_COST_FORMAT: Final = "".join(_COST_CODES[type(number)] for number in Cost())
_ENDED_HEAD: Final = Struct(f"<qf {_COST_FORMAT} IHI")
"""The format of the numbers with which the body of an ENDED message begins: the start
and the duration of the attempt, the fields of the `Cost`, and the lengths in bytes of
the three parts that follow. These are the ids of failed calls, and the fields and the
media of the preview.
"""


class EndedHead(NamedTuple):
    """The first part of the body of an ENDED message (a task has ended). The packed
    outcome of the task follows it.
    """

    span: Span
    """The span of the attempt: when, how long and where it ran, and what it cost."""
    failed_ids: bytes
    """The ids of the failed calls whose errors have reached the task, or, if the task
    could not begin, the name of the module that the worker lacks.
    """
    size: int
    """The number of bytes of the first part of the message. The outcome of the task
    begins after it.
    """


def pack_head(span: Span, failed_ids: bytes = b"") -> bytes:
    """Return the first part of the body of an ENDED message, without the executor, pid
    and host of *span*.
    """
    fields, media = span.preview
    sizes = len(failed_ids), len(fields), len(media)
    numbers = _ENDED_HEAD.pack(span.began, span.seconds, *span.cost, *sizes)
    return numbers + failed_ids + fields + media


def unpack_head(
    body: bytes, executor: str = "", pid: int = 0, host: str = ""
) -> EndedHead:
    """Return the first part of an ENDED message, which `pack_head` has packed.

    Args:
        body: The body of the frame.
        executor: The executor of the attempt, for the span.
        pid: The pid of the worker, for the span.
        host: The host of the worker, for the span.
    """
    began, seconds, *cost, ids_size, fields_size, media_size = _ENDED_HEAD.unpack_from(
        body
    )
    ids = _ENDED_HEAD.size
    fields = ids + ids_size
    media = fields + fields_size
    end = media + media_size
    preview = Preview(body[fields:media], body[media:end])
    span = Span(began, seconds, executor, pid, Cost(*cost), host, preview)
    return EndedHead(span, body[ids:fields], end)


_OUTCOMES: Final = (Returned, Raised, Interrupted, Escaped, Withdrawn)
"""The types of outcomes. An outcome is sent as the index of the type in this tuple,
followed by the fields of the outcome.
"""
_CANCELLED: Final = len(_OUTCOMES)
"""The number that is sent in place of the index for a `Raised` with a `TaskCancelled`,
so that the receiver can recognize a cancelled call without unpickling the error.
"""


def pack_outcome(outcome: Outcome, task: str, share: Share | None = None) -> bytes:
    """Return *outcome* as bytes that the coordinator can decode. This never raises.

    An outcome that cannot be pickled and unpickled becomes a `Raised` whose error names
    the task and the path to the culprit.
    """
    if isinstance(outcome, Raised):
        return _pack_error(outcome.error, task, share, _pack_items(outcome.items, task))
    try:
        content = [getattr(outcome, name) for name in outcome.__match_args__]
        return bytes((_OUTCOMES.index(type(outcome)),)) + pack(content, share).data
    except BaseException as error:  # noqa: BLE001 - the worker always answers
        name, value = _user_value_of(outcome)
        culprit = find_culprit(value, name)
        failure = TaskSerializationError(task, f"the {name}", *culprit)
        return _pack_error(failure.with_traceback(error.__traceback__), task, None)


def _user_value_of(outcome: Outcome) -> tuple[str, Any]:
    """Return the user's value in *outcome* and a name for it, to find the part that
    cannot be pickled.
    """
    match outcome:
        case Returned([(_, result)]):
            return "result", result
        case Returned(writes):
            return "result", writes
        case Interrupted():
            return "interrupt", outcome
    return "command", outcome


def _pack_items(items: ItemOutcomes | None, task: str) -> ItemOutcomes | None:
    """Return the outcomes of a chunk's items, each packed separately.

    So if a result cannot be pickled, only that item fails.
    """
    if items is None:
        return None
    results = {}
    for position, result in items.results.items():
        results[position] = pack_outcome(Returned([(RETURN, result)]), task)
    errors: dict[int, Any] = {}
    for position, error in items.errors.items():
        errors[position] = pack_outcome(Raised(error), task)
    return replace(items, results=results, errors=errors)


def _unpack_items(items: ItemOutcomes) -> ItemOutcomes:
    """Return the outcomes of a chunk's items that `_pack_items` has packed."""
    results: dict[int, Any] = {}
    errors: dict[int, Any] = {}
    for position, packed in {**items.results, **items.errors}.items():
        match unpack_outcome(packed):
            case Returned(writes):
                results[position] = dict(writes)[RETURN]
            case Raised(error):
                errors[position] = error
    return replace(items, results=results, errors=errors)


def _pack_error(
    error: BaseException,
    task: str,
    share: Share | None,
    items: ItemOutcomes | None = None,
) -> bytes:
    leave_out_ours(error)
    text = "".join(traceback.format_exception(error))
    calls = failed_calls(error)
    try:
        message = pack((error, error.__cause__, text, calls, items), share)
        # The pickle is loaded as a test, because many exceptions can be pickled but not
        # unpickled, for example if they have required keyword arguments.
        if not message.refs:
            unpack(message.data)
    except BaseException as problem:  # noqa: BLE001 - the worker always answers
        path, cause = find_culprit(error, "error")
        if cause == crossing.AS_A_WHOLE:
            cause = f"{type(problem).__name__}: {problem}"
        stand_in = TaskSerializationError(task, "the error", path, cause)
        message = pack((stand_in, None, text, calls, items))
    tag = _OUTCOMES.index(Raised)
    if isinstance(error, TaskCancelled):
        tag = _CANCELLED
    return bytes((tag,)) + message.data


class PackedOutcome:
    """An outcome that is still packed. Only its type was read, and its large buffers in
    shared memory were opened.

    Args:
        data: The body of the frame.
        open_ref: A function that opens a buffer in shared memory, or None.
        at: The position in the body at which the outcome begins.

    Raises:
        ValueError: The bytes are not an outcome.
    """

    __slots__ = ("_kind", "_parts", "is_of_cancelled", "is_plain")

    def __init__(self, data: bytes, open_ref: Open | None = None, at: int = 0) -> None:
        tag = data[at]
        if tag > _CANCELLED:
            raise ValueError(f"no outcome has the tag {tag}")
        self.is_of_cancelled: bool = tag == _CANCELLED
        """True if the outcome is the error of a cancelled call (`TaskCancelled`)."""
        self._kind = Raised if self.is_of_cancelled else _OUTCOMES[tag]
        parts, is_plain = serialization.read_message(data, open_ref, at + 1)
        self._parts = parts
        self.is_plain: bool = is_plain

    @property
    def is_failure(self) -> bool:
        """True if the outcome is anything other than a result."""
        return self._kind is not Returned

    def read(self) -> Outcome:
        """Return the outcome that `pack_outcome` has packed.

        Raises:
            BaseException: Any error that unpickling a part raises.
        """
        content = pickle.loads(self._parts[0], buffers=self._parts[1:])
        if self._kind is not Raised:
            return self._kind(*content)
        error, cause, text, calls, items = content
        if calls:
            add_failed_calls(error, calls)
        # The pickle of an exception does not contain its ``__cause__``, which is sent
        # separately, and set here.
        error.__cause__ = cause if cause is not None else WorkerTraceback(f"\n\n{text}")
        if cause is not None:
            error.add_note(text)
        if items is None:
            return Raised(error)
        items = _unpack_items(items)
        return Raised(items.first_error, items)


def unpack_outcome(data: bytes, open_ref: Open | None = None, at: int = 0) -> Outcome:
    """Return the outcome that `pack_outcome` has packed.

    Args:
        data: The body of the frame.
        open_ref: A function that opens a buffer in shared memory, or None.
        at: The position in the body at which the outcome begins.

    Raises:
        BaseException: Any error that unpickling a part raises.
    """
    return PackedOutcome(data, open_ref, at).read()
