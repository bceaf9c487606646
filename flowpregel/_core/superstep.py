"""One superstep: start the tasks that are due, and take in how each of them ends.

What a wake-up's events ask for is done in this order: tasks are started or stopped; what finished
is committed; and only then is it given to the stream, and to the bodies that wait for calls.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from flowpregel import errors
from flowpregel._core import effects, records
from flowpregel._core.calls import LOOK_AGAIN, Calls, answer_from_pending, answer_moved
from flowpregel._core.copies import keepable
from flowpregel._core.effects import Call, Effect, Ended, StepContext, Steps, Wakeup
from flowpregel._core.failures import note_of
from flowpregel._core.plan import handler_task
from flowpregel._core.program import read
from flowpregel._core.records import Kind, Outcome, Raised, Returned, Task, Withdrawn, Write
from flowpregel._core.run_state import Run
from flowpregel._core.stream_events import outputs
from flowpregel._core.update import check_writes


class Superstep:
    """The tasks of one superstep, those that they call, and what becomes of them.

    Args:
        run: The run it belongs to.
        tasks: The planned tasks, in the order in which their writes are applied.
        setting: What they have in common.
    """

    def __init__(self, run: Run, tasks: list[Task], setting: StepContext) -> None:
        self._run = run
        self._tasks = tasks
        self._setting = setting
        self._calls = Calls(run, setting)
        self.count_not_asked = self._calls.replay.count_not_asked
        self._open: dict[str, Task] = {}
        """Tasks that run or wait for their next attempt."""
        self._looked_up: list[Task] = []
        """Tasks whose results another run may have shared: they start when we know."""
        self._retries: list[tuple[int, str]] = []
        """When the next attempts are due, in monotonic nanoseconds, and of which task: a heap."""
        self._deaths: dict[str, int] = {}
        """For each task, the number of workers that died of it."""
        self._deadline: int | None = None
        """The monotonic nanoseconds at which it has to be over."""
        self._effects: list[Effect] = []
        """What is to be done at once."""
        self._shared: dict[tuple[tuple[str, ...], str], tuple[Any, float | None] | None] = {}
        """For the cache, by key: writes, and for how many seconds; None: it has none to share."""
        self._paused = False
        self._failure: BaseException | None = None
        self._escaped: object = None

    # ------------------------------------------------------------ the story

    def go(self) -> Steps:
        """Run until every task has ended; return whether an interrupt is to be answered first.

        If not, the last results are left to the barrier.
        """
        run = self._run
        try:
            yield from self._start()
            while self._open:
                earliest = self._deadline
                if self._retries:
                    earliest = min(self._retries[0][0], earliest or self._retries[0][0])
                wakeup = yield effects.Wait(earliest)
                run.now = max(wakeup.now, run.now + 1)
                if self._deadline is not None and wakeup.monotonic >= self._deadline:
                    self._raise_timeout()
                yield from self._take_in(wakeup)
                if self._looked_up:
                    yield from self._look_up(wakeup)
                if self._open:
                    yield from run.flush()
        except GeneratorExit:
            raise
        except BaseException:
            # The time is over, or a commit failed: what still runs is stopped.
            self._cancel_all(kill=True)
            yield from self._effects
            raise
        if (end := self._end) is None and not self._paused:
            self.count_not_asked()
        else:
            yield from run.flush()
        if end is not None:
            raise end
        return self._paused

    @property
    def _end(self) -> BaseException | None:
        """What ends the run before the barrier: a failure, a stop or a command."""
        if self._failure is not None:
            return self._failure
        stopped = self._run.stopped
        if stopped is not None and (stopped.kill or not all(task.writes for task in self._tasks)):
            return stopped.error
        return None if self._escaped is None else errors.ParentCommand(self._escaped)

    def _start(self) -> Steps:
        """Start the tasks that are due; some may be done already."""
        run, due, busy = self._run, self._tasks.copy(), list[Task]()
        if run.pending and run.hand_back:
            due = [left for task in due if (left := self._left_to_do(task)) is not None]
        if run.stream_events.shows_tasks:
            run.after.extend(run.stream_events.planned(self._tasks, run.step, run.now))
        if run.options.cache or any(task.node.cache for task in due):
            due = yield from self._calls.without_shared(due)
        if run.options.step_timeout is not None or self._calls.busy:
            # The last wake-up's time will not do: a reader of the stream may have paused since.
            wakeup = yield effects.Wait(0)
            run.now = max(wakeup.now, run.now + 1)
            if run.options.step_timeout is not None:
                self._deadline = wakeup.monotonic + int(run.options.step_timeout * 1e9)
            yield from self._take_in(wakeup)
            if self._run.stopped is not None:
                return
            busy = [task for task in self._tasks if task.id in self._calls.busy]
            for task in busy:
                heapq.heappush(self._retries, (wakeup.monotonic + LOOK_AGAIN, task.id))
        for task in (*due, *busy):
            self._open[task.id] = task
            if run.pending or run.answers:
                answer_from_pending(run, task)
        yield from run.flush()
        starts: list[Effect] = []
        self._submit(due, starts)
        yield from starts

    def _left_to_do(self, task: Task) -> Task | None:
        """Return what is to run of a planned task: itself, its error handler, or nothing."""
        writes = self._run.pending.get(task.id, ())
        if done := outputs(writes):
            task.writes = tuple(done)
            return None
        kept = dict(writes)
        if task.node.handler is None or not {records.ERROR, records.ERROR_SOURCE} <= kept.keys():
            # Any other failure is forgotten.
            return task
        error = kept[records.ERROR]
        if not isinstance(error, BaseException):
            error = RuntimeError(f"node {task.name!r} failed in an earlier run: {error}")
        return self._left_to_do(self._handler_for(task, error))

    def _handler_for(self, failed: Task, error: BaseException) -> Task:
        """Return the task that handles the failure of *failed*, which is in this superstep too."""
        handler = handler_task(self._run.program, failed, error, self._setting)
        self._tasks.append(handler)
        return handler

    def _submit(self, tasks: Sequence[Task], others: list[Effect]) -> None:
        """Have an attempt of each of *tasks* started after the *others*."""
        for task in tasks:
            if task.first_started is None:
                task.first_started = self._run.now
        if others and isinstance(last := others[-1], effects.Submit):
            last.tasks.extend(tasks)
        elif tasks:
            others.append(effects.Submit([*tasks], self._setting))

    def _cancel_all(self, *, kill: bool, only: Collection[Task] | None = None) -> None:
        """Stop what still runs or waits for its next attempt, or *only* these of it."""
        ending = {id: task for id, task in self._open.items() if only is None or task in only}
        waiting = {task_id for _, task_id in self._retries} & ending.keys()
        self._retries = [retry for retry in self._retries if retry[1] not in waiting]
        heapq.heapify(self._retries)
        for task_id, task in ending.items():
            if task_id in waiting:
                self._settle(task, Withdrawn())
            elif not self._calls.has_ended(task):
                self._effects.append(effects.Cancel(task_id, kill))

    # ------------------------------------------------------------ events

    def _take_in(self, wakeup: Wakeup) -> list[Effect]:
        """Take in what happened, and return what is to be done at once."""
        run = self._run
        if self._retries:
            self._start_due(wakeup)
        for event in wakeup.events:
            if isinstance(event, effects.Stopped):
                run.stopped = run.stopped or event
                self._cancel_all(kill=event.kill)
                continue
            task = self._open.get(event.caller if isinstance(event, Call) else event.task_id)
            if task is None:
                continue
            if isinstance(event, effects.Emitted):
                run.after.extend(run.stream_events.emitted(task, event))
            elif task.attempt != event.attempt:
                continue
            elif isinstance(event, Call):
                self._called(task, event)
            else:
                self._ended(task, event, wakeup)
        if self._shared:
            run.after.append(effects.Share(self._shared))
            self._shared = {}
        at_once, self._effects = self._effects, []
        return at_once

    def _start_due(self, wakeup: Wakeup) -> None:
        """Start the next attempts that are due, and have what others compute looked up again."""
        while self._retries and self._retries[0][0] <= wakeup.monotonic:
            _, task_id = heapq.heappop(self._retries)
            if task_id in self._calls.busy:
                self._looked_up.append(self._open[task_id])
            else:
                self._submit((self._open[task_id],), self._effects)

    def _raise_timeout(self) -> NoReturn:
        """Raise the error for a superstep that took too long; it names the open tasks."""
        names = ", ".join(sorted({task.name for task in self._open.values()}))
        raise TimeoutError(
            f"superstep {self._run.step} took longer than "
            f"step_timeout={self._run.options.step_timeout} seconds; still running: {names}"
        )

    def _called(self, caller: Task, call: Call) -> None:
        """Plan a call that a body has made, or stop one that it no longer wants."""
        if call.node is effects.CANCEL:
            self._cancel_all(kill=True, only=self._calls.cancel(call))
            return
        if (task := self._calls.plan(caller, call)) is None:
            return
        run = self._run
        self._open[task.id] = task
        if run.stream_events.shows_tasks:
            run.after.extend(run.stream_events.started(task, run.step, run.now))
        if run.pending or run.answers:
            answer_from_pending(run, task)
        if self._run.stopped is not None:
            self._settle(task, Withdrawn())
        elif task.node.cache is None:
            self._submit((task,), self._effects)
        else:
            self._looked_up.append(task)

    def _look_up(self, wakeup: Wakeup) -> Steps:
        """Give tasks what others have shared, and start those that nobody computes."""
        tasks, self._looked_up = self._looked_up, []
        for task in tasks:
            try:
                due = yield from self._calls.without_shared([task])
            except Exception as error:  # noqa: BLE001 - a user's key_func; the call fails with it
                self._settle(task, Raised(error))
            else:
                self._submit(due, self._effects)
                if task.id in self._calls.busy:
                    heapq.heappush(self._retries, (wakeup.monotonic + LOOK_AGAIN, task.id))
                elif not due:
                    del self._open[task.id]
                    is_call = task.kind is Kind.CALL
                    if is_call and (body := self._calls.resolve(task, Returned(task.writes))):
                        self._settle(*body)
            at_once, self._effects = self._effects, []
            yield from at_once

    def _ended(self, task: Task, event: Ended, wakeup: Wakeup) -> None:
        """Take in that an attempt of *task* ended."""
        outcome = Withdrawn() if task.id in self._calls.cancelled else event.outcome
        task.span = event.span
        if isinstance(outcome, Returned):
            try:
                check_writes(self._run.program, task.node, outcome.writes)
            except Exception as error:  # noqa: BLE001 - the task fails with it
                outcome = Raised(error)
        if (calls := self._calls.bodies.get(task.id)) is not None:
            outcome = calls.final_outcome(outcome, event.caught)
        may_repeat = isinstance(outcome, Raised) or bool(self._run.moved_answers)
        may_repeat = may_repeat and self._failure is None and self._run.stopped is None
        if may_repeat and (delay := self._delay(task, outcome, wakeup.jitter)) is not None:
            task.attempt += 1
            task.calls = task.placed = task.graphs = 0
            task.equal_calls.clear()
            heapq.heappush(self._retries, (wakeup.monotonic + int(delay * 1e9), task.id))
            if isinstance(outcome, Raised):
                self._calls.to_repeat(task, outcome.error)
            return
        if calls is not None and calls.running:
            # The calls that it made are going to end and be kept before it is settled.
            calls.outcome = outcome
            if isinstance(outcome, Raised) and self._run.options.fail_fast:
                self._cancel_all(kill=False, only=self._calls.below(task, direct=True))
        else:
            self._settle(task, outcome)

    def _delay(self, task: Task, outcome: Outcome, jitter: float) -> float | None:
        """Return the seconds until the next attempt of *task*, or None to give up."""
        if not isinstance(outcome, Raised):
            return 0.0 if answer_moved(self._run, task, outcome) else None
        error, deaths = outcome.error, 0
        if isinstance(error, errors.WorkerDiedError):
            deaths = self._deaths[task.id] = self._deaths.get(task.id, 0) + 1
        # A call has its own policies alone.
        policies = task.node.retry or (() if task.kind is Kind.CALL else self._run.options.retry)
        for policy in policies:
            if policy.matches(error):
                spent = deaths >= policy.max_worker_deaths
                return None if spent else policy.delay(task.attempt, jitter)
        return None

    # ------------------------------------------------------------ how a task ends for good

    def _settle(self, task: Task, outcome: Outcome) -> None:
        """Record how *task* ended for good."""
        run, is_call = self._run, task.kind is Kind.CALL
        del self._open[task.id]
        if task.cache_key is not None and task.id not in self._calls.busy:
            self._shared[task.cache_key[:2]] = None
        match outcome:
            case Returned(writes):
                task.writes = writes or ((records.NO_WRITES, None),)
                self._calls.keep(task, task.writes)
                if task.cache_key is not None:
                    self._shared[task.cache_key[:2]] = task.writes, task.cache_key[2]
                if run.stream_events.shows_tasks:
                    run.after.extend(run.stream_events.updates(task))
                    run.after.extend(run.stream_events.ended(task, run.step, run.now))
            case Raised(error):
                self._raised(task, error)
            case records.Interrupted():
                self._interrupted(task, outcome)
            case records.Escaped(command) if not is_call:
                # A called graph commands its caller's graph: that is up to the caller.
                self._escaped = command
                self._cancel_all(kill=False)
            case Withdrawn() if not is_call and self._end is None:
                self._failure = errors.NodeCancelledError(task.name)
        if is_call and (body := self._calls.resolve(task, outcome)) is not None:
            self._settle(*body)

    def _raised(self, task: Task, error: BaseException) -> None:
        run = self._run
        if isinstance(error, errors.GraphDrained):
            self._failure = self._failure or error
            return
        error.add_note(note_of(task))
        run.after.extend(run.stream_events.ended(task, run.step, run.now, error))
        writes: tuple[Write, ...] = ((records.ERROR, keepable(error)),)
        refused = run.refuse_answer(error)
        may_handle = task.kind is not Kind.CALL and run.stopped is None and not refused
        if task.node.handler is not None and may_handle:
            self._calls.keep(task, (*writes, (records.ERROR_SOURCE, task.name)))
            if self._failure is None:
                # Otherwise the handler runs when the failing run is resumed.
                handler = self._handler_for(task, error)
                self._open[handler.id] = handler
                run.after.extend(run.stream_events.started(handler, run.step, run.now))
                self._submit((handler,), run.after)
            return
        self._calls.keep(task, writes)
        self._calls.uncaught(task, error)
        if task.kind is Kind.CALL:
            self._calls.failed(task, error)
        elif self._failure is None:
            self._failure = error
            if not refused:
                self._cancel_all(kill=False)

    def _interrupted(self, task: Task, outcome: records.Interrupted) -> None:
        run, error = self._run, outcome.refused
        below = self._calls.bodies[task.id].asked if task.id in self._calls.bodies else {}
        asked = {item.id: item for path in sorted(below) for item in below[path]}
        asked |= {item.id: item for item in outcome.interrupts}
        interrupts = tuple(asked.values())
        writes: tuple[Write, ...] = ((records.INTERRUPT, interrupts),)
        if error is not None:
            # The run fails, but the other tasks go on: their answers were taken.
            failure = () if task.kind is Kind.CALL else ((records.ERROR, keepable(error)),)
            writes = ((records.RESUME, outcome.answers), *failure, *writes)
            setattr(error, errors.INVALID_RESUME, outcome.interrupts[0].id)
            self._failure = self._failure or error
            run.refuse_answer(error)
        elif interrupts and run.options.modes and task.kind is not Kind.CALL:
            shown = read(run.state.channels, run.options.output_channels)
            run.after.extend(run.stream_events.interrupted(interrupts, shown))
        self._calls.keep(task, writes)
        if run.stream_events.shows_tasks:
            run.after.extend(run.stream_events.ended(task, run.step, run.now, error or interrupts))
        if task.kind is Kind.CALL and task.parent is not None:
            # Its body asks it too.
            self._calls.bodies[task.parent.id].asked[task.path] = interrupts
            return
        self._paused = True
        run.interrupts |= asked
