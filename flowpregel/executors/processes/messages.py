"""What is in a parcel: a job on its way down, and how it ended on its way up."""

from __future__ import annotations

import contextvars
import pickle
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from itertools import count
from operator import attrgetter
from struct import Struct
from typing import Any, Final, NamedTuple

from flowpregel._core.records import (
    Arguments,
    Escaped,
    Interrupted,
    Kind,
    Node,
    Outcome,
    Raised,
    Returned,
    Withdrawn,
    add_failed_calls,
    failed_calls,
)
from flowpregel.carried import Carried, bring, carried_by
from flowpregel.context import RunControl, RunInfo, RunValues, TaskInfo
from flowpregel.errors import TaskSerializationError
from flowpregel.executors.base import Job
from flowpregel.executors.processes import parcel, payload
from flowpregel.executors.processes.culprit import find_culprit

INFO_FIELDS: Final = tuple(field.name for field in fields(TaskInfo))[:-1]
info_values: Final = attrgetter(*INFO_FIELDS)
KINDS: Final = tuple(Kind)
PLAIN: Final = frozenset({int, float, bool, type(None)})
"""Of these, a pickle is exact and small, and is not looked through."""
PLAIN_INPUT: Final = PLAIN | {str, bytes}
_LARGEST_RUN: Final = 64 << 10
"""Bytes up to which what a run's tasks know about it is sent ahead of them."""
UNNAMED: Final = "?"
"""The name of a task in a worker that has not unpickled it yet."""
_run_numbers: Final = count(1)


# ------------------------------------------------ down


def pack_node(node: Node, *, called: bool = False) -> bytes:
    """Return *node*, pickled: what a worker needs of it, or all that a call carries.

    Raises:
        TaskSerializationError: A part of it cannot be pickled.
    """
    slim = node if called else replace(
        node, triggers=(), retry=(), cache=None, timeout=None, handler=None, executor=None,
        mapper=None, metadata={}, tags=(),
    )  # fmt: skip
    try:
        return payload.dumps(slim)
    except Exception as error:
        functions = tuple(("function", each.func or each.coroutine) for each in slim.steps)
        for name, part in (*functions, ("writers", slim.writers)):
            path, cause = find_culprit(part, name)
            if cause != "it cannot be pickled as a whole":
                raise TaskSerializationError(node.name, "the code", path, cause) from error
        raise TaskSerializationError(node.name, "the code", "node", str(error)) from error


class Sent(NamedTuple):
    """What the tasks of a run know about it, as it is sent ahead of them."""

    number: int
    """Names it, once in the life of this process."""
    data: bytes


def pack_run(run: RunInfo) -> Sent | None:
    """Return *run* as it is sent once to each worker; None: it travels with each task."""
    if run.sent is None:
        try:
            data = payload.dumps(_run_parts(run))
        except Exception:  # noqa: BLE001 - told by the task that it then travels with
            data = bytes(_LARGEST_RUN + 1)
        run.sent = False if len(data) > _LARGEST_RUN else Sent(next(_run_numbers), data)
    return run.sent or None


def _run_parts(run: RunInfo) -> tuple[Any, ...]:
    return run.thread_id, run.run_id, run.has_saver, payload.dumps(tuple(run.values))


