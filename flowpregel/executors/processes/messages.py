"""What a message is about: a node, a job on its way to a worker, a call or an outcome back."""

from __future__ import annotations

import contextvars
import logging
import threading
import traceback
from collections import OrderedDict
from dataclasses import replace
from itertools import count
from operator import attrgetter
from typing import Any, Final
from weakref import WeakValueDictionary

from flowpregel._core.effects import Call, StepId
from flowpregel._core.records import (
    Arguments,
    Escaped,
    Interrupted,
    Node,
    Outcome,
    Raised,
    Returned,
    Task,
    Withdrawn,
    add_failed_calls,
    failed_calls,
)
from flowpregel.carried import Carried, bring, carried_by
from flowpregel.context import Job, RunControl, RunInfo
from flowpregel.errors import FlowPregelError, TaskSerializationError
from flowpregel.executors.base import Mailbox
from flowpregel.executors.processes.assign import InFlight, NodeCode
from flowpregel.executors.processes.culprit import find_culprit
from flowpregel.executors.processes.protocol import REQUEST
from flowpregel.executors.processes.serialization import (
    BufferWriter,
    Message,
    Open,
    digest_of,
    dumps,
    loads,
    pack,
    unpack,
)
from flowpregel.executors.processes.shared_memory import Arena

_log: Final = logging.getLogger("flowpregel.worker")

_OF_RUN = ("config", "context", "thread_id", "run_id", "has_saver")
_OF_TASK = ("id", "kind", "path", "triggers", "namespace", "first_started", "answers", "error")
_OF_JOB = ("attempt", "compares", "channels", "managed")
"""What of a job, of its run and of its task travels, beside the input."""
_run_values, _task_values = attrgetter(*_OF_RUN), attrgetter(*_OF_TASK)
_own_values = attrgetter(*_OF_JOB)
_place_values = attrgetter("checkpoint_id", "namespace", "step", "stop", "previous")
UNNAMED: Final = "?"
"""The name of a task in a worker that has not unpickled it yet."""
_AS_A_WHOLE: Final = "it cannot be pickled as a whole"
_MOST_NODES: Final = 1024
_LARGE: Final = 1 << 20
"""Bytes of a packed job that does not wait: it is packed again when a worker is free."""


# ------------------------------------------------ nodes


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
        return dumps(slim)
    except Exception as error:
        functions = tuple(("function", each.func or each.coroutine) for each in slim.steps)
        for name, part in (*functions, ("writers", slim.writers)):
            path, cause = find_culprit(part, name)
            if cause != _AS_A_WHOLE:
                raise TaskSerializationError(node.name, "the code", path, cause) from error
        raise TaskSerializationError(node.name, "the code", "node", str(error)) from error


# ------------------------------------------------ jobs


def pack_job(job: Job, share: BufferWriter | None) -> Message:
    """Return *job* without its node as a message.

    Args:
        job: What is to be done.
        share: Where large buffers are put, if there is such a place.

    Raises:
        TaskSerializationError: A part of it cannot be pickled.
    """
    given, run = job.task.input, job.run
    is_call = isinstance(given, Arguments)
    content = (
        _run_values(run),
        _place_values(job.place),
        _task_values(job.task),
        _own_values(job),
        is_call,
        (given.args, given.kwargs) if type(given) is Arguments else given,
        run.store is not None,
        None if run.control is None else (run.control.drain_reason,),
        carried_by(job.variables, run.config),
    )
    try:
        return pack(content, share)
    except Exception as error:
        raise _unpicklable_input(job, error) from error


