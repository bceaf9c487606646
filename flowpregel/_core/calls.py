"""The calls that bodies make: their keys, results, failures and records.

A call does not run if an earlier run has recorded its result, or if another run shares
the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowpregel import errors
from flowpregel._core import answering, ids, recorded_calls, records
from flowpregel._core.body_calls import BodyCalls, CallFailure
from flowpregel._core.chunks import ItemOutcomes
from flowpregel._core.effects import (
    Call,
    CancelCall,
    Emitted,
    HandlerCall,
    Notice,
    SaveState,
    StepContext,
)
from flowpregel._core.ids import NOWHERE, CallRecord
from flowpregel._core.provenance import add_failed_attempt
from flowpregel._core.records import (
    Kind,
    Outcome,
    Raised,
    Returned,
    Task,
    TaskOrigin,
    Write,
)
from flowpregel._core.run import Run
from flowpregel._pickling.copies import as_storable

DEEPEST = 1_000
"""The number of tasks, or graphs, that may be nested. It equals Python's default
recursion limit. Python's own limit does not apply to nested tasks, because on OS
threads and in worker processes each of them has a stack of its own.
"""
_DEATHS = errors.WorkerDiedError, errors.MachineLostError
MACHINE_LOSSES = 3
"""The number of lost machines after which a task without a retry policy is not
repeated.
"""
SHOWN_FAILURES = 3
"""The greatest number of failed calls that the note of an error lists."""

# ---------------------------------------------------------------- planning


def plan_call(
    run: Run,
    step: StepContext,
    running: Mapping[str, Task],
    caller: Task,
    call: Call,
) -> Task | None:
    """Return the task that must run for a *call* of *caller*.

    Args:
        run: The run of the calling body.
        step: The facts about the run's present superstep.
        running: The tasks that run or wait, by id.
        caller: The task whose body makes the call.
        call: The event that the body has made a call.

    Returns:
        None if the call is answered at once, or is one of the tasks *running*.
    """
    body: BodyCalls | None = caller.attempt.body
    if body is None:
        may_repeat = call.may_repeat or bool(caller.node.retry)
        body = BodyCalls(may_repeat)
        caller.attempt.body = body
    task_id, record = identify_call(run, caller, call, step)
    outcome: Outcome | None = None
    # A record is looked up only if the run has stored writes, or the body may make the
    # same call again in a later attempt.
    if (
        record is not None
        and task_id not in running
        and (body.may_repeat or not run.replay.is_empty())
    ):
        task_id, outcome = _recorded_outcome(run, step, caller, call, task_id, record)
    if outcome is not None:
        run.outbox.resolve(call, outcome)
        return None
    if record is not None:
        recorded_calls.count_use(run, body, record, record.code)
    task = call_task(caller, call, step, task_id, record)
    same = running.get(task_id)
    if same is not None:
        _wait_for_equal(same, body, call)
        return None
    assert task.origin is not None
    if task.origin.depth > DEEPEST:
        failure = fail_call(task, too_deep(task.name))
        run.outbox.resolve(call, failure)
        return None
    if not call.node.hidden:
        run.replay.report.executed += 1
    body.running += 1
    body.sequence.open_tasks[call.reply] = task
    return task


def _wait_for_equal(task: Task, body: BodyCalls, call: Call) -> None:
    """Let *call* of *body* wait for *task*, which an equal call has started."""
    assert task.origin is not None
    task.origin.waiting.append(call)
    body.sequence.open_tasks[call.reply] = task


def identify_call(
    run: Run,
    caller: Task,
    call: Call,
    step: StepContext,
) -> tuple[str, CallRecord | None]:
    """Count the next call of *caller*, and return the call's task id and `CallRecord`
    (the key, the caller and the position).

    The id of a recorded call is made from the caller and the key of the call. The id of
    any other call is made from the caller and the position among the caller's calls.
    """
    body: BodyCalls = caller.attempt.body
    sequence = body.sequence
    index = sequence.call_count
    sequence.call_count = index + 1
    step_parts = step.checkpoint_id, step.namespace, step.step, caller.id
    key = call.key
    if key is None:
        return ids.task_id(*step_parts, index), None
    if not body.caller:
        body.caller = recorded_calls.digest_of_caller(caller)
    if key.unseen:
        run.replay.report.unseen[key.name] = key.unseen
    position = NOWHERE
    if key.is_placed:
        position = sequence.position
        sequence.position = position + 1
    record = CallRecord(
        name=key.name,
        arguments=key.arguments,
        code=key.code,
        text=key.text,
        position=position,
        caller=body.caller,
        files=key.files,
    )
    group = record.name, record.arguments
    occurrence = sequence.occurrences.get(group, 0)
    sequence.occurrences[group] = occurrence + 1
    return ids.task_id(*step_parts, *group, occurrence), record


def call_task(
    caller: Task,
    call: Call,
    step: StepContext,
    task_id: str,
    record: CallRecord | None,
) -> Task:
    """Return the task of the last call of *caller*: see `identify_call`."""
    sequence = caller.attempt.body.sequence
    index = sequence.call_count - 1
    position: tuple[object, ...] = (index,)
    if record is not None:
        group = record.name, record.arguments
        position = (*group, sequence.occurrences[group] - 1)
    if call.node.role == "graph":
        namespace = _next_graph_namespace(caller)
    else:
        prefix = f"{step.namespace}|" if step.namespace else ""
        namespace = f"{prefix}{call.node.name}:{task_id}"
    depth = 1 if caller.origin is None else caller.origin.depth + 1
    sources = () if call.key is None else call.key.sources
    origin = TaskOrigin(
        record=record,
        stream=(*caller.stream, *position),
        depth=depth,
        variables=call.variables,
        code=call.code,
        waiting=[call],
        sources=sources,
    )
    return Task(
        id=task_id,
        node=call.node,
        kind=Kind.CALL,
        input=call.arguments,
        path=ids.call_path(caller.path, index),
        namespace=namespace,
        parent=caller,
        timeout=call.node.timeout,
        origin=origin,
    )


def _next_graph_namespace(caller: Task) -> str:
    """Return the namespace of the next graph that *caller* calls."""
    sequence = caller.attempt.body.sequence
    number = sequence.graph_count
    sequence.graph_count = number + 1
    return f"{caller.namespace}|{number}" if number else caller.namespace


def too_deep(name: str) -> RecursionError:
    """Return the error for a task or a graph that is nested too deeply."""
    return RecursionError(
        f"{name!r} is nested more than {DEEPEST:,} deep: does it call itself without "
        "end?"
    )


def _recorded_outcome(
    run: Run,
    step: StepContext,
    caller: Task,
    call: Call,
    task_id: str,
    record: CallRecord,
) -> tuple[str, Outcome | None]:
    """Return the task id of a call, and the call's recorded outcome, if there is one.
    If the record must not be used (because the code has changed, for example), the
    outcome is the error that states why.
    """
    try:
        task_id, outcome = recorded_calls.answer_from_record(
            run, caller, call, task_id, record
        )
    except recorded_calls.REFUSALS as error:
        return task_id, Raised(error)  # The call fails. Its record stays in the store.
    if isinstance(outcome, Raised):
        if not isinstance(outcome.error, errors.TaskCancelled):
            # A failure from the record is noted as a possible cause of the caller's
            # failure. The caller may have ignored it in the earlier run, and may fail
            # because of it only now.
            task = call_task(caller, call, step, task_id, record)
            fail_call(task, outcome.error)
    elif isinstance(outcome, Returned) and "recorded" in run.options.modes:
        run.outbox.effects.extend(
            run.stream_events.updates(call.node, outcome.writes, "recorded")
        )
    return task_id, outcome


# ---------------------------------------------------------------- requests of tasks


def handle_emitted(run: Run, task: Task, event: Emitted) -> None:
    """Add an item that a running *task* has emitted to the stream, or give the user the
    notice that it contains.
    """
    if isinstance(event.payload, Notice):
        run.outbox.notify(event.payload.text, event.payload.subject)
    elif not isinstance(event.payload, HandlerCall):
        run.outbox.effects.extend(run.stream_events.emitted(task, event))


def save_state(
    run: Run,
    task: Task,
    request: SaveState,
) -> None:
    """Store the state that a running *task* saves for its next attempt, and reply to
    the task after the commit.
    """
    task.attempt.saved = request.value
    saved: Write = (records.SAVED, request.value)
    writes: list[Write] = [saved]
    record = task.record
    if record is not None:
        writes.append((records.CALLED, tuple(record)))
    run.store_writes(task.id, task.path, writes)
    # The state is also added to `pending`. If the task is a call, its body makes the
    # call again in the body's next attempt, and the call finds its state there.
    run.drop_saved_value(task)
    run.replay.pending[task.id].append(saved)
    run.outbox.resolve(request, Returned(()))


def cancel_call(
    run: Run,
    running: Mapping[str, Task],
    caller: Task,
    request: CancelCall,
) -> list[Task]:
    """Record that a body no longer needs a call, and return the tasks that must stop.

    The cancellation is recorded before the effects of anything that the body does next,
    because these may depend on it.

    Args:
        run: The run of the body.
        running: The tasks that run or wait, by id.
        caller: The task whose body made the call.
        request: The event that the body no longer needs the call.
    """
    body: BodyCalls | None = caller.attempt.body
    task = None if body is None else body.sequence.open_tasks.get(request.reply)
    if task is None:
        return []
    error = errors.TaskCancelled("its caller cancelled it")
    run.store_end(task, ((records.ERROR, error),))
    return [task, *below(running, task)]


def calls_of(running: Mapping[str, Task], body: Task) -> list[Task]:
    """Return the running calls that *body* itself has made."""
    own_calls: BodyCalls | None = body.attempt.body
    if own_calls is None or not own_calls.running:
        # Most tasks make no calls, so the running tasks are not searched for each.
        return []
    return [
        task
        for task in running.values()
        if task.parent is body and task.kind is Kind.CALL
    ]


def below(running: Mapping[str, Task], body: Task) -> list[Task]:
    """Return the running calls of *body*, and the calls that these have made in
    turn.
    """
    calls = calls_of(running, body)
    inner_calls: list[Task] = []
    for task in calls:
        inner_calls += below(running, task)
    return calls + inner_calls


# ---------------------------------------------------------------- failures of calls


def fail_call(task: Task, error: BaseException) -> Raised:
    """Record in the body's `BodyCalls` that a call failed, perhaps after its body
    ended, and return the call's outcome.
    """
    assert task.parent is not None
    assert task.origin is not None
    parent = task.parent.attempt
    body: BodyCalls = parent.body
    # The error is kept only if the present attempt of the body made the call. If only
    # an earlier attempt made the call, the present attempt must not raise the error.
    is_of_attempt = any(call.attempt == parent.number for call in task.origin.waiting)
    kept_error = error if is_of_attempt else None
    is_late = body.outcome is not None
    body.failures[task.id] = CallFailure(task, kept_error, is_late)
    records.add_failed_calls(error, (task.id,))
    return Raised(error)


def forget_uncaught(
    run: Run,
    task: Task,
    outcome: Raised,
) -> None:
    """Forget the failed calls that *task* did not catch, so that they are tried again.

    This concerns the calls that caused the errors of *outcome*, and the calls whose
    failures the body has not seen. A failure that the body caught is replayed, like a
    result.
    """
    body: BodyCalls | None = task.attempt.body
    if body is None:
        return
    failures = body.failures
    body.failures = {}
    causes: set[str] = set()
    for error in outcome.errors():
        causes |= records.failed_calls(error)
    for task_id, failure in failures.items():
        if task_id in causes or _is_unseen(body, failure):
            recorded_calls.forget(run, body, task_id, failure.task.path)


def _is_unseen(body: BodyCalls, failure: CallFailure) -> bool:
    """Return whether a body has not seen the failure of a call that it made, for
    example because it never asked for the call's result.
    """
    if failure.is_late:
        return True
    observed = body.observed_failures
    return observed is not None and failure.task.id not in observed


def final_outcome(body: BodyCalls, outcome: Outcome) -> Outcome:
    """Return *outcome*. If the body returned, but never saw the failure of a call that
    it made, return that failure instead.
    """
    unseen: dict[Task, BaseException] = {}
    for failure in body.failures.values():
        if failure.error is not None and _is_unseen(body, failure):
            unseen[failure.task] = failure.error
    if isinstance(outcome, Returned) and unseen:
        task, error = next(iter(unseen.items()))
        error.add_note(
            f"the body did not check this failure of {task.call}: read the .result() "
            "of each call, or its .exception() to continue despite a failure"
        )
        outcome = Raised(error)
    if isinstance(outcome, Raised) and not body.running:
        _mention_others(outcome.error, list(unseen))
    return outcome


def _mention_others(error: BaseException, unseen: Sequence[Task]) -> None:
    """Add a note to *error* that lists the calls in *unseen* that failed with other
    errors.
    """
    causes = records.failed_calls(error)
    texts = [task.call for task in unseen if task.id not in causes]
    if not texts:
        return
    listing = ", ".join(texts[:SHOWN_FAILURES])
    if len(texts) > SHOWN_FAILURES:
        listing += ", ..."
    error.add_note(f"other unchecked failures ({len(texts)}): {listing}")


# ---------------------------------------------------------------- failures of tasks


def note_of(failed: Task) -> str:
    """Return the note to add to the error of a task: the task's name, call and
    worker.
    """
    note = f"During task with name {failed.name!r} and id {failed.id!r}"
    if failed.kind is Kind.CALL:
        note += f": {failed.call}"
    span = failed.attempt.span
    worker = ""
    if span is not None and span.executor in ("processes", "futures"):
        worker = f", worker {span.pid}"
    return f"{note} (attempt {failed.attempt.number}{worker})"


def retry_delay(
    run: Run,
    task: Task,
    outcome: Outcome,
    jitter: float,
) -> float | None:
    """Return the seconds until the next attempt of *task*, or None if there is no
    further attempt.
    """
    if not isinstance(outcome, Raised):
        has_answer = answering.answer_first_question(run, task, outcome)
        return 0.0 if has_answer else None
    if isinstance(outcome.error, _DEATHS):
        task.attempt.deaths += 1
    items = outcome.items
    if items is None:
        return _delay_after(task, outcome.error, jitter)
    return _delay_of_chunk(task, items, jitter)


def _delay_of_chunk(task: Task, items: ItemOutcomes, jitter: float) -> float | None:
    """Return the seconds until the next attempt of a chunk, or None if no item is
    retried. Items that are not retried are marked as final for that attempt.
    """
    delays: list[float] = []
    final = set(items.final)
    for position in items.due():
        seconds = _delay_after(task, items.errors[position], jitter)
        if seconds is None:
            final.add(position)
        else:
            delays.append(seconds)
    task.attempt.saved = replace(items, final=frozenset(final))
    return max(delays, default=None)


def _delay_after(task: Task, error: BaseException, jitter: float) -> float | None:
    """Return the seconds until the next attempt after *error*, or None if there is no
    further attempt.
    """
    attempt = task.attempt
    if isinstance(error, errors.MachineLostError):
        # The loss of a machine is not the task's fault. The executor itself starts most
        # lost tasks again. A task that has made calls must be started again by the run,
        # because only the run can answer these calls.
        losses = attempt.deaths - 1 + error.losses
        if losses < MACHINE_LOSSES:
            return 0.0
    for policy in task.node.retry:
        if policy.matches(error):
            if attempt.deaths >= policy.max_worker_deaths:
                return None
            return policy.delay(attempt.number, jitter)
    return None


def add_notes(task: Task, outcome: Raised) -> None:
    """Add a note to each error of *outcome* that names the task, its call and its
    worker.
    """
    note = note_of(task)
    for error in outcome.errors():
        error.add_note(note)


def failure_writes(run: Run, task: Task, outcome: Raised) -> list[Write]:
    """Return the writes that record the failure of *task*."""
    writes: list[Write] = [(records.ERROR, as_storable(outcome.error))]
    if outcome.items is not None:
        writes.append(items_to_store(run, task, outcome.items))
    return writes


def with_earlier_items(task: Task, outcome: Raised) -> Raised:
    """Return *outcome*. If the task is a chunk (a call for several items), add the
    results that its items got in earlier attempts.
    """
    saved = task.attempt.saved
    items = outcome.items
    if items is not None:
        return replace(outcome, items=items.with_state(saved))
    is_error = isinstance(outcome.error, Exception)
    if isinstance(saved, ItemOutcomes) and is_error and saved.due():
        return replace(outcome, items=saved.without_result(outcome.error))
    return outcome


def items_to_store(run: Run, task: Task, items: ItemOutcomes) -> Write:
    """Return the write that stores the outcomes of a chunk's items for the next
    attempt. Also add this write to the pending writes: if the body makes the chunk's
    call again, the call finds the outcomes there.
    """
    storable = {
        position: as_storable(error) for position, error in items.errors.items()
    }
    # A resumed run tries all failed items again, including items that this run no
    # longer retries.
    stored = replace(items, errors=storable, final=frozenset())
    write: Write = (records.SAVED, stored)
    run.drop_saved_value(task)
    run.replay.pending[task.id].append(write)
    return write


def begin_next_attempt(run: Run, task: Task, outcome: Outcome) -> None:
    """Begin the next attempt of *task*, after an attempt that ended with *outcome*."""
    attempt = task.attempt
    attempt.number += 1
    if attempt.body is not None:
        attempt.body.restart()
    if isinstance(outcome, Raised):
        add_failed_attempt(task, outcome.error)
        forget_uncaught(run, task, outcome)
        items = outcome.items
        if items is not None:
            writes: list[Write] = [items_to_store(run, task, items)]
            if task.record is not None:
                writes.append((records.CALLED, tuple(task.record)))
            run.store_writes(task.id, task.path, writes)