def unpack_run(data: bytes) -> Callable[[], RunInfo]:
    """Return what makes a `RunInfo` for each task: none sees what another changes in its own.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    thread_id, run_id, has_saver, packed = payload.loads(data)

    def values() -> RunValues:
        return RunValues(*payload.loads(packed))

    values()

    def run_info() -> RunInfo:
        # By position: keywords would take twice as long.
        return RunInfo(values(), thread_id, run_id, has_saver)

    return run_info


def is_plain_call(job: Job) -> bool:
    """Return whether *job* is a call with numbers and text alone, as most small ones are."""
    given, info = job.input, job.info
    return (
        type(given) is Arguments
        and PLAIN_INPUT.issuperset(map(type, given.args))
        and type(info.name) is str
        and not (given.kwargs or job.channels or job.managed or job.control)
        and not (info.answers or info.error)
    )


def pack_job(
    job: Job, share: parcel.Share | None, sent: Sent | None = None
) -> tuple[bytes, list[parcel.Lease]]:
    """Return *job* without its node as a parcel, and the leases it names.

    Args:
        job: What is to be done.
        share: Where large parts are put, if there is such a place.
        sent: What was sent ahead of it.

    Raises:
        TaskSerializationError: A part of it cannot be pickled.
    """
    given: Any = job.input
    is_call = type(given) is Arguments
    if is_call:
        # As a plain tuple it takes a fifth of the time.
        given = given.args, given.kwargs
    info, channels, managed = job.info, job.channels or None, job.managed or None
    run = info.run
    control = None if job.control is None else (job.control.drain_reason,)
    carried = carried_by(job.variables, run.values.config)
    content = (
        (run.thread_id, run.run_id, run.has_saver, *run.values) if sent is None else sent.number,
        info_values(info),
        job.kind._value_,
        is_call,
        given,
        channels,
        managed,
        job.store is not None,
        control,
        carried,
    )
    if sent is not None and carried is None and is_plain_call(job):
        return parcel.pack_plain(content, share)
    try:
        return parcel.pack(content, share)
    except Exception as error:
        raise _unpicklable_input(job, error) from error


def unpack_job(
    data: bytes,
    node: Node,
    store: Any,
    open_lease: parcel.Open | None,
    runs: Mapping[int, Callable[[], RunInfo]] | None = None,
) -> Job:
    """Return the job that `pack_job` was given.

    Args:
        data: The parcel.
        node: What to call.
        store: What stands for the run's store, if it has one.
        open_lease: Opens shared memory.
        runs: Makes what was sent ahead, by number.
    """
    return job_of(parcel.unpack(data, open_lease), node, store, runs)


def job_of(
    content: tuple[Any, ...],
    node: Node,
    store: Any,
    runs: Mapping[int, Callable[[], RunInfo]] | None = None,
) -> Job:
    """Return the job that *content*, out of its parcel, describes."""
    sent, info, kind, is_call, given, channels, managed, has_store, drain, carried = content
    if runs is not None and type(sent) is int:
        run = runs[sent]()
    else:
        thread_id, run_id, has_saver, *values = sent
        run = RunInfo(RunValues(*values), thread_id=thread_id, run_id=run_id, has_saver=has_saver)
    known = (*info, run)
    return Job(
        TaskInfo(*known),
        KINDS[kind],
        node,
        Arguments(*given) if is_call else given,
        None,
        channels or {},
        managed or {},
        store if has_store else None,
        None if drain is None else _control(*drain),
        None if carried is None else variables_of(carried),
    )


def variables_of(carried: Carried) -> contextvars.Context:
    """Return context variables that hold what was carried here, and nothing else."""
    context = contextvars.Context()
    context.run(bring, carried)
    return context


def _control(reason: str | None) -> RunControl:
    """Return a control as it was when the task began."""
    control = RunControl()
    if reason is not None:
        control.request_drain(reason)
    return control


def _unpicklable_input(job: Job, error: Exception) -> TaskSerializationError:
    parts: list[tuple[str, Any]] = []
    if isinstance(job.input, Arguments):
        parts += ((f"args[{index}]", part) for index, part in enumerate(job.input.args))
        parts += ((f"argument {name}", part) for name, part in job.input.kwargs.items())
    else:
        parts.append(("input", job.input))
    parts += zip(RunValues._fields, job.info.run.values, strict=True)
    parts += zip(INFO_FIELDS, info_values(job.info), strict=True)
    parts += (("channels", job.channels), ("managed", job.managed))
    if (carried := carried_by(job.variables, {})) is not None:
        parts += ((f"context variable {name!r}", v) for (_, name), v in carried.values.items())
    for name, part in parts:
        try:
            payload.dumps(part)
        except Exception:  # noqa: BLE001 - this is the part; the reason is looked for next
            path, cause = find_culprit(part, name)
            return TaskSerializationError(job.info.name, f"the {_noun(name)}", path, cause)
    return TaskSerializationError(job.info.name, "the input", "input", str(error))


def _noun(part: str) -> str:
    return "input" if part.startswith(("input", "arg")) else part


# ------------------------------------------------ up

_RETURNED, _RAISED, _INTERRUPTED, _ESCAPED, _WITHDRAWN = range(5)
_LENGTH: Final = Struct("<I")
_PLAINLY: Final = bytes((_RETURNED,)) + parcel.NO_LEASES


class WorkerTraceback(Exception):
    """The traceback of an error, as text, where it was raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def pack_outcome(outcome: Outcome, task: str, share: parcel.Share | None) -> bytes:
    """Return *outcome* as bytes that the coordinator can decode; raises nothing.

    What cannot be pickled, or not be unpickled again, becomes a `Raised` that
    names the task and where in the value the culprit is.
    """
    match outcome:
        case Returned(writes):
            if len(writes) == 1 and type(writes[0][1]) in PLAIN:
                return _PLAINLY + pickle.dumps(tuple(writes), payload.PROTOCOL)
            return _pack_checked(_RETURNED, tuple(writes), task, "the result", share)
        case Withdrawn():
            return bytes((_WITHDRAWN,))
        case Interrupted(interrupts, answers):
            content: Any = (interrupts, answers)
            return _pack_checked(_INTERRUPTED, content, task, "the interrupt", share)
        case Escaped(command):
            return _pack_checked(_ESCAPED, command, task, "the command", share)
        case Raised(error):
            return _pack_error(error, task, share)