def unpack_job(
    data: bytes | memoryview, node: Node, store: Any, open_ref: Open | None, at: int = 0
) -> Job:
    """Return the job that `pack_job` was given.

    Args:
        data: The message's data.
        node: What to call.
        store: Stands for the run's store, if it has one.
        open_ref: Opens shared memory.
        at: Where in *data* the message begins.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    content = unpack(data, open_ref, at)
    known, place, planned, own, is_call, given, has_store, drain, carried = content
    of_run = dict(zip(_OF_RUN, known, strict=True))
    of_task = dict(zip(_OF_TASK, planned, strict=True))
    control = None
    if drain is not None:  # as it was when the task began
        control = RunControl()
        if drain[0] is not None:
            control.request_drain(drain[0])
    return Job(
        Task(node=node, input=Arguments(*given) if is_call else given, **of_task),
        StepId(*place),
        RunInfo(store=store if has_store else None, control=control, **of_run),
        **dict(zip(_OF_JOB, own, strict=True)),
        variables=variables_of(carried),
    )


def variables_of(carried: Carried | None) -> contextvars.Context:
    """Return context variables that hold what was carried here, and nothing else."""
    context = contextvars.Context()
    if carried is not None:
        context.run(bring, carried)
    return context


def _unpicklable_input(job: Job, error: Exception) -> TaskSerializationError:
    """Return an error that names the part of *job* that cannot be pickled."""
    given = job.task.input
    parts: list[tuple[str, Any]] = [("input", given)]
    if isinstance(given, Arguments):
        parts = [(f"args[{index}]", part) for index, part in enumerate(given.args)]
        parts += ((f"argument {name}", part) for name, part in given.kwargs.items())
    parts += (("config", job.run.config), ("context", job.run.context))
    parts += (("previous", job.place.previous), ("answers", job.task.answers))
    parts += (("error", job.task.error), ("channels", job.channels), ("managed", job.managed))
    if (carried := carried_by(job.variables, {})) is not None:
        parts += ((f"context variable {name!r}", v) for (_, name), v in carried.values.items())
    for name, part in parts:
        try:
            dumps(part)
        except Exception:  # noqa: BLE001 - this is the part; the reason is looked for next
            what = "input" if name.startswith(("input", "arg")) else name
            path, cause = find_culprit(part, name)
            return TaskSerializationError(job.task.name, f"the {what}", path, cause)
    return TaskSerializationError(job.task.name, "the input", "input", str(error))


# ------------------------------------------------ the pool's jobs, and its tasks' calls


class JobEncoder:
    """Packs jobs. A job is packed when it is taken: its task gets what the caller had then.

    Args:
        arena: Shared memory for large inputs.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._ids = count(1)
        # The node is kept beside its code, so that its id names nothing else meanwhile.
        self._known: OrderedDict[tuple[int, str | None], tuple[Node, NodeCode]] = OrderedDict()
        self._codes: WeakValueDictionary[bytes, NodeCode] = WeakValueDictionary()
        self._called: OrderedDict[tuple[bytes, int], Node] = OrderedDict()
        self._depths: dict[int, int] = {}
        self._lock = threading.Lock()

    def encode(self, job: Job, mailbox: Mailbox) -> InFlight:
        """Return *job* as the pool keeps it; from any OS thread.

        Raises:
            FlowPregelError: A part of it cannot be pickled.
        """
        code = self._code_of(job.task.node, job.run.run_id)
        depth = self._depths.get(id(job.task.node), 0)
        contexts: list[bytes] = []
        if job.task.node.contexts:
            from flowpregel.channels.context import contexts_in  # noqa: PLC0415 - all channels

            contexts = [each.held.token for each in contexts_in(job.task.input)]
        task = InFlight(next(self._ids), job, mailbox, code, depth, contexts)
        if len(self.pack(task)) > _LARGE:
            # Shared memory is full. Very many such jobs must not fill all other memory too.
            task.body = None
        return task

    def _code_of(self, node: Node, run_id: str | None) -> NodeCode:
        """Return the code of *node*, which is packed once for each run.

        A run keeps the code as it was when the run first used it: what a notebook
        changes afterwards, its next run sees.
        """
        key = (id(node), run_id)
        with self._lock:
            known = self._known.get(key)
            if known is None:
                data = pack_node(node)
                digest = digest_of(data)
                known = node, self._codes.setdefault(digest, NodeCode(digest, data))
                self._known[key] = known
                if len(self._known) > _MOST_NODES:
                    self._known.popitem(last=False)
        return known[1]

    def pack(self, task: InFlight, *, share: bool = True) -> bytes:
        """Pack the job of *task* if it is not packed; return its bytes.

        Raises:
            FlowPregelError: A part of it cannot be pickled.
        """
        if task.body is not None and share:
            return task.body
        name, arena = task.job.task.name, self._arena
        try:
            task.body, task.refs = pack_job(task.job, arena if share else None)
        except FlowPregelError:
            raise
        except Exception as error:
            raise TaskSerializationError(name, "the input", "input", repr(error)) from error
        if arena.is_full:
            arena.is_full = False
            _log.warning(
                "no shared memory is left for the input of task %r: it goes through the link, "
                "which is slower", name,
            )  # fmt: skip
        return task.body

    def decode_call(self, task: InFlight, body: bytes) -> Call:
        """Return the call that a worker says *task* makes.

        Calls of one code from tasks of one depth have the same node object, so that the
        node of a job shows how deeply its task is nested.

        Raises:
            BaseException: Whatever the unpickling of a part raises.
        """
        (request,) = REQUEST.unpack_from(body)
        code, arguments, fingerprint, describe, carried = unpack(body, None, REQUEST.size)
        key = digest_of(code), task.depth + 1
        node = self._called.get(key)
        if node is None:
            node = self._called[key] = loads(code)
            self._depths[id(node)] = task.depth + 1
            if len(self._called) > _MOST_NODES:
                _, oldest = self._called.popitem(last=False)
                self._depths.pop(id(oldest), None)
        call = Call(*task.job.key, node, arguments, fingerprint, describe)
        call.reply = (task, request)
        if carried is not None:
            call.variables = variables_of(carried)
        return call


