"""The calls that bodies make: what each asks for, how it ends and fails, and what is kept of it.

Results need no run where an earlier one kept them, or another shares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowpregel import errors
from flowpregel._core import ids, records, replay
from flowpregel._core.copies import own_copy
from flowpregel._core.digest import digest_of
from flowpregel._core.effects import SAVE, BodyCalls, Call, CallFailure, Resolve, StepContext
from flowpregel._core.ids import CallRecord, FailedCall, Ran, Span
from flowpregel._core.records import Arguments, Kind, Outcome, Raised, Returned, Task, Write
from flowpregel._core.run_state import Run
from flowpregel._core.stream_events import interrupts_of
from flowpregel._tracebacks import whole_text
from flowpregel.errors import CodeChangedError, ConfigurationError, ReplayMismatchError
from flowpregel.policies import CachePolicy

_LONGEST_LINE = 200
_MOST_ATTEMPTS = 10
"""Of a task's attempts that failed, the last ones are kept, this many."""

# ---------------------------------------------------------------- what a body asks for


def plan_call(
    run: Run, place: StepContext, running: Mapping[str, Task], caller: Task, call: Call
) -> Task | None:
    """Return the task that is to be run for a *call* of *caller*.

    None: the call is answered at once, by its record for one, or is among the tasks *running*.
    """
    if call.node is SAVE:
        _save(run, caller, call)
        return None
    if caller.body is None:
        caller.body = BodyCalls(bool(caller.node.retry))
    body: BodyCalls = caller.body
    if call.asked is not None and not body.caller:
        body.caller = replay.digest_of_caller(caller)
    identity, record = replay.identify_call(caller, call, place)
    outcome: Outcome | None = None
    if record is not None and identity not in running:
        identity, outcome = _answered(run, place, caller, call, identity, record)
    if outcome is None:
        task = replay.call_task(caller, call, place, identity, record)
        if (same := running.get(identity)) is not None:
            same.waiting.append(call)
            return None
        if task.depth <= replay.DEEPEST:
            run.going_on.anew += not task.node.hidden
            body.running += 1
            return task
        outcome = fail_call(task, replay.too_deep(task.name))
    run.after.append(Resolve(call, outcome))
    return None


def _answered(
    run: Run, place: StepContext, caller: Task, call: Call, identity: str, record: CallRecord
) -> tuple[str, Outcome | None]:
    """Return `answer`, or how the call fails because of it."""
    try:
        identity, outcome = replay.answer(run, caller, call, identity, record)
    except (CodeChangedError, ReplayMismatchError) as error:
        return identity, Raised(error)  # what is recorded stays as it is
    if isinstance(outcome, Raised) and not isinstance(outcome.error, errors.TaskCancelled):
        # It may bring the body down only now: it was kept while another call asked.
        outcome = fail_call(replay.call_task(caller, call, place, identity, record), outcome.error)
    if isinstance(outcome, Returned) and "recorded" in run.options.modes:
        run.after.extend(run.stream_events.updates(call.node, outcome.writes, "recorded"))
    return identity, outcome


def _save(run: Run, task: Task, call: Call) -> None:
    """Keep what a running *task* saves, for its next attempt; answer it when that is done."""
    (task.saved,) = call.arguments.args
    saved: Write = (records.SAVED, task.saved)
    called = () if task.record is None else ((records.CALLED, tuple(task.record)),)
    run.keep(task.id, task.path, (saved, *called))
    # For a call that the next attempt of its body makes.
    _drop_saved(run, task)
    run.pending[task.id].append(saved)
    run.after.append(Resolve(call, Returned(())))


def _drop_saved(run: Run, task: Task) -> None:
    """Forget what *task* has saved, which is not needed any more."""
    before = run.pending.get(task.id, ())
    run.pending[task.id] = [each for each in before if each[0] != records.SAVED]