def _pack_checked(
    tag: int, content: Any, task: str, what: str, share: parcel.Share | None
) -> bytes:
    try:
        data, _ = parcel.pack(content, share)
    except BaseException as error:  # noqa: BLE001 - the worker always answers
        where = content[0][1] if tag == _RETURNED and len(content) == 1 else content
        name = what.removeprefix("the ")
        path, cause = find_culprit(where, name)
        failure = TaskSerializationError(task, what, path, cause)
        return _pack_error(failure.with_traceback(error.__traceback__), task, None)
    return bytes((tag,)) + data


def _pack_error(error: BaseException, task: str, share: parcel.Share | None) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        data, _ = parcel.pack((error, error.__cause__, text, failed_calls(error)), share)
        # Many exceptions can be pickled and not unpickled: required keyword arguments.
        if share is None or not parcel.leases_in(data)[0]:
            parcel.unpack(data)
    except BaseException as problem:  # noqa: BLE001 - the worker always answers
        path, cause = find_culprit(error, "error")
        if cause == "it cannot be pickled as a whole":
            cause = f"{type(problem).__name__}: {problem}"
        stand_in = TaskSerializationError(task, "the error", path, cause)
        data, _ = parcel.pack((stand_in, None, text, failed_calls(error)))
    return bytes((_RAISED,)) + data


def pack_caught(caught: Collection[str]) -> bytes:
    """Return the ids of calls whose failures a task has seen, as bytes that say where they end."""
    data = " ".join(caught).encode()
    return _LENGTH.pack(len(data)) + data


def unpack_caught(data: bytes, at: int) -> tuple[Collection[str], int]:
    """Return what `pack_caught` was given, of the bytes at *at*, and where they end."""
    start = at + _LENGTH.size
    end = start + int(_LENGTH.unpack_from(data, at)[0])
    return data[start:end].decode().split(), end


def unpack_returned(data: bytes, open_lease: parcel.Open | None, at: int) -> Returned | None:
    """Return the outcome that begins at *at*, if it is that of a task that returned.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    if len(data) < parcel.SMALL and data.startswith(_PLAINLY, at):
        return Returned(pickle.loads(data[at + len(_PLAINLY) :]))
    if data[at] != _RETURNED:
        return None
    return Returned(parcel.unpack(data, open_lease, at + 1))


def give_name(outcome: Outcome, task: str) -> None:
    """Name the task in the error of a worker that could not unpickle what it is called."""
    match outcome:
        case Raised(TaskSerializationError(task=name) as error) if name == UNNAMED:
            error.task, error.args = task, (task, *error.args[1:])


def unpack_outcome(
    data: bytes, origin: str, open_lease: parcel.Open | None, at: int = 0
) -> Outcome:
    """Return the outcome that `pack_outcome` was given.

    Args:
        data: The body of the frame.
        origin: Names the task, the attempt and the worker, for the note on an error.
        open_lease: Opens shared memory.
        at: Where in the body it begins.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    tag = data[at]
    if tag == _WITHDRAWN:
        return Withdrawn()
    if tag > _WITHDRAWN:
        raise ValueError(f"no outcome has the tag {tag}")
    content = parcel.unpack(data, open_lease, at + 1)
    match tag:
        case 0:
            return Returned(content)
        case 1:
            error, cause, text, calls = content
            # A pickle leaves out what the error was raised while handling.
            if calls:
                add_failed_calls(error, calls)
            error.__cause__ = cause if cause is not None else WorkerTraceback(text)
            error.add_note(f"{origin}\n{text}" if cause is not None else origin)
            return Raised(error)
        case 2:
            return Interrupted(*content)
        case _:
            return Escaped(content)