# ------------------------------------------------ outcomes

_RETURNED, _RAISED, _INTERRUPTED, _ESCAPED, _WITHDRAWN = range(5)


class WorkerTraceback(Exception):
    """The traceback of an error, as text, where it was raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def pack_outcome(outcome: Outcome, task: str, share: BufferWriter | None) -> bytes:
    """Return *outcome* as bytes that the coordinator can decode; raises nothing.

    What cannot be pickled, or not be unpickled again, becomes a `Raised` that
    names the task and the path to the culprit.
    """
    value: Any
    match outcome:
        case Raised(error):
            return _pack_error(error, task, share)
        case Withdrawn():
            return bytes((_WITHDRAWN,))
        case Returned(writes):
            tag, name, content = _RETURNED, "result", tuple(writes)
            value = writes[0][1] if len(writes) == 1 else writes
        case Interrupted(interrupts, answers):
            tag, name, value = _INTERRUPTED, "interrupt", (interrupts, answers)
            content = value
        case Escaped(command):
            tag, name, value = _ESCAPED, "command", command
            content = value
    try:
        return bytes((tag,)) + pack(content, share).data
    except BaseException as error:  # noqa: BLE001 - the worker always answers
        failure = TaskSerializationError(task, f"the {name}", *find_culprit(value, name))
        return _pack_error(failure.with_traceback(error.__traceback__), task, None)


def _pack_error(error: BaseException, task: str, share: BufferWriter | None) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        message = pack((error, error.__cause__, text, failed_calls(error)), share)
        # Many exceptions can be pickled and not unpickled: required keyword arguments.
        if not message.refs:
            unpack(message.data)
    except BaseException as problem:  # noqa: BLE001 - the worker always answers
        path, cause = find_culprit(error, "error")
        if cause == _AS_A_WHOLE:
            cause = f"{type(problem).__name__}: {problem}"
        stand_in = TaskSerializationError(task, "the error", path, cause)
        message = pack((stand_in, None, text, failed_calls(error)))
    return bytes((_RAISED,)) + message.data


def unpack_outcome(data: bytes, origin: str, open_ref: Open | None, at: int = 0) -> Outcome:
    """Return the outcome that `pack_outcome` was given.

    Args:
        data: The body of the frame.
        origin: Names the task, the attempt and the worker, for the note on an error.
        open_ref: Opens shared memory.
        at: Where in the body it begins.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    tag = data[at]
    if tag == _WITHDRAWN:
        return Withdrawn()
    if tag > _WITHDRAWN:
        raise ValueError(f"no outcome has the tag {tag}")
    content = unpack(data, open_ref, at + 1)
    if tag == _RETURNED:
        return Returned(content)
    if tag == _INTERRUPTED:
        return Interrupted(*content)
    if tag == _ESCAPED:
        return Escaped(content)
    error, cause, text, calls = content
    if calls:
        add_failed_calls(error, calls)
    # A pickle leaves out the error that was being handled.
    error.__cause__ = cause if cause is not None else WorkerTraceback(text)
    error.add_note(f"{origin}\n{text}" if cause is not None else origin)
    return Raised(error)


def give_name(outcome: Outcome, task: str) -> None:
    """Name the task in the error of a worker that could not unpickle it."""
    match outcome:
        case Raised(TaskSerializationError(task=name) as error) if name == UNNAMED:
            error.task, error.args = task, (task, *error.args[1:])
