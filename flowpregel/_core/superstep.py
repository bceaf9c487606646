"""One superstep: start the tasks that are due, and take in how each of them ends.

What a wake-up's events ask for is done in this order: tasks are started or stopped;
what finished is committed; and only then is it given to the stream, and to the bodies
that wait for calls.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from flowpregel import errors
from flowpregel._core import answers, cache_keys, calls, effects, records
from flowpregel._core.barrier import check_writes, handler_task
from flowpregel._core.copies import as_storable
from flowpregel._core.effects import (
    BUSY,
    CacheKey,
    Call,
    Effect,
    Ended,
    StepContext,
    Steps,
    Wakeup,
)
from flowpregel._core.ids import Span
from flowpregel._core.late_calls import FailedBodies, note_left_behind
from flowpregel._core.provenance import note_failed
from flowpregel._core.records import (
    Kind,
    Outcome,
    Raised,
    Returned,
    Task,
    Withdrawn,
    Write,
)
from flowpregel._core.run_state import Run
from flowpregel._core.stream_events import outputs
from flowpregel._core.unmatched import held_calls, notice_of, still_unmatched, unmatched
from flowpregel.channels.base import read


@dataclass(slots=True, eq=False)
class Superstep:
    """The tasks of one superstep, those that they call, and what becomes of them.

    Args:
        run: The run it belongs to.
        tasks: The planned tasks, in the order in which their writes are applied.
        setting: What they have in common.
    """

    run: Run
    tasks: list[Task]
    setting: StepContext
    _open: dict[str, Task] = field(default_factory=dict)
    """Tasks that run or wait for their next attempt."""
    _looked_up: list[Task] = field(default_factory=list)
    """Tasks whose results another run may have shared: they start when we know."""
    _retries: list[tuple[int, str]] = field(default_factory=list)
    """When the next attempts are due, in monotonic nanoseconds, and of which task: a
    heap.
    """
    _deadline: int | None = None
    """The monotonic nanoseconds at which it has to be over."""
    _effects: list[Effect] = field(default_factory=list)
    """What is to be done at once."""
    _shared: dict[CacheKey, tuple[Any, float | None] | None] = field(
        default_factory=dict
    )
    """For the cache, by key: writes, and for how many seconds; None: it has none to
    share.
    """
    _paused: bool = False
    _failure: BaseException | None = None
    _failed_bodies: FailedBodies = field(init=False)
    _escaped: object = None

    def __post_init__(self) -> None:
        self._failed_bodies = FailedBodies(self.run.options.stop_grace)

    # ------------------------------------------------------------ the story

    def go(self) -> Steps:
        """Run until every task has ended; return whether an interrupt is to be answered
        first.

        If not, the last results are left to the barrier.
        """
        run = self.run
        try:
            yield from self._start()
            while self._open:
                wakeup = yield effects.Wait(self._next_deadline())
                run.now = max(wakeup.now, run.now + 1)
                if self._deadline is not None and wakeup.monotonic >= self._deadline:
                    self._raise_timeout()
                yield from self._take_in(wakeup)
                if self._looked_up:
                    tasks, self._looked_up = self._looked_up, []
                    yield from self._look_up(tasks, wakeup.monotonic)
                if self._open:
                    yield from run.flush()
        except GeneratorExit:
            raise
        except BaseException:
            # The time is over, or a commit failed: what still runs is stopped.
            self._cancel_all(kill=True)
            yield from self._effects
            raise
        end = (
            self._failure
            if run.stopped is None and self._escaped is None
            else self._end
        )
        if end is not None or self._paused:
            yield from run.flush()
        if end is not None:
            raise end
        return self._paused

    def _next_deadline(self) -> int | None:
        """Return the monotonic nanoseconds at which to wake up in any case; None:
        never.
        """
        deadlines = [self._deadline, self._failed_bodies.deadline]
        if self._retries:
            deadlines.append(self._retries[0][0])
        return min((at for at in deadlines if at is not None), default=None)

    @property
    def _end(self) -> BaseException | None:
        """What ends the run before the barrier: a failure, a stop or a command."""
        if self._failure is not None:
            return self._failure
        stopped = self.run.stopped
        if stopped is not None and (
            stopped.kill or not all(task.writes for task in self.tasks)
        ):
            return stopped.error
        return None if self._escaped is None else errors.ParentCommand(self._escaped)

    def _start(self) -> Steps:
        """Start the tasks that are due; some may be done already."""
        run, due = self.run, self.tasks.copy()
        if run.pending and run.hand_back:
            due = [left for task in due if (left := self._left_to_do(task)) is not None]
        if run.stream_events.shows_tasks:
            run.after.extend(run.stream_events.planned(self.tasks, run.step, run.now))
        if run.options.step_timeout is not None:
            # The last wake-up's time will not do: a reader of the stream may have
            # paused since.
            wakeup = yield effects.Wait(0)
            run.now = max(wakeup.now, run.now + 1)
            self._deadline = wakeup.monotonic + int(run.options.step_timeout * 1e9)
            yield from self._take_in(wakeup)
            if run.stopped is not None:
                return
        for task in due:
            self._open[task.id] = task
            if task.node.cache:
                cache_keys.ask_cache(task, task.node.cache)
            else:
                task.first_started = run.now
            if run.pending or run.answers:
                answers.answer_from_pending(run, task)
        yield from run.flush()
        if any(task.cache_key for task in due):
            yield from self._look_up(due, 0)
            yield from run.flush()
        elif due:
            yield effects.Submit(due, self.setting)

    def _left_to_do(self, task: Task) -> Task | None:
        """Return what is to run of a planned task: itself, its error handler, or
        nothing.
        """
        writes = self.run.pending.get(task.id, ())
        if done := outputs(writes):
            task.writes = tuple(done)
            return None
        kept = dict(writes)
        if (
            task.node.handler is None
            or not {records.ERROR, records.ERROR_SOURCE} <= kept.keys()
        ):
            # Any other failure is forgotten.
            return task
        error = kept[records.ERROR]
        if not isinstance(error, BaseException):
            error = RuntimeError(
                f"node {task.name!r} failed in an earlier run: {error}"
            )
        return self._left_to_do(self._handler_for(task, error))

    def _handler_for(self, failed: Task, error: BaseException) -> Task:
        """Return the task that handles the failure of *failed*, which is in this
        superstep too.
        """
        handler = handler_task(self.run.program, failed, error, self.setting)
        self.tasks.append(handler)
        return handler

    def _submit(self, tasks: Sequence[Task], others: list[Effect]) -> None:
        """Have an attempt of each of *tasks* started after the *others*."""
        for task in tasks:
            if task.first_started is None:
                task.first_started = self.run.now
        if others and isinstance(last := others[-1], effects.Submit):
            last.tasks.extend(tasks)
        elif tasks:
            others.append(effects.Submit([*tasks], self.setting))

    def _cancel_all(
        self, *, kill: bool, leave: bool = False, only: Collection[Task] | None = None
    ) -> None:
        """Stop what still runs or waits for its next attempt, or *only* these of it."""
        ending = {
            id: task for id, task in self._open.items() if only is None or task in only
        }
        waiting = {task_id for _, task_id in self._retries} & ending.keys()
        self._retries = [retry for retry in self._retries if retry[1] not in waiting]
        heapq.heapify(self._retries)
        for task_id, task in ending.items():
            if task_id in waiting:
                self._settle(task, Withdrawn())
            elif task.body is None or task.body.outcome is None:
                self._effects.append(effects.Cancel(task_id, kill, leave))

    # ------------------------------------------------------------ events

    def _take_in(self, wakeup: Wakeup) -> list[Effect]:
        """Take in what happened, and return what is to be done at once."""
        run = self.run
        if self._retries:
            self._start_due(wakeup)
        for event in wakeup.events:
            if isinstance(event, effects.Stopped):
                run.stopped = run.stopped or event
                self._cancel_all(kill=event.kill, leave=event.leave)
                continue
            task = self._open.get(
                event.caller if isinstance(event, Call) else event.task_id
            )
            if task is None:
                continue
            if isinstance(event, effects.Emitted):
                self._emitted(task, event)
            elif task.attempt != event.attempt:
                continue
            elif isinstance(event, Call):
                self._called(task, event, wakeup)
            else:
                self._ended(task, event, wakeup)
        for late, leave in self._failed_bodies.stop_late(self._open, wakeup.monotonic):
            self._cancel_all(kill=True, leave=leave, only=late)
        if self._shared:
            run.after.append(effects.CacheStore(self._shared))
            self._shared = {}
        at_once, self._effects = self._effects, []
        return at_once

    def _emitted(self, task: Task, event: effects.Emitted) -> None:
        """Give the stream what a running task has emitted."""
        run = self.run
        if isinstance(event.payload, effects.Notice):
            run.note(event.payload.text)
        else:
            run.after.extend(run.stream_events.emitted(task, event))

    def _start_due(self, wakeup: Wakeup) -> None:
        """Start the next attempts that are due, and have what others compute looked up
        again.
        """
        while self._retries and self._retries[0][0] <= wakeup.monotonic:
            _, task_id = heapq.heappop(self._retries)
            task = self._open[task_id]
            if task.is_busy:
                self._looked_up.append(task)
            elif task.first_started is None:
                self._start_held(task)
            else:
                self._submit((task,), self._effects)

    def _raise_timeout(self) -> NoReturn:
        """Raise the error for a superstep that took too long; it names the open
        tasks.
        """
        names = ", ".join(sorted({task.name for task in self._open.values()}))
        raise TimeoutError(
            f"superstep {self.run.step} took longer than "
            f"step_timeout={self.run.options.step_timeout} seconds; still running: "
            f"{names}"
        )

    def _called(self, caller: Task, call: Call, wakeup: Wakeup) -> None:
        """Plan a call that a body has made, or stop one that it no longer wants."""
        run = self.run
        if call.node is effects.CANCEL:
            self._cancel_all(kill=True, only=calls.cancel_call(run, self._open, call))
            return
        if (
            task := calls.plan_call(run, self.setting, self._open, caller, call)
        ) is None:
            return
        self._open[task.id] = task
        if run.stream_events.shows_tasks:
            run.after.extend(run.stream_events.started(task, run.step, run.now))
        if run.pending or run.answers:
            answers.answer_from_pending(run, task)
        if run.stopped is not None:
            self._settle(task, Withdrawn())
        elif (
            task.record is not None and unmatched(run, caller, task.record) is not None
        ):
            # Other calls of its task may follow at once, and fit: then it is merely a
            # new one.
            heapq.heappush(self._retries, (wakeup.monotonic + effects.HOLD, task.id))
        else:
            self._start_call(task)

    def _start_call(self, task: Task) -> None:
        """Start the first attempt of a call, unless its result is shared."""
        if task.node.cache is None:
            self._submit((task,), self._effects)
            return
        try:
            cache_keys.ask_cache(task, task.node.cache)
        except Exception as error:  # noqa: BLE001 - a user's key_func; the call fails with it
            self._settle(task, Raised(error))
        else:
            self._looked_up.append(task)

    def _start_held(self, task: Task) -> None:
        """Start a call that was held, or refuse it; tell first that no recorded one
        fits.
        """
        run = self.run
        assert task.record is not None
        name = task.record.name
        error = still_unmatched(run, name)
        if error is not None and run.options.on_unmatched == "error":
            for held in (task, *self._take_held(name)):
                self._refuse(held, error)
            return
        if error is not None:
            run.replay_report.unmatched[name] = None  # the user is told once
            self._effects.append(effects.Emit("notices", notice_of(error, name)))
        self._start_call(task)

    def _take_held(self, name: str) -> list[Task]:
        """Return the calls of the task *name* that are held, and hold them no
        longer.
        """
        held = held_calls(name, [self._open[task_id] for _, task_id in self._retries])
        held_ids = {task.id for task in held}
        self._retries = [retry for retry in self._retries if retry[1] not in held_ids]
        heapq.heapify(self._retries)
        return held

    def _refuse(self, task: Task, error: BaseException) -> None:
        """Fail a call that was not made; what is recorded stays as it is."""
        run = self.run
        del self._open[task.id]
        run.replay_report.executed -= not task.node.hidden
        # Nothing is kept of this call.
        failed = Raised(error)
        run.after.extend(effects.Resolve(call, failed) for call in task.waiting)
        assert task.parent is not None
        self._call_ended(task.parent)

    def _look_up(self, tasks: list[Task], now: int) -> Steps:
        """Give *tasks* what other runs shared, and start those that nobody computes
        *now*.
        """
        found = dict[Any, Any]()
        keys = {
            task.cache_key[:2]: None for task in tasks if task.cache_key is not None
        }
        try:
            found |= yield effects.CacheLookup(tuple(keys))
            self.run.claimed |= keys.keys() - found.keys()
        except Exception as error:
            if any(task.kind is not Kind.CALL for task in tasks):
                raise
            found |= dict.fromkeys(keys, Raised(error))
        due = [task for task in tasks if not self._is_shared(task, found, now)]
        self._submit(due, self._effects)
        at_once, self._effects = self._effects, []
        yield from at_once

    def _is_shared(self, task: Task, found: dict[Any, Any], now: int) -> bool:
        """Return whether *task* needs not run now, given what was *found* in the
        cache.
        """
        if task.cache_key is None:
            return False
        key = task.cache_key[:2]
        writes = found.get(key)
        found.setdefault(key, BUSY)
        task.is_busy = writes is BUSY and not cache_keys.is_within(task, key)
        if task.is_busy:
            heapq.heappush(self._retries, (now + effects.LOOK_AGAIN, task.id))
        elif isinstance(writes, Raised):
            self._settle(task, writes)
        elif writes is None or writes is BUSY:
            return False
        else:
            task.cache_key, task.span = None, Span(self.run.now, 0.0, "cache")
            self._settle(task, Returned(tuple(writes)))
        return True

    def _ended(self, task: Task, event: Ended, wakeup: Wakeup) -> None:
        """Take in that an attempt of *task* ended."""
        run, body = self.run, task.body
        outcome = Withdrawn() if task.is_cancelled else event.outcome
        task.span = event.span
        note_left_behind(run, task, event.outcome)
        if isinstance(outcome, Returned) and task.kind is not Kind.CALL:
            try:
                check_writes(run.program, task.node, outcome.writes)
            except Exception as error:  # noqa: BLE001 - the task fails with it
                outcome = Raised(error)
        if body is not None:
            if event.observed_failures is not None:
                body.observed_failures = event.observed_failures
            outcome = calls.final_outcome(body, outcome)
        may_repeat = isinstance(outcome, Raised) or run.has_free_answer
        may_repeat = may_repeat and self._failure is None and run.stopped is None
        if (
            may_repeat
            and (delay := calls.delay(run, task, outcome, wakeup.jitter)) is not None
        ):
            task.attempt += 1
            if body is not None:
                body.restart()
            heapq.heappush(
                self._retries, (wakeup.monotonic + int(delay * 1e9), task.id)
            )
            if isinstance(outcome, Raised):
                note_failed(task, outcome.error)
                calls.uncaught(run, task, outcome.error)
        elif body is not None and body.running:
            # The calls that it made are going to end and be kept before it is settled.
            body.outcome = outcome
            self._failed_bodies.add(task)
            if isinstance(outcome, Raised) and run.options.fail_fast:
                self._cancel_all(
                    kill=False, only=calls.below(self._open, task, direct=True)
                )
        else:
            self._settle(task, outcome)

    # how a task ends for good ----------------------------------------------

    def _settle(self, task: Task, outcome: Outcome) -> None:
        """Record how *task* ended for good; if it is a call, answer those who wait for
        it.
        """
        run, caller = self.run, task.parent if task.kind is Kind.CALL else None
        del self._open[task.id]
        match outcome:
            case Returned(writes):
                task.writes = writes or ((records.NO_WRITES, None),)
                run.keep_end(task, task.writes)
                if run.stream_events.shows_tasks:
                    run.after.extend(
                        run.stream_events.returned(task, run.step, run.now)
                    )
            case Raised(error):
                self._raised(task, error)
            case records.Interrupted():
                self._interrupted(task, outcome)
            case records.Escaped(command) if caller is None:
                # A called graph commands its caller's graph: that is up to the caller.
                self._escaped = command
                self._cancel_all(kill=False)
            case Withdrawn() if caller is None and self._end is None:
                self._failure = errors.NodeCancelledError(task.name)
        if task.cache_key is not None and not task.is_busy:
            entry = (
                (task.writes, task.cache_key[2])
                if isinstance(outcome, Returned)
                else None
            )
            self._shared[task.cache_key[:2]] = entry
        if caller is None:
            return
        run.after.extend(effects.Resolve(call, outcome) for call in task.waiting)
        self._call_ended(caller)

    def _call_ended(self, caller: Task) -> None:
        """Take in that a call of *caller* has ended, perhaps the last that it had to
        wait for.
        """
        caller.body.running -= 1
        self._failed_bodies.call_ended(caller)
        if not caller.body.running and (held := caller.body.outcome) is not None:
            caller.body.outcome = None  # it had ended before
            self._settle(caller, calls.final_outcome(caller.body, held))

    def _raised(self, task: Task, error: BaseException) -> None:
        run = self.run
        if isinstance(error, errors.GraphDrained):
            self._failure = self._failure or error
            return
        error.add_note(calls.note_of(task))
        run.after.extend(run.stream_events.ended(task, run.step, run.now, error))
        writes: tuple[Write, ...] = ((records.ERROR, as_storable(error)),)
        refused, is_call = run.refuse_answer(error), task.kind is Kind.CALL
        if task.node.handler is not None and not (is_call or run.stopped or refused):
            run.keep_end(task, (*writes, (records.ERROR_SOURCE, task.name)))
            if self._failure is None:
                # Otherwise the handler runs when the failing run is resumed.
                handler = self._handler_for(task, error)
                self._open[handler.id] = handler
                run.after.extend(run.stream_events.started(handler, run.step, run.now))
                self._submit((handler,), run.after)
            return
        run.keep_end(task, writes)
        calls.uncaught(run, task, error)
        if is_call:
            calls.fail_call(task, error)
        elif self._failure is None:
            self._failure = error
            if not refused:
                self._cancel_all(kill=False)

    def _interrupted(self, task: Task, outcome: records.Interrupted) -> None:
        run, error = self.run, outcome.refused
        of_calls = task.body.asked if task.body else {}
        asked = {item.id: item for path in sorted(of_calls) for item in of_calls[path]}
        asked |= {item.id: item for item in outcome.interrupts}
        interrupts = tuple(asked.values())
        writes: tuple[Write, ...] = ((records.INTERRUPT, interrupts),)
        if error is not None:
            # The run fails, but the other tasks go on: their answers were taken.
            failure = (
                () if task.kind is Kind.CALL else ((records.ERROR, as_storable(error)),)
            )
            writes = ((records.RESUME, outcome.answers), *failure, *writes)
            setattr(error, errors.INVALID_RESUME, outcome.interrupts[0].id)
            self._failure = self._failure or error
            run.refuse_answer(error)
        elif interrupts and run.options.modes and task.kind is not Kind.CALL:
            shown = read(run.state.channels, run.options.output_channels)
            run.after.extend(run.stream_events.interrupted(interrupts, shown))
        run.keep_end(task, (*writes, *answers.questions_of(run, task, outcome)))
        if run.stream_events.shows_tasks:
            run.after.extend(
                run.stream_events.ended(task, run.step, run.now, error or interrupts)
            )
        if task.kind is Kind.CALL and task.parent is not None:
            # Its body asks it too.
            task.parent.body.asked[task.path] = interrupts
            return
        self._paused = True
        run.interrupts |= asked
