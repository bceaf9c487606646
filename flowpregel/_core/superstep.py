"""One superstep: start the tasks that are due, and handle the end of each task.

Theory of operation. A superstep is a loop of wake-ups, which `run_loop` drives::

    start() --> effects
    while open_tasks:   next_wait() --> Wait --> wake-up --> handle() --> effects
    ending_error(), end: the reasons why no barrier follows

Each wake-up brings events, and has two halves. While the events are handled, nothing
leaves the superstep. Afterwards, effects are performed, in an order that stays
consistent if the run crashes at any point:

====  ==============================  ================================================
      effects                         reason
====  ==============================  ================================================
1     `Submit`, `Cancel`              these depend on no result of this wake-up
2     `CacheLookup`                   the reply starts or ends more tasks
3     `Commit`                        all writes of the tasks that have ended are stored
                                      in one transaction
4     `Emit`, `Resolve`,              these show results to the stream, to waiting
      `CacheStore`                    bodies and to other runs, so the results must be
                                      stored before
====  ==============================  ================================================

The effects of rows 1 and 2 are collected in ``_effects`` and ``_lookups``. The effects
of row 4 are collected in the run's `Outbox`, which puts the commit in front of them.

The states of a task:

============  =========================================================================
state         meaning and the events that end it
============  =========================================================================
planned       the task is part of the superstep; if its stored writes are found, it is
              done, otherwise it is opened
looked up     the result may be shared; the reply to `CacheLookup` ends the task, starts
              it, or makes it wait for the run that computes the result
held          the task is a call that no recorded call fits; it starts after
              `effects.HOLD`, unless another call of the same task finds a record
running       an attempt was submitted; `Ended` follows
delayed       an attempt has failed; the next attempt starts when its delay is over
ended body    the task is a body that has ended while its calls run; the end of the last
              call settles it
settled       the writes, the failure or the questions of the task are stored; it is not
              open any more
============  =========================================================================

Looked-up tasks that wait, held tasks and delayed tasks are in `WaitingTasks`. A task is
open from its start until it is settled, and the superstep ends when no task is open.

A settled task takes these steps, in this order:

====  ================================================================================
1     The writes, the error or the interrupts are added to the outbox, with the record
      of the attempt (`Run.store_end`).
2     The events for the stream are added to the outbox.
3     The result is offered to the cache, or the claim of the task is released.
4     If the task is a call, each waiting `Call` is resolved. If the call's body has
      ended, and no other call of the body runs, the body is settled.
====  ================================================================================

The superstep ends in one of four ways: all tasks have returned (the barrier follows), a
task asks a question (the run pauses), a task fails, or a task commands the parent
graph. A failure stops the other tasks gently: running calls end and are stored, and
waiting tasks are withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from flowpregel import errors
from flowpregel._core import answering, cache_keys, calls, effects, records
from flowpregel._core.barrier import handler_task, prepared_outcome
from flowpregel._core.effects import (
    CacheEntry,
    CacheKey,
    Call,
    Effect,
    Ended,
    StepContext,
    Steps,
    Wakeup,
)
from flowpregel._core.late_calls import FailedBodies, notify_left_behind
from flowpregel._core.planned_tasks import unfinished_tasks
from flowpregel._core.records import (
    CacheClaim,
    Kind,
    Outcome,
    Raised,
    Returned,
    Task,
    Withdrawn,
)
from flowpregel._core.run import Run
from flowpregel._core.step_end import StepEnd, ending_tasks, took_too_long
from flowpregel._core.unmatched import held_calls, notice_of, still_unmatched, unmatched
from flowpregel._core.waiting import WaitingTasks


@dataclass(slots=True, eq=False)
class Superstep:
    """The tasks of one superstep and the calls they make, and how each of them ends.

    Args:
        run: The run that the superstep belongs to.
        tasks: The planned tasks, in the order in which their writes are applied.
        step: The facts that all tasks of the superstep have in common.
    """

    run: Run
    tasks: list[Task]
    step: StepContext
    open_tasks: dict[str, Task] = field(default_factory=dict)
    """The tasks that run or wait, by id. When it is empty, the superstep has ended."""
    _lookups: dict[str, Task] = field(default_factory=dict)
    """The tasks whose results must be looked up in the cache before they start, by
    id.
    """
    _waiting: WaitingTasks = field(default_factory=WaitingTasks)
    """The tasks that start, or are looked up again, at a later time."""
    _deadline: int | None = None
    """The monotonic nanoseconds by which the superstep must end."""
    _effects: list[Effect] = field(default_factory=list)
    """The effects to perform before the commit (row 1 of the table above)."""
    _shared: dict[CacheKey, CacheEntry | None] = field(default_factory=dict)
    """The results to put into the cache, and the claims to release
    (`effects.CacheStore`).
    """
    _cancelled: set[str] = field(default_factory=set)
    """The ids of the calls that are no longer needed by the workflows and tasks that
    made them.
    """
    end: StepEnd = field(default_factory=StepEnd)
    _failed_bodies: FailedBodies | None = None

    # ------------------------------------------------------------ main loop

    def next_wait(self) -> effects.Wait:
        """Return the effect that waits for an event, or until the next deadline if
        there is one.
        """
        deadlines: list[int] = []
        if self._deadline is not None:
            deadlines.append(self._deadline)
        if self._waiting:
            deadlines.append(self._waiting.first_due_at)
        if self._failed_bodies is not None:
            deadlines.extend(self._failed_bodies.deadlines)
        if not deadlines:
            return effects.WAIT_FOR_EVENT
        return effects.Wait(min(deadlines))

    def handle(self, wakeup: Wakeup) -> Iterable[Effect]:
        """Handle the events of a wake-up, and return the effects that follow from them,
        in the order of the table above.

        When the last task ends, its results are not among the effects: they are stored
        with the barrier.

        Raises:
            BaseException: The others have not ended within the time limit of the
                superstep, after a task has failed or has commanded the parent graph,
                or after a request to stop.
            TimeoutError: The superstep takes too long, without such a reason to end.
        """
        run = self.run
        run.now = max(wakeup.now, run.now)
        if self._waiting:
            self._start_due(wakeup.monotonic)
        for event in wakeup.events:
            self._handle_event(event, wakeup)
        if self._failed_bodies is not None:
            self._stop_late(self._failed_bodies, wakeup.monotonic)
        # The deadline is checked after the events, because a reader of the stream may
        # have paused the run while its last tasks ended.
        deadline = self._deadline
        if deadline is not None and self.open_tasks and wakeup.monotonic >= deadline:
            return self._time_out()
        if self._shared:
            self._queue_shared()
        at_once = self._effects
        self._effects = []
        if self._lookups:
            return self._look_up(at_once, wakeup.monotonic)
        if self.open_tasks:
            at_once += run.flush()
        return at_once

    def abandon(self) -> list[Effect]:
        """Return the effects that stop the running tasks of a superstep that has
        failed: its time limit has passed, or a commit has failed. Tasks that were about
        to start do not start.
        """
        self._effects = []
        self._cancel(list(self.open_tasks), kill=True)
        self.open_tasks.clear()
        return self._effects

    def _time_out(self) -> Steps:
        """Stop the tasks of a superstep that took too long, store the results that came
        with the deadline, and raise the error of the superstep.
        """
        run = self.run
        for task in ending_tasks(self.tasks):
            # The first of these ends the superstep. That withdraws the waiting calls of
            # the others, whose bodies are then settled already.
            if task.id in self.open_tasks:
                self._settle_body(task)
        # If there is an ending error, the run would have ended with it if the open
        # tasks had ended.
        error = self.ending_error() or took_too_long(run, self.open_tasks.values())
        yield from self.abandon()
        if self._shared:
            self._queue_shared()
        for effect in run.flush():
            # The handler of a task that has just failed starts when the run resumes.
            if not isinstance(effect, effects.Submit):
                yield effect
        raise error

    def ending_error(self) -> BaseException | None:
        """Return the error that ends the run before the barrier, if there is one."""
        if self.end.failure is not None:
            return self.end.failure
        stopped = self.run.stopped
        if stopped is not None:
            are_done = all(task.attempt.writes for task in self.tasks)
            if stopped.kill or not are_done:
                return stopped.error
        if self.end.command is not None:
            return errors.ParentCommand(self.end.command)
        return None

    # ------------------------------------------------------------ starts

    def start(self) -> Iterable[Effect]:
        """Return the effects that start the planned tasks, after those that wait for
        the last commit.
        """
        seconds = self.run.options.step_timeout
        if seconds is not None:
            return self._start_clock(seconds)
        return self._open_tasks()

    def _open_tasks(self) -> Iterable[Effect]:
        """Add the planned tasks to the stream. Open the tasks that have not finished in
        an earlier run, give each of these its answers, and return the effects that
        start them.

        If one of the tasks shares its result, all tasks start after the lookup of
        shared results, so that they start in order.
        """
        run = self.run
        due = self.tasks.copy()
        if run.replay.pending and run.replay.reuses_writes:
            due = unfinished_tasks(run, self.tasks, self.step)
        if run.stream_events.shows_tasks:
            events = run.stream_events.planned(self.tasks, run.cursor.step, run.now)
            run.outbox.effects.extend(events)
        if run.stopped is not None:
            return []
        has_answers = bool(run.replay.pending or run.answers.by_id)
        shares_results = False
        for task in due:
            self.open_tasks[task.id] = task
            if task.node.cache:
                cache_keys.claim_result(task, task.node.cache)
                shares_results = True
            else:
                task.attempt.first_started = run.now
            if has_answers:
                answering.answer_from_pending(run, task)
        starts = run.flush()
        if shares_results:
            self._lookups = self.open_tasks.copy()
            return self._look_up(starts, 0)
        if due:
            starts.append(effects.Submit(due, self.step))
        return starts

    def _start_clock(self, seconds: float) -> Steps:
        """Set the deadline of the superstep, *seconds* from now, and start the planned
        tasks.
        """
        # The reader of the stream may have paused the run since the last wake-up. So
        # the time of that wake-up may be too old to compute the deadline.
        wakeup = yield effects.Wait(0)
        yield from self.handle(wakeup)
        self._deadline = wakeup.monotonic + int(seconds * 1e9)
        yield from self._open_tasks()

    def _submit(self, tasks: Sequence[Task], queue: list[Effect]) -> None:
        """Add the start of an attempt of each of *tasks* to the effects in *queue*."""
        for task in tasks:
            if task.attempt.first_started is None:
                task.attempt.first_started = self.run.now
        last = queue[-1] if queue else None
        if isinstance(last, effects.Submit):
            last.tasks.extend(tasks)
        elif tasks:
            queue.append(effects.Submit([*tasks], self.step))

    def _cancel(
        self,
        task_ids: Iterable[str],
        *,
        kill: bool,
        leave: bool = False,
    ) -> None:
        """Stop the running tasks among *task_ids*, and withdraw the waiting tasks."""
        running = self.open_tasks
        ending = [running[task_id] for task_id in task_ids if task_id in running]
        waiting = self._take_waiting({task.id for task in ending})
        for task in ending:
            body = task.attempt.body
            if task.id in waiting:
                self._withdraw(task)
            elif body is None or body.outcome is None:
                self._effects.append(effects.Cancel(task.id, kill, leave))

    def _take_waiting(self, task_ids: Set[str]) -> set[str]:
        """Remove the tasks among *task_ids* from the waiting tasks, and from those
        whose results would be looked up in this wake-up. Return the ids of the removed
        tasks.
        """
        waiting = self._waiting.take(task_ids)
        for task_id in task_ids & self._lookups.keys():
            # The task has not claimed the shared result yet, so it must not release a
            # claim.
            self._lookups.pop(task_id).attempt.cache = None
            waiting.add(task_id)
        return waiting

    def _withdraw(self, task: Task) -> None:
        """End a task that waits, or must not start, with the outcome `Withdrawn`. A
        call that never started is taken out of the count of executed calls.
        """
        if task.parent is not None and task.attempt.first_started is None:
            self._uncount_execution(task)
        self._record_outcome(task, Withdrawn())

    def _uncount_execution(self, task: Task) -> None:
        """Take a call that never ran out of the count of executed calls."""
        if not task.node.hidden:
            self.run.replay.report.executed -= 1

    # ------------------------------------------------------------ events

    def _stop_late(self, failed: FailedBodies, now: int) -> None:
        """Stop the calls of *failed* bodies when their time to end (grace) is over.

        Args:
            failed: The failed bodies of the superstep.
            now: The present time in monotonic nanoseconds.
        """
        for late, leave in failed.stop_late(self.open_tasks, now):
            task_ids = [task.id for task in late]
            self._cancel(task_ids, kill=True, leave=leave)

    def _handle_event(self, event: effects.Event, wakeup: Wakeup) -> None:
        """Handle an event, unless its task has ended, or has begun its next attempt."""
        if isinstance(event, effects.Stopped):
            self._stop(event)
            return
        task = self.open_tasks.get(event.task_id)
        if task is None:
            return
        if isinstance(event, effects.Emitted):
            calls.handle_emitted(self.run, task, event)
            return
        if event.attempt != task.attempt.number:
            return
        match event:
            case Ended():
                self._handle_end(task, event, wakeup)
            case Call():
                self._handle_call(task, event, wakeup)
            case effects.SaveState():
                calls.save_state(self.run, task, event)
            case effects.CancelCall():
                self._cancel_call(task, event)

    def _stop(self, event: effects.Stopped) -> None:
        """Stop all tasks because of a request to end the run. The first request
        determines the error of the run.
        """
        self.run.stopped = self.run.stopped or event
        self._cancel(list(self.open_tasks), kill=event.kill, leave=event.leave)

    def _start_due(self, now: int) -> None:
        """Start the waiting tasks that are due, or look their results up again.

        Args:
            now: The present time in monotonic nanoseconds.
        """
        task_id = self._waiting.pop_due(now)
        while task_id is not None:
            task = self.open_tasks[task_id]
            claim = task.attempt.cache
            if claim is not None and claim.is_busy:
                self._lookups[task_id] = task
            elif task.attempt.first_started is None:
                self._start_held(task)
            else:
                self._submit((task,), self._effects)
            task_id = self._waiting.pop_due(now)

    # ------------------------------------------------------------ calls

    def _handle_call(self, caller: Task, call: Call, wakeup: Wakeup) -> None:
        """Plan a call that the body of a task or workflow has made, and start it.

        If it must wait, it is started later.
        """
        run = self.run
        task = calls.plan_call(run, self.step, self.open_tasks, caller, call)
        if task is None:
            return
        self.open_tasks[task.id] = task
        if run.stream_events.shows_tasks:
            events = run.stream_events.started(task, run.cursor.step, run.now)
            run.outbox.effects.extend(events)
        if run.replay.pending or run.answers.by_id:
            answering.answer_from_pending(run, task)
        assert task.origin is not None
        record = task.origin.record
        if run.stopped is not None:
            self._withdraw(task)
        elif record and not run.replay.is_empty() and unmatched(run, caller, record):
            # The call may replace a recorded call that was not made again yet. So it
            # waits: if other calls of the same task follow at once and match records,
            # this call is simply new.
            self._waiting.add(task.id, wakeup.monotonic + effects.HOLD)
        else:
            self._start_call(task)

    def _cancel_call(self, caller: Task, request: effects.CancelCall) -> None:
        """Stop a call that its body no longer needs, and the calls that it made."""
        tasks = calls.cancel_call(self.run, self.open_tasks, caller, request)
        task_ids = [task.id for task in tasks]
        self._cancelled.update(task_ids)
        self._cancel(task_ids, kill=True)

    def _start_call(self, task: Task) -> None:
        """Start the first attempt of a call, unless its result is shared."""
        if task.node.cache is None:
            self._submit((task,), self._effects)
            return
        try:
            cache_keys.claim_result(task, task.node.cache)
        except Exception as error:  # noqa: BLE001
            # A user's `key_func` raised the error, and the call fails with it.
            self._record_outcome(task, Raised(error))
        else:
            self._lookups[task.id] = task

    def _start_held(self, task: Task) -> None:
        """Start a call that was held back in case the body made a recorded call of the
        same task first. If the body has made none, follow ``on_unmatched``.
        """
        run = self.run
        record = task.record
        assert record is not None
        name = record.name
        error = still_unmatched(run, name)
        if error is None:
            self._start_call(task)
            return
        if run.options.on_unmatched == "error":
            waiting = [self.open_tasks[task_id] for task_id in self._waiting]
            held = held_calls(name, waiting)
            held_ids = {call.id for call in held}
            self._waiting.take(held_ids)
            for call in (task, *held):
                self._refuse(call, error)
            return
        # The user gets only one notice for all calls of this name.
        run.replay.unmatched[name] = None
        self._effects.append(effects.Emit("notices", notice_of(error, name)))
        self._start_call(task)

    def _refuse(self, task: Task, error: BaseException) -> None:
        """Let a call fail with *error*, without running it. The record of the call is
        not changed.
        """
        del self.open_tasks[task.id]
        self._uncount_execution(task)
        # The call did not run, so nothing about it is stored.
        self._resolve(task, Raised(error))

    def _resolve(self, task: Task, outcome: Outcome) -> None:
        """Give *outcome* to each `Call` that waits for *task*, and count one running
        call less in the body that made the call.
        """
        assert task.origin is not None
        assert task.parent is not None
        caller = task.parent
        body = caller.attempt.body
        body.running -= 1
        for call in task.origin.waiting:
            self.run.outbox.resolve(call, outcome)
            body.sequence.open_tasks.pop(call.reply, None)
        if self._failed_bodies is not None:
            self._failed_bodies.call_ended(caller)
        if not body.running and body.outcome is not None:
            self._settle_body(caller)

    def _settle_body(self, task: Task) -> None:
        """Record the outcome of *task*, whose body has ended."""
        body = task.attempt.body
        outcome = body.outcome
        body.outcome = None
        self._record_outcome(task, calls.final_outcome(body, outcome))

    # ------------------------------------------------------------ shared results

    def _look_up(self, earlier: Iterable[Effect], now: int) -> Steps:
        """Look up the results that tasks may share, and start the tasks without one.

        Args:
            earlier: The effects to perform before the lookup.
            now: The monotonic nanoseconds, or 0 if the superstep starts.
        """
        yield from earlier
        tasks = list(self._lookups.values())
        self._lookups = {}
        entries: dict[effects.CacheKey, Any] = {}
        keys = cache_keys.claimed_keys(tasks)
        try:
            entries |= yield effects.CacheLookup(tuple(keys))
            self.run.outbox.claims |= keys.keys() - entries.keys()
        except Exception as error:
            if any(task.kind is not Kind.CALL for task in tasks):
                raise
            entries |= dict.fromkeys(keys, Raised(error))
        self._use_entries(tasks, entries, now)
        if self._shared:
            self._queue_shared()
        at_once = self._effects
        self._effects = []
        yield from at_once
        if self.open_tasks or now == 0:
            yield from self.run.flush()

    def _use_entries(
        self,
        tasks: Sequence[Task],
        entries: dict[effects.CacheKey, Any],
        now: int,
    ) -> None:
        """End the tasks whose results are shared, and start the others, unless another
        run computes the result.

        Args:
            tasks: The tasks that were looked up.
            entries: The replies, by key: see `cache_keys.shared_outcome`.
            now: The present time in monotonic nanoseconds.
        """
        due: list[Task] = []
        for task in tasks:
            outcome = cache_keys.shared_outcome(task, entries, self.run.now)
            claim = task.attempt.cache
            if isinstance(outcome, Returned):
                outcome = prepared_outcome(self.run.program, task, outcome)
            if outcome is not None:
                self._record_outcome(task, outcome)
            elif claim is not None and claim.is_busy:
                self._waiting.add(task.id, now + effects.LOOK_AGAIN)
            else:
                due.append(task)
        self._submit(due, self._effects)

    # ------------------------------------------------------------ ends of attempts

    def _handle_end(self, task: Task, event: Ended, wakeup: Wakeup) -> None:
        """Handle the end of an attempt: retry the task, wait for the body's calls, or
        end the task.
        """
        body = task.attempt.body
        task.attempt.span = event.span
        outcome = self._accepted_outcome(task, event)
        seconds = None
        if not isinstance(outcome, Returned):
            seconds = self._retry_delay(task, outcome, wakeup.jitter)
        if seconds is not None:
            calls.begin_next_attempt(self.run, task, outcome)
            self._waiting.add(task.id, wakeup.monotonic + int(seconds * 1e9))
        elif body is not None and body.running:
            self._end_body(task, outcome)
        else:
            self._record_outcome(task, outcome)

    def _accepted_outcome(self, task: Task, event: Ended) -> Outcome:
        """Return the outcome of an attempt as the run uses it. It differs from the
        executor's outcome if the task was cancelled, if its writes fit no channel, or
        if the task's code has returned without seeing the failure of a call that it
        made.
        """
        outcome = event.outcome
        if isinstance(outcome, Raised):
            outcome = calls.with_earlier_items(task, outcome)
        if isinstance(outcome, Withdrawn):
            notify_left_behind(self.run, task, outcome)
        elif task.id in self._cancelled:
            outcome = Withdrawn()
        elif isinstance(outcome, Returned) and task.kind is not Kind.CALL:
            outcome = prepared_outcome(self.run.program, task, outcome)
        body = task.attempt.body
        if body is None:
            return outcome
        if event.observed_failures is not None:
            body.observed_failures = event.observed_failures
        return calls.final_outcome(body, outcome)

    def _end_body(self, task: Task, outcome: Outcome) -> None:
        """Note the outcome of a body (the code of a workflow or task). The outcome is
        recorded when the calls of the body have ended.
        """
        options = self.run.options
        task.attempt.body.outcome = outcome
        if self._failed_bodies is None:
            self._failed_bodies = FailedBodies(options.stop_grace)
        self._failed_bodies.add(task)
        if isinstance(outcome, Raised) and options.fail_fast:
            open_calls = calls.calls_of(self.open_tasks, task)
            call_ids = [call.id for call in open_calls]
            self._cancel(call_ids, kill=False)

    def _retry_delay(self, task: Task, outcome: Outcome, jitter: float) -> float | None:
        """Return the seconds until the next attempt, or None if there is none."""
        if not (isinstance(outcome, Raised) or self.run.answers.has_free_answer):
            return None
        if self.end.failure is not None or self.run.stopped is not None:
            return None
        return calls.retry_delay(self.run, task, outcome, jitter)

    # ------------------------------------------------------------ ends of tasks

    def _record_outcome(self, task: Task, outcome: Outcome) -> None:
        """Record the final outcome of *task*: see the table at the top of this file."""
        is_call = task.kind is Kind.CALL
        del self.open_tasks[task.id]
        self._cancelled.discard(task.id)
        match outcome:
            case Returned(writes):
                self.run.store_return(task, writes)
            case Raised():
                self._record_failure(task, outcome)
            case records.Interrupted(refused=error):
                if error is not None:
                    self.end.fail(error)
                if not is_call:
                    self.end.is_paused = True
                answering.store_questions(self.run, task, outcome)
            case records.Escaped(command) if not is_call:
                # The command ends this superstep only if the superstep planned the
                # task. If the task is a call (of a graph that commands its parent
                # graph), the body that made the call gets this outcome, and handles the
                # command.
                self.end.command = command
                self._cancel(list(self.open_tasks), kill=False)
            case Withdrawn() if not is_call and self.ending_error() is None:
                self.end.failure = errors.NodeCancelledError(task.name)
        if task.attempt.cache is not None:
            self._share(task, task.attempt.cache, outcome)
        if is_call:
            self._resolve(task, outcome)

    def _share(self, task: Task, claim: CacheClaim, outcome: Outcome) -> None:
        """Put the result of a task that has ended into the cache, after the next
        commit. If there is no result, release the *claim* of the task.
        """
        if not claim.is_busy:
            self._shared[claim.key] = cache_keys.entry_to_share(task, claim, outcome)

    def _queue_shared(self) -> None:
        """Add an effect to those that follow the commit. It puts the results of tasks
        that have ended into the cache.
        """
        self.run.outbox.effects.append(effects.CacheStore(self._shared))
        self._shared = {}

    def _record_failure(self, task: Task, outcome: Raised) -> None:
        """Store the failure of a task, and start its handler or end the run."""
        run = self.run
        error = outcome.error
        if isinstance(error, errors.GraphDrained):
            self.end.fail(error)
            return
        calls.add_notes(task, outcome)
        events = run.stream_events.ended(task, run.cursor.step, run.now, error)
        run.outbox.effects.extend(events)
        writes = calls.failure_writes(run, task, outcome)
        is_refusal = run.refuse_answer(error)
        is_call = task.kind is Kind.CALL
        has_handler = task.node.handler is not None
        if has_handler and not (is_call or is_refusal or run.stopped):
            run.store_end(task, (*writes, (records.ERROR_SOURCE, task.name)))
            if self.end.failure is None:
                # If another task has already made the run fail, the handler starts when
                # the run is resumed.
                self._start_handler(task, error)
            return
        run.store_end(task, writes)
        calls.forget_uncaught(run, task, outcome)
        if is_call:
            calls.fail_call(task, error)
        elif self.end.fail(error) and not is_refusal:
            self._cancel(list(self.open_tasks), kill=False)

    def _start_handler(self, failed: Task, error: BaseException) -> None:
        """Start the task that handles the failure of *failed*."""
        run = self.run
        handler = handler_task(run.program, failed, error, self.step)
        self.tasks.append(handler)
        self.open_tasks[handler.id] = handler
        events = run.stream_events.started(handler, run.cursor.step, run.now)
        run.outbox.effects.extend(events)
        self._submit((handler,), run.outbox.effects)