def cancel_call(run: Run, running: Mapping[str, Task], wanted: Call) -> list[Task]:
    """Record that a body no longer wants a call; return what is to be stopped: all below it.

    The record comes before whatever the body does next, which depends on it.
    """
    for task in running.values():
        if any(call.reply == wanted.reply for call in task.waiting):
            keep(run, task, ((records.ERROR, errors.TaskCancelled("its caller cancelled it")),))
            stopped = [task, *below(running, task)]
            for each in stopped:
                each.is_cancelled = True
            return stopped
    return []


def below(running: Mapping[str, Task], body: Task, *, direct: bool = False) -> list[Task]:
    """Return the running calls of *body*, and unless *direct* those that they make."""
    calls = [each for each in running.values() if each.parent is body and each.waiting]
    return calls if direct else [*calls, *(each for task in calls for each in below(running, task))]


# ---------------------------------------------------------------- ends


def keep(run: Run, task: Task, writes: Sequence[Write]) -> None:
    """Keep the writes that *task*, a call or a planned one, ended with."""
    is_failure = writes[0][0] == records.ERROR
    if task.saved is not None and not is_failure:
        _drop_saved(run, task)
    if task.record is not None:
        # Last: the places of the other writes do not depend on it.
        writes = (*writes, (records.CALLED, tuple(task.record)))
    if task.kind is Kind.CALL:
        assert task.parent is not None
        if run.at_exit:
            # It is recorded after its body got it.
            writes = own_copy(tuple(writes))
        if task.parent.body.may_repeat:
            task.parent.body.recorded[task.id] = own_copy(tuple(writes))
    ran = None
    if task.span is not None:
        span, error, call = task.span, "", ""
        attempts = 0 if span.executor == "cache" else task.attempt
        if is_failure:
            note_failed(task, writes[0][1])
            error, call = task.failed[-1][3], task.call
        ran = Ran(
            task.node.name, span.began, span.seconds, attempts, span.executor, span.pid, error,
            call, task.first_started or 0, span.cpu, span.peak, span.host, task.failed,
        )  # fmt: skip
    failed = None
    is_failure &= not isinstance(writes[0][1], errors.TaskCancelled)
    if is_failure and task.node.is_task and run.options.keeps_arguments:
        failed = FailedCall(task.node.home, task.input, task.node.redacted)
    run.keep(task.id, task.path, writes, ran, failed)


def fail_call(task: Task, error: BaseException) -> Raised:
    """Note that a call failed, perhaps when its body had ended already; return its outcome."""
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
    return failure.is_late or (body.caught is not None and failure.task.id not in body.caught)


def final_outcome(body: BodyCalls, outcome: Outcome) -> Outcome:
    """Return how a body ended: with the failure of one of its calls, if it never saw it."""
    unseen = {
        each.task: each.error
        for each in body.failures.values()
        if each.error is not None and _is_unseen(body, each)
    }
    if isinstance(outcome, Returned) and unseen:
        task, error = next(iter(unseen.items()))
        error.add_note(
            f"nobody looked at this failure of {task.call}: ask each call for its .result(), "
            "or for its .exception() to go on without it"
        )
        outcome = Raised(error)
    if isinstance(outcome, Raised) and not body.running:
        known = records.failed_calls(outcome.error)
        others = [task.call for task in unseen if task.id not in known]
        if others:
            shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            outcome.error.add_note(f"{len(others)} more failed, and nobody looked: {shown}")
    return outcome


# ---------------------------------------------------------------- failures


