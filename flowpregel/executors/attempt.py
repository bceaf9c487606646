"""One attempt of one task: call the node, run its writers, and return the
outcome.

The same code runs in the coordinator, in OS threads, on an event loop and in worker
processes. Awaitables are yielded, so that sync and async callers share the same code.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass, field, replace
from resource import RUSAGE_SELF, getrusage
from typing import Any, Final

from flowpregel import _fault, _linux, errors
from flowpregel._core import records
from flowpregel._core.chunks import ItemsFailed
from flowpregel._core.commands import CallTarget, Injection
from flowpregel._core.ids import Cost, Preview, Span
from flowpregel._core.metric_series import pack_series
from flowpregel._core.previews import (
    LARGEST_INT,
    MOST_BYTES,
    PreviewDraft,
    argument_fields,
    encode_json,
    first_fields,
    output_fields,
)
from flowpregel._core.records import (
    Arguments,
    Kind,
    Outcome,
    Raised,
    Returned,
    Task,
)
from flowpregel._pickling.copies import private_copy
from flowpregel.context import (
    Job,
    RunClient,
    Scope,
    config_of,
    current,
    node_callbacks,
)
from flowpregel.errors import ParentCommand, TaskCancelled
from flowpregel.executors.base import HOST
from flowpregel.executors.calls import RETURN_RESULTS, refuse_futures
from flowpregel.executors.handles import HANDLES, with_values
from flowpregel.executors.mutations import MutationCheck
from flowpregel.executors.parent_run import MANAGER_MODULE, set_parent_run
from flowpregel.executors.previews import (
    media_of,
    note_report,
    packed_media,
    result_fields,
)
from flowpregel.runtime import runtime_of

_TOGETHER: Final = ("coroutines", "graph")
"""The executors on which several attempts run at the same time on one OS thread, so
that the CPU time of the OS thread is not that of one attempt.
"""


@dataclass(slots=True)
class Stopwatch:
    """A stopwatch for the time and the CPU time of one attempt. It must be created and
    stopped on the attempt's OS thread.
    """

    began: int = field(default_factory=time.time_ns)
    started: int = field(default_factory=time.monotonic_ns)
    cpu: float = field(default_factory=time.thread_time)

    def stop(self, executor: str) -> Span:
        """Return the span (times, place and cost) of the attempt, which ran in this
        process, on *executor*.
        """
        seconds = (time.monotonic_ns() - self.started) / 1e9
        cpu = 0.0 if executor in _TOGETHER else time.thread_time() - self.cpu
        return Span(self.began, seconds, executor, os.getpid(), Cost(cpu), HOST)


class ProcessStopwatch:
    """A stopwatch for one attempt that runs alone in this process, so that the CPU time
    and the memory of the process are those of the attempt.
    """

    __slots__ = ("_began", "_cpu", "started")

    def __init__(self) -> None:
        self.started: float = time.monotonic()
        """The time at which the stopwatch was created."""
        self._began = time.time_ns()
        self._cpu = time.process_time()

    def stop(self, preview: Preview) -> Span:
        """Return the span of the attempt (its time and cost). The executor, the pid and
        the host are filled in by the receiver.
        """
        seconds = time.monotonic() - self.started
        cpu = time.process_time() - self._cpu
        peak = getrusage(RUSAGE_SELF).ru_maxrss * _linux.RSS_UNIT
        return Span(self._began, seconds, "", 0, Cost(cpu, peak), "", preview)


def perform(job: Job, client: RunClient) -> Outcome:
    """Run an attempt of a sync node, and return its outcome. This never raises.

    If the node's code called `os.fork`, and the child process also returns from the
    node, the child process exits here.
    """
    pid, scope = os.getpid(), Scope(job, client, note_report)
    token = current.set(scope)
    try:
        steps = _attempt(scope)
        for awaited in steps:
            steps.close()
            return Raised(_not_awaited(job.task.name, awaited))
        _exit_if_forked(pid, None)
        for future in [*scope.deferred]:
            future.result()
        return _returned(scope)
    except BaseException as error:  # noqa: BLE001 - how it ended is the result
        _exit_if_forked(pid, error)
        return _ended_by(error, scope)
    finally:
        _leave(scope, token)


def publish_outputs(scope: Scope) -> None:
    """Move the output files of an attempt, or of an item of a chunk, to their final
    paths. If the run is stored, record the files with the call.
    """
    draft = scope.preview_draft()
    is_recorded = draft is not None
    files = scope.files
    files.publish(takes_digests=is_recorded)
    if draft is not None:
        # The fields of the output files are inserted before the closing brace of the
        # preview's JSON, with a leading comma. The entry "a" makes sure that there is a
        # field before the comma.
        draft.parts.setdefault("a", {})
        draft.outputs = output_fields(files.written)


def _packed_preview(draft: PreviewDraft, scope: Scope, *, has_result: bool) -> Preview:
    """Return the packed preview of the call of *scope*, which has ended. A preview is
    the part of the arguments, the result and the reports that the page and the CLI
    show.

    Args:
        draft: The preview, as far as the attempt has written it.
        scope: The scope of the attempt, with its writes.
        has_result: True if the call has returned.
    """
    parts = draft.parts
    media = draft.media
    if has_result and scope.writes and scope.writes[0][0] == records.RETURN:
        result = scope.writes[0][1]
        if type(result) is int and abs(result) < LARGEST_INT:
            parts["r"] = result
        elif result is not None:
            parts["r"] = result_fields(result)
            media = [*media_of(result, "result"), *media]
    if draft.series is not None:
        # Media beyond the limit on the total size are left out, the last ones first.
        # The series of metrics are small, so they come first.
        clock_offset = time.time() - time.monotonic()
        media = [*pack_series(draft.series, clock_offset), *media]
    fields = encode_json(parts).encode(errors="replace") if parts else b""
    if len(fields) > MOST_BYTES:
        fields = first_fields(parts)
    # The output files are added before the last byte, the closing brace.
    fields = fields[:-1] + draft.outputs + fields[-1:]
    return Preview(fields, packed_media(media) if media else b"")


def _returned(scope: Scope) -> Returned:
    """Return the outcome of the attempt of *scope*. Its node has returned, and all its
    calls have ended.
    """
    if scope.files is not None:
        publish_outputs(scope)
    if scope.preview is not None:
        scope.job.preview = _packed_preview(scope.preview, scope, has_result=True)
    return Returned(scope.writes)


def _ended_by(error: BaseException, scope: Scope) -> Outcome:
    """Return the outcome of the attempt of *scope*, which *error* ended."""
    if scope.preview is not None:
        scope.job.preview = _packed_preview(scope.preview, scope, has_result=False)
    return outcome_of(scope.job, error, scope)


def _leave(scope: Scope, token: Token[Scope | None]) -> None:
    """Undo the changes that the library made in this process for the attempt of
    *scope*.

    Args:
        scope: The scope, which this OS thread or coroutine now leaves.
        token: The token that ``current.set(scope)`` returned.
    """
    # The job owns the context variables that are now set. If `current` among them still
    # referred to the scope, which refers to the job, the job's input would stay alive.
    current.reset(token)
    scope.deferred.clear()
    if scope.files is not None:
        scope.files.remove()


def _exit_if_forked(pid: int, error: BaseException | None) -> None:
    """Exit this process, in which an attempt has ended, with the status for *error*, if
    it is a fork of the process in which the attempt began.

    A fork has only one OS thread of that process, and shares files, store and workers
    with it. So the fork must not run the functions that a program runs at exit, such as
    atexit functions and the shutdown of pools.

    Args:
        pid: The process in which the attempt began.
        error: The error that ended the attempt, or None if its node has returned.
    """
    if os.getpid() == pid:
        return
    code = 0
    try:
        if isinstance(error, SystemExit):
            # As in Python itself, an exit code of None means success, and an object
            # that is not an int means failure.
            code = 0 if error.code is None else 1
            if isinstance(error.code, int):
                code = error.code
        elif error is not None:
            code = 1
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


async def aperform(job: Job, client: RunClient) -> Outcome:
    """Run an attempt on the event loop, and return its outcome.

    Raises:
        asyncio.CancelledError: The attempt was cancelled from outside.
    """
    pid, scope = os.getpid(), Scope(job, client, note_report)
    token = current.set(scope)
    try:
        await _await_each(_attempt(scope, prefer_async=True))
        _exit_if_forked(pid, None)
        for future in [*scope.deferred]:
            await future
        return _returned(scope)
    except BaseException as error:
        _exit_if_forked(pid, error)
        outcome = _ended_by(error, scope)
        if _is_cancelled_from_outside(error):
            raise
        return outcome
    finally:
        _leave(scope, token)


async def _await_each(steps: Generator[Any, Any, None]) -> None:
    """Run the generator *steps* to its end, and await each awaitable that it yields."""
    reply: Any = None
    failure: BaseException | None = None
    while True:
        try:
            awaited = steps.throw(failure) if failure else steps.send(reply)
        except StopIteration:
            return
        try:
            reply, failure = await awaited, None
        except BaseException as error:  # noqa: BLE001 - raised again inside the attempt
            failure = error


def _is_cancelled_from_outside(error: BaseException) -> bool:
    """Return whether *error* is a cancellation of the asyncio task that runs the
    attempt, and not one that the node's code raised.
    """
    import asyncio  # noqa: PLC0415 - `import flowpregel` does not load it

    task = asyncio.current_task()
    return (
        isinstance(error, asyncio.CancelledError)
        and task is not None
        and task.cancelling() > 0
    )


def outcome_of(job: Job, error: BaseException, scope: Scope | None = None) -> Outcome:
    """Return the outcome of an attempt that *error* ended.

    Args:
        job: The job of the attempt.
        error: The error that ended the attempt.
        scope: The scope of the attempt, or None if the attempt never began.
    """
    refused = None if scope is None else scope.refused
    if refused is not None and isinstance(error, Exception):
        return replace(refused, refused=error)
    match error:
        case errors.GraphInterrupt():
            questions: Sequence[Any] = ()
            if scope is not None and scope.questions is not None:
                questions = scope.questions.records
            return records.Interrupted(
                tuple(error.interrupts), questions=tuple(questions)
            )
        case ParentCommand():
            return records.Escaped(error.command)
        case TaskCancelled():
            return records.Withdrawn()
        case ItemsFailed(items=items):
            return Raised(items.first_error, items)
        case Exception():
            return Raised(error)
        case SystemExit() | KeyboardInterrupt():
            failure = errors.TaskExitError(job.task.name, repr(error))
            failure.__context__ = error
            failure.__suppress_context__ = True
            return Raised(failure)
    cancelled = errors.NodeCancelledError(job.task.name)
    cancelled.__cause__ = error
    return Raised(cancelled)


def _not_awaited(name: str, awaited: Any) -> TypeError:
    """Return the error for a sync node whose result would have to be awaited."""
    if inspect.iscoroutine(awaited):
        awaited.close()
    if hasattr(awaited, "add_done_callback"):
        return TypeError(f"{name!r} returned a future: {RETURN_RESULTS}")
    return async_in_sync_run(name)


def async_in_sync_run(name: str) -> TypeError:
    """Return the error for an async node that a sync run cannot await."""
    return TypeError(
        f"No synchronous function provided: node {name!r} is async, and this run is "
        "sync; use ainvoke or astream, or give the node a sync function"
    )


def _attempt(scope: Scope, *, prefer_async: bool = False) -> Generator[Any, Any, None]:
    """Call the node's steps and then its writers, and yield each awaitable.

    At the end, *scope* contains the writes.
    """
    task = scope.job.task
    node, value = task.node, task.input
    call_step = _CALLS[scope.job.run.checks_mutations]
    if node.role == "body" or isinstance(value, Arguments):
        value = _private_input(scope)
    if _fault.points:
        _fault.fault("task.before", task.id)
    if node.contexts:
        value = yield from _entered(node.contexts, value, on_loop=prefer_async)
    if node_callbacks.get() is not None or MANAGER_MODULE in sys.modules:
        call_step = yield from _with_callbacks(scope, call_step, on_loop=prefer_async)
    try:
        for callee in node.steps:
            result = call_step(callee, value, scope, prefer_async=prefer_async)
            value = (yield result) if hasattr(result, "__await__") else result
    except ParentCommand as escaped:
        value = _own_command(task, escaped)
    if _fault.points:
        _fault.fault("task.after", task.id)
    scope.end_questions()
    if task.kind is not Kind.CALL:
        yield from _write(scope, value)
        return
    refuse_futures(value)
    scope.writes = [(records.RETURN, value)]


def _with_callbacks(
    scope: Scope, call_step: Callable[..., Any], *, on_loop: bool
) -> Generator[Any, Any, Callable[..., Any]]:
    """Pass the callback handlers of the run, if it has any, to the code of the attempt,
    and yield each awaitable. Return the function to use in place of *call_step*.
    """
    callbacks = node_callbacks.get()
    if callbacks is not None:
        return (yield from callbacks.enter(scope, call_step, on_loop=on_loop))
    set_parent_run(scope, on_loop=on_loop)
    return call_step


def _write(scope: Scope, output: Any) -> Generator[Any, Any, None]:
    """Call the node's writers with the node's *output*, and yield each awaitable."""
    for writer in scope.job.task.node.writers:
        writes = writer(output, scope)
        if hasattr(writes, "__await__"):
            writes = yield writes
        scope.writes.extend(writes)


def _private_input(scope: Scope) -> Any:
    """Return the input of a task or of a workflow's body, copied where a change by its
    code would do harm. If the call is recorded, begin its preview.
    """
    job = scope.job
    task, value = job.task, job.task.input
    if isinstance(value, Arguments) and not HANDLES.isdisjoint(
        map(type, (*value.args, *value.kwargs.values()))
    ):
        value = with_values(value)
    elif task.node.role == "body" and job.compares:
        # The body gets a copy, because it may change its input, and the original may be
        # recorded later (`durability="exit"`) or passed to another attempt.
        value = private_copy(value)
    if task.node.is_task and job.run.has_saver:
        fields = argument_fields(task.node, value.args, value.kwargs)
        scope.preview = PreviewDraft({"a": fields} if fields else {})
    return value


def _own_command(task: Task, escaped: ParentCommand) -> Any:
    """Return the command that a called graph has sent to its parent graph, if that
    parent is the graph of *task*.

    Raises:
        ParentCommand: The command is for another graph.
    """
    is_called = task.kind is Kind.CALL or task.node.role == "body"
    if is_called or escaped.command.graph is not None:
        raise escaped
    return escaped.command


def _entered(
    names: Sequence[str], value: Any, *, on_loop: bool
) -> Generator[Any, Any, Any]:
    """Return a node's input. The `Context` channels in *names* are replaced by the
    values of their context managers, which are entered in this process.
    """
    if not isinstance(value, dict):
        return (yield value.aget()) if on_loop and value.is_async else value.get()
    entered = dict(value)
    for key in filter(value.__contains__, names):
        entered[key] = yield from _entered((), value[key], on_loop=on_loop)
    return entered


def call(
    callee: CallTarget, value: Any, scope: Scope, *, prefer_async: bool = False
) -> Any:
    """Call *callee* with *value* (the input or the arguments), and with the objects,
    such as ``runtime``, that it takes as parameters.
    """
    target = callee.func
    if target is None or (prefer_async and callee.coroutine is not None):
        target = callee.coroutine
    assert target is not None
    args: tuple[Any, ...] = (value,)
    kwargs: Mapping[str, Any] = {}
    if isinstance(value, Arguments):
        args, kwargs = value.args, value.kwargs
    if callee.injections:
        kwargs = _with_injections(callee, args, kwargs, scope)
    return target(*args, **kwargs)


def call_checked(
    callee: CallTarget, value: Any, scope: Scope, *, prefer_async: bool = False
) -> Any:
    """Call *callee* as `call` does, and give the run's user a notice if the task has
    changed its arguments in place.

    Only calls of tasks are checked, not the inputs of nodes and workflows. The items of
    a chunk are checked one by one, each when the task's function is called with it.
    """
    is_task = scope.job.task.kind is Kind.CALL and not callee.calls_items
    if not is_task or not isinstance(value, Arguments):
        return call(callee, value, scope, prefer_async=prefer_async)
    if callee.func is None or (prefer_async and callee.coroutine is not None):
        return _await_checked(callee, value, scope)
    check = MutationCheck(value)
    try:
        result = call(callee, check.arguments, scope)
    except Exception:
        check.emit_notice(callee.func, None, scope)
        raise
    check.emit_notice(callee.func, result, scope)
    return result


async def _await_checked(callee: CallTarget, value: Arguments, scope: Scope) -> Any:
    """Call *callee*, whose function is async, as `call_checked` does."""
    check = MutationCheck(value)
    try:
        result = await call(callee, check.arguments, scope, prefer_async=True)
    except Exception:
        check.emit_notice(callee.coroutine, None, scope)
        raise
    check.emit_notice(callee.coroutine, result, scope)
    return result


def _with_injections(
    callee: CallTarget, args: Sequence[Any], kwargs: Mapping[str, Any], scope: Scope
) -> dict[str, Any]:
    """Return *kwargs* with the objects, such as ``runtime``, that *callee* takes as
    parameters and that the call does not pass.
    """
    completed = dict(kwargs)
    for injection in callee.injections:
        is_positional = injection.index is not None and injection.index < len(args)
        if not is_positional and injection.name not in kwargs:
            _inject(injection, callee, scope, completed)
    return completed


def _inject(
    injection: Injection, callee: CallTarget, scope: Scope, kwargs: dict[str, Any]
) -> None:
    """Add the object that *injection* names to *kwargs*.

    If there is no such object, and the parameter has a default, nothing is added.
    """
    value: Any
    match injection.name:
        case "config":
            value = config_of(scope)
        case "writer":
            value = scope.run_client.emit
        case "runtime":
            value = runtime_of(scope)
        case "store":
            value = scope.job.run.store
        case "error":
            value = scope.job.task.error
        case "previous":
            value = scope.job.step.previous
        case _:
            value = scope.job.run.context
    if value is None and not injection.required:
        return
    if (
        value is None
        and injection.name in ("store", "error")
        and not injection.optional
    ):
        raise errors.ConfigurationError(
            f"{callee.name!r} asks for {injection.name!r}, which this run does not have"
        )
    kwargs[injection.name] = value


_CALLS: Final = {False: call, True: call_checked}
"""The functions that call a node's code: `call_checked` if the run checks for arguments
that a task changes in place, else `call`.
"""
