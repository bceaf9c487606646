"""The calls that bodies make: what each asks for, how it ends and fails, and what is
kept of it.

Results need no run where an earlier one kept them, or another shares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowpregel import errors
from flowpregel._core import answers, ids, records, replay
from flowpregel._core.effects import (
    SAVE,
    BodyCalls,
    Call,
    CallFailure,
    Resolve,
    StepContext,
)
from flowpregel._core.ids import NOWHERE, CallRecord
from flowpregel._core.records import Kind, Outcome, Raised, Returned, Task, Write
from flowpregel._core.run_state import Run

DEEPEST = 1_000
"""How deep tasks, or graphs, may be nested: as deep as Python's own calls are by
default. In OS threads and worker processes no stack would end endless nesting.
"""

# ---------------------------------------------------------------- what a body asks for


def plan_call(
    run: Run, place: StepContext, running: Mapping[str, Task], caller: Task, call: Call
) -> Task | None:
    """Return the task that is to be run for a *call* of *caller*.

    None: the call is answered at once, by its record for one, or is among the tasks
    *running*.
    """
    if call.node is SAVE:
        _save(run, caller, call)
        return None
    if caller.body is None:
        caller.body = BodyCalls(bool(caller.node.retry))
    body: BodyCalls = caller.body
    if call.asked is not None and not body.caller:
        body.caller = replay.digest_of_caller(caller)
    identity, record = identify_call(caller, call, place)
    if call.asked is not None:
        _note_unseen_code(run, call.asked)
    outcome: Outcome | None = None
    if record is not None and identity not in running:
        identity, outcome = _answered(run, place, caller, call, identity, record)
    if outcome is None:
        if record is not None:
            replay.note_use(run, body, record, record.code)
        task = call_task(caller, call, place, identity, record)
        if (same := running.get(identity)) is not None:
            same.waiting.append(call)
            return None
        if task.depth <= DEEPEST:
            run.replay_report.executed += not task.node.hidden
            body.running += 1
            return task
        outcome = fail_call(task, too_deep(task.name))
    run.after.append(Resolve(call, outcome))
    return None


def _note_unseen_code(
    run: Run,
    call: ids.CallKey,
) -> None:
    """Note the values that the digest of the code of a call does not see."""
    values = call.unseen
    if not values:
        return
    unseen = run.replay_report.unseen
    name = call.name
    unseen[name] = values


def identify_call(
    caller: Task, call: Call, place: StepContext
) -> tuple[str, CallRecord | None]:
    """Count the next call that *caller* makes; return its id, and what is to be kept of
    it.

    The id is made of the caller and of what it asks for; that of a call which is not
    recorded, of its place among the calls of its caller.
    """
    body: BodyCalls = caller.body
    around, asked = (
        (place.checkpoint_id, place.namespace, place.step, caller.id),
        call.asked,
    )
    body.call_count += 1
    if asked is None:
        return ids.task_id(*around, body.call_count - 1), None
    question = asked[:2]
    equal = body.occurrences.get(question, 0)
    body.occurrences[question] = equal + 1
    at = body.position if asked.is_placed else NOWHERE
    body.position += asked.is_placed
    return ids.task_id(*around, *question, equal), CallRecord(
        *asked[:4], at, body.caller, asked.files
    )


def call_task(
    caller: Task,
    call: Call,
    place: StepContext,
    identity: str,
    record: CallRecord | None,
) -> Task:
    """Return the task of the call that *caller* made last: see `identify_call`."""
    body: BodyCalls = caller.body
    node, index = call.node, body.call_count - 1
    known_by: tuple[object, ...] = (index,)
    if record is not None:
        known_by = (*record[:2], body.occurrences[record[:2]] - 1)
    if node.role == "graph":
        namespace = (
            f"{caller.namespace}|{body.graphs}" if body.graphs else caller.namespace
        )
        body.graphs += 1
    else:
        around = f"{place.namespace}|{node.name}" if place.namespace else node.name
        namespace = f"{around}:{identity}"
    return Task(
        identity,
        node,
        Kind.CALL,
        call.arguments,
        ids.call_path(caller.path, index),
        namespace=namespace,
        parent=caller,
        timeout=node.timeout,
        depth=caller.depth + 1,
        record=record,
        stream=(*(caller.stream or (caller.path,)), *known_by),
        variables=call.variables,
        code=call.code,
        waiting=[call],
    )


def too_deep(name: str) -> RecursionError:
    """Return the error for a task or a graph that is nested too deep."""
    return RecursionError(
        f"{name!r} is nested more than {DEEPEST:,} deep: does it call itself without "
        "end?"
    )


def _answered(
    run: Run,
    place: StepContext,
    caller: Task,
    call: Call,
    identity: str,
    record: CallRecord,
) -> tuple[str, Outcome | None]:
    """Return `replay.answer_from_record`, or how the call fails because of it."""
    try:
        identity, outcome = replay.answer_from_record(
            run, caller, call, identity, record
        )
    except replay.REFUSALS as error:
        return identity, Raised(error)  # what is recorded stays as it is
    if isinstance(outcome, Raised) and not isinstance(
        outcome.error, errors.TaskCancelled
    ):
        # It may bring the body down only now: it was kept while another call asked.
        outcome = fail_call(
            call_task(caller, call, place, identity, record), outcome.error
        )
    if isinstance(outcome, Returned) and "recorded" in run.options.modes:
        run.after.extend(
            run.stream_events.updates(call.node, outcome.writes, "recorded")
        )
    return identity, outcome


def _save(run: Run, task: Task, call: Call) -> None:
    """Keep what a running *task* saves, for its next attempt; answer it when that is
    done.
    """
    (task.saved,) = call.arguments.args
    saved: Write = (records.SAVED, task.saved)
    called = () if task.record is None else ((records.CALLED, tuple(task.record)),)
    run.keep(task.id, task.path, (saved, *called))
    # For a call that the next attempt of its body makes.
    run.drop_saved(task)
    run.pending[task.id].append(saved)
    run.after.append(Resolve(call, Returned(())))


def cancel_call(run: Run, running: Mapping[str, Task], wanted: Call) -> list[Task]:
    """Record that a body no longer wants a call; return what is to be stopped: all
    below it.

    The record comes before whatever the body does next, which depends on it.
    """
    for task in running.values():
        if any(_is_same_caller(call.reply, wanted.reply) for call in task.waiting):
            run.keep_end(
                task,
                ((records.ERROR, errors.TaskCancelled("its caller cancelled it")),),
            )
            stopped = [task, *below(running, task)]
            for each in stopped:
                each.is_cancelled = True
            return stopped
    return []


def _is_same_caller(one: Any, other: Any) -> bool:
    """Return whether two replies are of one call: futures, or a task's place and a
    number.
    """
    return one is other or (
        isinstance(one, tuple) and isinstance(other, tuple) and one == other
    )


def below(
    running: Mapping[str, Task], body: Task, *, direct: bool = False
) -> list[Task]:
    """Return the running calls of *body*, and unless *direct* those that they make."""
    calls = [each for each in running.values() if each.parent is body and each.waiting]
    return (
        calls
        if direct
        else [*calls, *(each for task in calls for each in below(running, task))]
    )


# ---------------------------------------------------------------- ends


def fail_call(task: Task, error: BaseException) -> Raised:
    """Note that a call failed, perhaps when its body had ended already; return its
    outcome.
    """
    assert task.parent is not None
    body: BodyCalls = task.parent.body
    # A call that only an earlier attempt of the body made is not this one's to raise.
    asked = any(call.attempt == task.parent.attempt for call in task.waiting)
    body.failures[task.id] = CallFailure(
        task, error if asked else None, is_late=body.outcome is not None
    )
    records.add_failed_calls(error, (task.id,))
    return Raised(error)


def uncaught(run: Run, task: Task, error: BaseException) -> None:
    """Forget failures that brought *task* down, so that a resume tries them again.

    The same holds for those that it has not seen. A failure that the body caught is
    part of what it did, and is replayed.
    """
    body: BodyCalls | None = task.body
    if body is None:
        return
    failures, body.failures = body.failures, {}
    found = records.failed_calls(error)
    for task_id, failure in failures.items():
        if task_id in found or _is_unseen(body, failure):
            replay.forget(run, body, task_id, failure.task.path)


def _is_unseen(body: BodyCalls, failure: CallFailure) -> bool:
    return failure.is_late or (
        body.observed_failures is not None
        and failure.task.id not in body.observed_failures
    )


def final_outcome(body: BodyCalls, outcome: Outcome) -> Outcome:
    """Return how a body ended: with the failure of one of its calls, if it never saw
    it.
    """
    unseen = {
        each.task: each.error
        for each in body.failures.values()
        if each.error is not None and _is_unseen(body, each)
    }
    if isinstance(outcome, Returned) and unseen:
        task, error = next(iter(unseen.items()))
        error.add_note(
            f"nobody looked at this failure of {task.call}: ask each call for its "
            ".result(), "
            "or for its .exception() to go on without it"
        )
        outcome = Raised(error)
    if isinstance(outcome, Raised) and not body.running:
        known = records.failed_calls(outcome.error)
        others = [task.call for task in unseen if task.id not in known]
        if others:
            shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            outcome.error.add_note(
                f"{len(others)} more failed, and nobody looked: {shown}"
            )
    return outcome


# ---------------------------------------------------------------- failures


def note_of(failed: Task) -> str:
    """Return the note on what a task failed with: which one, its arguments, and where
    it ran.
    """
    note = f"During task with name {failed.name!r} and id {failed.id!r}"
    ran = failed.span
    worker = (
        f", worker {ran.pid}"
        if ran and ran.executor in ("processes", "futures")
        else ""
    )
    called = f": {failed.call}" if failed.kind is Kind.CALL else ""
    return f"{note}{called} (attempt {failed.attempt}{worker})"


def delay(run: Run, task: Task, outcome: Outcome, jitter: float) -> float | None:
    """Return the seconds until the next attempt of *task*, or None to give up."""
    if not isinstance(outcome, Raised):
        return 0.0 if answers.answer_first_question(run, task, outcome) else None
    error = outcome.error
    task.deaths += isinstance(error, errors.WorkerDiedError)
    for policy in task.node.retry:
        if policy.matches(error):
            is_spent = task.deaths >= policy.max_worker_deaths
            return None if is_spent else policy.delay(task.attempt, jitter)
    return None
