"""The command ``work``, which runs what is enqueued in a store.

::

    choice -- threads() --> runs, in order --> one OS thread for each of --jobs runs
      ^                                                 |
    store <------ leases, checkpoints, results ---------+--> ended runs, printed

Several processes of the command may share a store. The lease of a thread decides which
of them runs it; the others skip a thread that is leased. A run is taken again if its
process was killed, because its thread is then due and has no owner.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from flowpregel import _clock, errors
from flowpregel._inspection.preview import FULL, to_json
from flowpregel._interrupts import on_sigterm
from flowpregel._text import in_one_line
from flowpregel.checkpoint.paused import PausedRuns
from flowpregel.cli import console, targets
from flowpregel.cli.console import Code, print_note
from flowpregel.cli.job_limit import ended_after, seconds_of_job
from flowpregel.cli.run_choices import DueRuns, RunChoice
from flowpregel.cli.scheduling import ScheduleFollower
from flowpregel.runtime import pauses

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.checkpoint.maintenance import ThreadInfo
    from flowpregel.pregel.pregel import Pregel
    from flowpregel.pregel.runner import GraphRun

_PERIOD: Final = 1.0
_STOP_GRACE: Final = 20.0
"""The seconds that paused runs have to end after SIGTERM: as many as other runs have by
default.
"""
_PASSING: Final = (
    errors.StoreError,
    errors.StoreBusyError,
    errors.CommitUnknownError,
)
"""The classes of errors that end by themselves when the store's server answers again.
Other subclasses of `StoreError` name problems that a person must solve.
"""
_LOOKS_IN: Final = 10.0
"""The shortest interval between the ends of two reads of the queue, as a multiple of
the time that a read takes. A read takes a second for ten thousand threads.
"""
_IMPORTING: Final = threading.Lock()
"""A lock that is held while a flow is imported, since importing changes `sys.path`."""


@console.store_command("work")
@click.option(
    "--jobs",
    type=console.COUNT,
    metavar="N",
    default=1,
    show_default=True,
    help="Run at most N runs at a time.",
)
@click.option(
    "--until-empty",
    is_flag=True,
    help="End when no run is due; by default the command waits for more.",
)
@click.option(
    "--flow",
    "flows",
    multiple=True,
    metavar="MODULE:FLOW",
    help="Take only runs of this flow; repeatable.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    metavar="SECONDS",
    default=_PERIOD,
    show_default=True,
    help="Look for new runs at this interval.",
)
@click.option(
    "--stop-after",
    metavar="TIME",
    callback=console.duration,
    help="End after this long (3h50m), as after SIGTERM, with exit code 75.",
)
def work_command(
    jobs: int,
    until_empty: bool,
    flows: tuple[str, ...],
    every: float,
    stop_after: float | None,
    store: str | None,
) -> Code:
    """Begin enqueued and scheduled runs, and resume stopped ones.

    `Flow.enqueue` records a run, and this command begins it: those with the greatest
    priority first, and then in the order in which they were enqueued. Runs that were
    killed, and those whose time or signal has come, are resumed; paused runs are left
    alone. Several of these commands may share a store.
    After SIGTERM no more runs begin, and the running ones have 20 seconds to end; the
    next process resumes them. The same happens before the end of a SLURM job.
    """
    if stop_after is None:
        stop_after = seconds_of_job({"stop_grace": _STOP_GRACE})
    # The store is opened for writing first. A process that has opened a store for
    # reading only cannot open it for writing afterwards.
    with (
        targets.open_to_write(store) as saver,
        targets.open_to_read(store) as reader,
        saver.consumers.register(jobs, flows) as registration,
    ):
        choice = DueRuns(reader, flows, registration)
        schedules = ScheduleFollower(saver, flows)
        worker = RunWorker(choice, saver, schedules=schedules)
        return worker.work(
            jobs,
            every,
            until_empty=until_empty,
            stop_after=stop_after,
        )


class _Ended(NamedTuple):
    """A run that has ended in this process, or the request to end this process."""

    thread_id: str
    status: str
    """The status at the end, or an empty string if another process took the run."""
    error: BaseException | None = None
    output: Any = None


@dataclass(slots=True)
class _ActiveRun:
    """A run that this process has taken."""

    thread: ThreadInfo
    """The facts about the thread that were read before this process took the run."""
    run: GraphRun | None = None
    """The run, or None before it begins."""
    is_pausing: bool = False
    """True if this process has asked the run to end because it is paused."""

    def pause(self) -> None:
        """Ask the run to end when its running calls have ended."""
        if self.run is not None and not self.is_pausing:
            self.is_pausing = True
            self.run.end("the run was paused", grace=inf)


@dataclass(slots=True)
class RunWorker:
    """The runs that this process takes from a store.

    Args:
        choice: The choice of the runs.
        saver: The store, open for the runs.
        schedules: The schedules whose runs this process enqueues, or None.
        options: The options of the runs, and ``traceback``.
    """

    choice: RunChoice
    saver: DurableSaver
    schedules: ScheduleFollower | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    _active: dict[str, _ActiveRun] = field(default_factory=dict)
    """The runs that this process has taken, by thread."""
    _left: set[str] = field(default_factory=set)
    """The threads that this process does not take again, because their runs have failed
    in this process.
    """
    _ended: SimpleQueue[_Ended] = field(default_factory=SimpleQueue)
    _reason: str = ""
    """The reason why this process ends, or an empty string."""
    _kill_at: float = inf
    """The time, in monotonic seconds, at which the runs that still run are stopped at
    once, because this process was asked to end earlier.
    """
    _due: list[ThreadInfo] = field(default_factory=list)
    """The threads whose runs were due when the queue was last read, in the order in
    which they begin, without those that this process has taken.
    """
    _next_look: float = 0.0
    """The monotonic time of the next read of the queue."""
    _is_cut_off: bool = False
    """True while the store's server does not answer."""

    def work(
        self,
        jobs: int,
        every: float,
        *,
        until_empty: bool,
        stop_after: float | None = None,
    ) -> Code:
        """Take runs until this process is asked to end, and return the exit code.

        Args:
            jobs: The number of runs at a time.
            every: The seconds after which the store is read again.
            until_empty: True to return when nothing is due.
            stop_after: The seconds after which this process is asked to end, or None.
        """
        code = Code.OK
        with on_sigterm(self._end, dies=False), ended_after(stop_after, self._end):
            try:
                while not self._reason or self._active:
                    now = _clock.wall()
                    self._read_store(now, every, is_patient=not until_empty)
                    if until_empty and self._is_empty(now):
                        break
                    self._take(jobs)
                    code = max(code, self._report(every))
            except KeyboardInterrupt:
                self._stop_all()
                raise
        return Code.AGAIN if self._reason else code

    def _end(self, reason: str) -> bool:
        """Take no more runs, and ask the running ones to end. A signal handler calls
        this.
        """
        self._reason = reason
        self._kill_at = time.monotonic() + _STOP_GRACE
        for active in [*self._active.values()]:
            if active.run is not None:
                active.run.end(reason)
        self._ended.put(_Ended("", "asked to end"))
        return True

    def _stop_all(self) -> None:
        """Stop the running runs at once, and wait for their ends."""
        self._reason = "the command was interrupted"
        self._cancel(self._active.values())
        while self._active:
            self._active.pop(self._ended.get().thread_id, None)

    @staticmethod
    def _cancel(runs: Iterable[_ActiveRun]) -> None:
        """Stop the *runs* that have begun, at once."""
        for active in [*runs]:
            if active.run is not None:
                active.run.cancel()

    # ------------------------------------------------ taking runs

    def _is_empty(self, now: float) -> bool:
        """Return whether no run was due when the queue was read, and no scheduled run
        is still delayed by its jitter.

        Args:
            now: A time before the queue was read, in seconds since the epoch.
        """
        is_delayed = now < self._delayed_until
        return not (self._due or self._active or is_delayed)

    @property
    def _delayed_until(self) -> float:
        """The time, in seconds since the epoch, at which the last of those scheduled
        runs begins that are delayed at random (by their ``jitter``).
        """
        return 0.0 if self.schedules is None else self.schedules.delayed_until

    def _read_store(self, now: float, every: float, *, is_patient: bool) -> None:
        """Enqueue scheduled runs, read the due runs, and end the runs that were paused
        since.

        Args:
            now: The time in seconds since the epoch.
            every: The seconds between two reads of the queue.
            is_patient: True to wait until the store's server answers again.
        """
        try:
            self._enqueue_scheduled(now)
            self._look(every)
            self._end_paused()
        except errors.StoreError as error:
            if not is_patient or type(error) not in _PASSING:
                raise
            if not self._is_cut_off:
                print_note(f"{error}; this is tried again until it succeeds")
            self._is_cut_off = True
            self._due = []
            self._next_look = time.monotonic() + every
        else:
            if self._is_cut_off:
                print_note("the store answers again")
            self._is_cut_off = False

    def _enqueue_scheduled(self, now: float) -> None:
        """Enqueue the runs that are due by their schedules."""
        if self._reason or self.schedules is None:
            return
        if self.schedules.enqueue_due(now):
            self._next_look = 0.0

    def _look(self, every: float) -> None:
        """Read the due runs, if it is time, or if this process has nothing to do.

        Args:
            every: The seconds between two reads of the queue.
        """
        now = time.monotonic()
        is_idle = not self._due and not self._active
        if self._reason or (now < self._next_look and not is_idle):
            return
        excluded = {*self._active, *self._left}
        threads = self.choice.threads()
        self._due = [thread for thread in threads if thread.thread_id not in excluded]
        seconds = time.monotonic() - now
        self._next_look = now + max(every, _LOOKS_IN * seconds)

    def _end_paused(self) -> None:
        """Ask the running runs that have been paused to end after their calls."""
        if self._reason:
            # The command itself is ending, and has asked all runs to end. That request
            # sets no time limit for a run that was already pausing, so such a run is
            # stopped here.
            if time.monotonic() > self._kill_at:
                self._cancel(run for run in self._active.values() if run.is_pausing)
            return
        paused = self.saver.paused() if self._active else PausedRuns()
        for thread_id, active in self._active.items():
            if paused.reason(thread_id, active.thread.metadata):
                active.pause()

    def _take(self, jobs: int) -> None:
        """Begin the first due runs, as many as there is room for."""
        while self._due and len(self._active) < jobs and not self._reason:
            thread = self._due.pop(0)
            thread_id = thread.thread_id
            self._active[thread_id] = _ActiveRun(thread)
            threading.Thread(
                target=self._run, args=(thread_id,), name=f"flowpregel-{thread_id}"
            ).start()

    def _run(self, thread_id: str) -> None:
        """Run or resume the run of a thread, and report its end to the main OS thread
        (through the queue `_ended`).
        """
        try:
            ended = self._run_to_end(thread_id)
        except (errors.ThreadBusyError, errors.LeaseLostError):
            # If another process has taken the run, there is no end to report.
            ended = _Ended(thread_id, "")
        except (errors.TaskCancelled, KeyboardInterrupt) as error:
            ended = _Ended(thread_id, "stopped", error)
        except BaseException as error:  # noqa: BLE001 - the other runs go on
            status = "stopped" if type(error) in _PASSING else "failed"
            ended = _Ended(thread_id, status, error)
        self._ended.put(ended)

    def _run_to_end(self, thread_id: str) -> _Ended:
        """Run or resume the run of a thread, and return its end."""
        # Imported here to keep `flowpregel --help` fast.
        from flowpregel.pregel.runner import GraphRun  # noqa: PLC0415

        # The run ends where it must wait for a time or a signal, so that it does not
        # occupy one of the ``--jobs`` places while it waits.
        pauses.set(True)
        thread = self.choice.thread(thread_id)
        if thread is None:
            # If the run is no longer due, another process has run it, so nothing is
            # left to do.
            return _Ended(thread_id, "")
        with _IMPORTING:
            flow = self._on_store(self.choice.flow_of(thread))
        options = {**self.options, "thread_id": thread_id, "on_conflict": "raise"}
        options.pop("traceback", None)
        run = GraphRun(flow, None, None, options)
        run.resume = flow.once
        self._active[thread_id].run = run
        if self._reason:
            run.end(self._reason)
        for _ in run.items():
            pass
        result = run.engine.result
        if result is not None and result.interrupts:
            return _Ended(thread_id, "waiting")
        return _Ended(thread_id, "done", output=run.output())

    def _on_store(self, flow: Pregel) -> Pregel:
        """Return the flow with the store of this process. If it is the flow's own
        store, the flow's saver is used, with its settings.
        """
        is_own = getattr(flow.saver, "location", None) == self.saver.location
        # With ``--trust``, the flow's own saver is not used, because it may refuse a
        # store that only the user of the command trusts.
        if is_own and not self.saver.options.trusts_all:
            return flow
        return flow.copy({"checkpointer": self.saver})

    # ------------------------------------------------ ends of runs

    def _report(self, every: float) -> Code:
        """Wait for the end of a run, print it, and return the exit code for it. If no
        run ends before the next read of the queue, return then.

        Args:
            every: The greatest number of seconds to wait.
        """
        seconds = every
        if not self._reason:
            # The queue may be read at longer intervals than *every* seconds. But the
            # caller, which checks whether runs were paused, must not wait for longer
            # than that.
            seconds = min(every, max(0.0, self._next_look - time.monotonic()))
        try:
            with _clock.waiting(self._delay()):
                ended = self._ended.get(timeout=seconds)
        except Empty:
            return Code.OK
        active = self._active.get(ended.thread_id)
        if active is not None:
            ended = self._judged(ended, active)
        self._active.pop(ended.thread_id, None)
        if not ended.status or not ended.thread_id:
            return Code.OK
        self._print(ended)
        if ended.status == "failed" and not self._reason:
            self._left.add(ended.thread_id)
        return Code.FAILED if ended.status == "failed" else Code.OK

    def _delay(self) -> _clock.TimedWait:
        """Return a wait that ends when the last of the scheduled runs begins. If runs
        are active, or none is delayed, it ends only with an event.
        """
        wait = _clock.TimedWait(partial(self._ended.put, _Ended("", "")))
        if not self._active:
            remaining = self._delayed_until - _clock.wall()
            if remaining > 0:
                wait.until = _clock.monotonic() + remaining
        return wait

    def _print(self, ended: _Ended) -> None:
        """Print the end of a run."""
        record: dict[str, Any] = {"thread_id": ended.thread_id, "status": ended.status}
        line = f"{ended.status}: {in_one_line(ended.thread_id)}"
        error = ended.error
        if isinstance(error, Exception):
            text = f"{type(error).__name__}: {error}"
            record["error"] = text
            line += f": {text}"
            if self.options.get("traceback"):
                print_note("".join(traceback.format_exception(error)).rstrip())
        if ended.status == "done":
            record["output"] = to_json(ended.output, FULL)
        console.print_result(record, line)

    def _judged(
        self,
        ended: _Ended,
        active: _ActiveRun,
    ) -> _Ended:
        """Return the end of a run, with the status "paused" if the run was stopped
        because of a pause. If the run was cancelled, pause it.
        """
        is_cut_off = isinstance(ended.error, errors.StoreError)
        if ended.status != "stopped" or self._reason or is_cut_off:
            return ended
        if active.is_pausing and isinstance(ended.error, errors.RunStopped):
            return ended._replace(status="paused")
        # A run that was cancelled is paused, so that no other process takes it.
        self.saver.pause([ended.thread_id])
        return ended