def line_of(error: Any) -> str:
    """Return *error* in one line of bounded length."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - a user's __str__ may raise anything
        text = f"(its text cannot be had: {type(problem).__name__})"
    first = text.strip().partition("\n")[0]
    return (f"{name}: {first}" if first else name)[:_LONGEST_LINE]


def note_of(failed: Task) -> str:
    """Return the note on what a task failed with: which one, its arguments, and where it ran."""
    note = f"During task with name {failed.name!r} and id {failed.id!r}"
    ran = failed.span
    worker = f", worker {ran.pid}" if ran and ran.executor in ("processes", "futures") else ""
    if failed.kind is Kind.CALL:
        return f"{note}: {failed.call} (attempt {failed.attempt}{worker})"
    return f"{note} (attempt {failed.attempt}{worker})"


def note_failed(task: Task, error: BaseException) -> None:
    """Note how the attempt of *task* failed that has ended."""
    span = task.span or Span(task.first_started or 0, 0.0, "")
    # What a call has failed with is told of with that call.
    text = "" if records.failed_calls(error) else whole_text(error)
    attempt = span.began, span.seconds, span.pid, line_of(error), text
    task.failed = (*task.failed[1 - _MOST_ATTEMPTS :], attempt)


def delay(run: Run, task: Task, outcome: Outcome, jitter: float) -> float | None:
    """Return the seconds until the next attempt of *task*, or None to give up."""
    if not isinstance(outcome, Raised):
        return 0.0 if _answer_moved(run, task, outcome) else None
    error = outcome.error
    task.deaths += isinstance(error, errors.WorkerDiedError)
    for policy in task.node.retry:
        if policy.matches(error):
            is_spent = task.deaths >= policy.max_worker_deaths
            return None if is_spent else policy.delay(task.attempt, jitter)
    return None


# ---------------------------------------------------------------- results of earlier runs


def ask_cache(task: Task) -> None:
    """Give *task* the key under which its result is shared, if it is.

    Raises:
        ConfigurationError: The input has no content to make a key of.
    """
    policy = task.node.cache
    if policy is not None and task.cache_key is None:
        task.cache_key = (task.node.space, _key_of(task, policy), policy.ttl)


def _key_of(task: Task, policy: CachePolicy) -> str:
    args, kwargs = (task.input,), {}
    if isinstance(task.input, Arguments):
        args, kwargs = task.input.args, dict(task.input.kwargs)
    if policy.key_func is None:
        return digest_of((args, kwargs), f"the input of {task.name!r}", strict=True)
    made: Any = policy.key_func(*args, **kwargs)
    if not isinstance(made, str | bytes):
        raise ConfigurationError(
            f"the key_func of {task.name!r} returned {type(made).__qualname__}; "
            "a key is str or bytes"
        )
    return digest_of(made, "a key", strict=True)


def is_within(task: Task, key: Any) -> bool:
    """Return whether *key* is computed by a caller of *task*, which must not wait for it."""
    caller = task.parent
    while caller is not None and (caller.cache_key is None or caller.cache_key[:2] != key):
        caller = caller.parent
    return caller is not None


def answer_from_pending(run: Run, task: Task) -> None:
    """Give *task* what it saved and the answers it had; the new one it waits for is kept."""
    for channel, value in run.pending.get(task.id, ()):
        if channel == records.RESUME:
            task.answers = tuple(value)
        elif channel == records.SAVED and run.hand_back:
            task.saved = value
    if not run.answers:
        return
    if task.node.role == "graph":
        asked = interrupts_of(run.pending.get(task.id, ()), live=True)
        task.answers = tuple(run.answers[each.id] for each in asked if each.id in run.answers)
        return
    had = len(task.answers)
    if had and ids.interrupt_id(task.namespace, had - 1) in run.answers:
        had -= 1  # it failed with that answer, and gets another in its place
    answers = task.answers[:had]
    while (expected := ids.interrupt_id(task.namespace, len(answers))) in run.answers:
        answers = (*answers, run.answers.pop(expected))
    if len(answers) > had:
        task.answers = answers
        run.keep(task.id, task.path, ((records.RESUME, task.answers),))
        # If the call is made again, by the next attempt of its body, it has its answers too.
        run.pending.setdefault(task.id, []).append((records.RESUME, task.answers))


def _answer_moved(run: Run, task: Task, outcome: Outcome) -> bool:
    """Give *task* an answer to what was asked where its graph stood before, if it asks now."""
    if not isinstance(outcome, records.Interrupted) or not outcome.interrupts:
        return False
    run.answers[outcome.interrupts[0].id] = run.moved_answers.pop(0)
    answer_from_pending(run, task)
    return True
