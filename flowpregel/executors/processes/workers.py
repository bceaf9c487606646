"""The workers of a pool: started, watched, stopped, and what is known when one ends."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from flowpregel.executors.processes import protocol
from flowpregel.executors.processes.assign import InFlight, WorkerEvent, WorkerState
from flowpregel.executors.processes.crash_report import PostMortem, count_oom_kills, memory_of, reap
from flowpregel.executors.processes.io_loop import IOLoop
from flowpregel.executors.processes.protocol import Frame, GarbageError
from flowpregel.executors.processes.worker_process import (
    PoolSettings,
    WorkerProcess,
)

_START_TIMEOUT: Final = 120.0
"""Seconds that a worker may take to start; its initializer may load a model."""
_PARTING: Final = 0.5
"""Seconds that a worker may live on without its link."""
_SPARE: Final = 8
START_TRIES: Final = 3
_CLOSED: Final = "the pool was closed"
_CHUNK: Final = 1 << 16


class Workers:
    """The workers of a pool. Everything happens on the I/O thread, unless said otherwise.

    Args:
        settings: How the pool is set up.
        loop: The I/O loop.
    """

    def __init__(self, settings: PoolSettings, loop: IOLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._oom_kills = count_oom_kills()
        self.is_closed = False
        self._failed_starts = 0
        self._is_reaping = False
        self._spawner: threading.Thread | None = None
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.spawning = 0
        """How many workers are being started and have no process yet."""
        self.all: set[WorkerProcess] = set()
        self.keep = 0
        """How many workers are there even if no task waits."""
        self.on_frame: Callable[[WorkerProcess, Frame], None]
        """Called with each frame that a worker has sent."""
        self.on_exit: Callable[[WorkerProcess, PostMortem], None]
        """Called when a worker has ended."""
        self.on_hopeless: Callable[[BaseException], None]
        """Called when several workers in a row could not be started."""

    # ------------------------------------------------ coming

    @property
    def are_gone(self) -> bool:
        """Whether there is no worker, and none is being started."""
        return not (self.all or self.spawning)

    def start(self) -> None:
        """Start a worker."""
        if self._spawner is None:
            self._spawner = threading.Thread(
                target=self._spawn, name="flowpregel-spawner", daemon=True
            )
            self._spawner.start()
        self.spawning += 1
        self._wanted.put(True)

    def _spawn(self) -> None:
        """Start workers, on an OS thread that lives until all of them have ended."""
        while self._wanted.get():
            try:
                result: WorkerProcess | BaseException = WorkerProcess(self._settings)
            except BaseException as error:  # noqa: BLE001 - told to the tasks that wait
                result = error
            self._loop.call(partial(self._on_started, result))
            del result

    def close(self) -> None:
        """End the OS thread that starts workers."""
        self._wanted.put(False)

    def _on_started(self, worker: WorkerProcess | BaseException) -> None:
        self.spawning -= 1
        if isinstance(worker, BaseException):
            self._fail_start(worker)
            return
        self.all.add(worker)
        for fd, to_stderr in ((worker.stdout, False), (worker.stderr, True)):
            self._loop.watch(fd, partial(self._read_stream, worker, fd, to_stderr))
        self._loop.watch(worker.link.fileno(), partial(self._read_link, worker))
        self._loop.watch(worker.end, partial(self._on_end, worker))
        if self.is_closed:
            worker.kill(_CLOSED)

        def give_up() -> None:
            if worker.state is WorkerState.STARTING:
                worker.kill(f"it was not ready after {_START_TIMEOUT:.0f} seconds")

        self._loop.timers.add(time.monotonic() + _START_TIMEOUT, give_up)

    def _fail_start(self, error: BaseException) -> None:
        """Note that a worker could not be started, or ended before it was ready."""
        self._failed_starts += 1
        self.keep = 0
        if self._failed_starts >= START_TRIES:
            self._failed_starts = 0
            self.on_hopeless(error)

    def mark_ready(self, worker: WorkerProcess) -> None:
        """Note that *worker* has started."""
        self._failed_starts = 0
        worker.note(WorkerEvent.READY)
        if worker.state is WorkerState.IDLE:
            self.keep = self._settings.size if self._settings.warm else 0
            self._mark_idle(worker)

    # ------------------------------------------------ going

    def rest(self, worker: WorkerProcess) -> None:
        """Make *worker*, which has no tasks left, idle, or dismiss it."""
        worker.note(WorkerEvent.EMPTIED)
        if worker.state is not WorkerState.IDLE:
            return
        idle = sum(each.state is WorkerState.IDLE for each in self.all)
        # Spare ones: a worker whose task waits for calls is not counted.
        if self._is_worn(worker) or idle > 2 * self._settings.size + _SPARE:
            self.dismiss(worker)
        else:
            self._mark_idle(worker)

    def _is_worn(self, worker: WorkerProcess) -> bool:
        most_tasks, most_rss = self._settings.worker_max_tasks, self._settings.worker_max_rss
        if most_tasks is not None and worker.served >= most_tasks:
            return True
        return most_rss is not None and memory_of(worker.pid) > most_rss

    def _mark_idle(self, worker: WorkerProcess) -> None:
        worker.idle_since = time.monotonic()
        if not self._is_reaping:
            self._is_reaping = True
            self._loop.timers.add(worker.idle_since + self._settings.idle_after, self._reap_idle)

    def _reap_idle(self) -> None:
        """Dismiss workers that were idle for long; look again after as long."""
        now, idle_after = time.monotonic(), self._settings.idle_after
        for worker in self.all:
            if worker.state is WorkerState.IDLE and worker.idle_since + idle_after <= now:
                self.keep = 0
                self.dismiss(worker)
        self._loop.timers.add(now + idle_after, self._reap_idle)

    def dismiss(self, worker: WorkerProcess) -> None:
        """Tell the idle *worker* to exit."""
        worker.note(WorkerEvent.DISMISSED)
        self.send(worker, protocol.STOP)

    def dismiss_all(self) -> None:
        """End all workers: idle ones are told to exit, and have the grace for it."""
        self.is_closed = True
        for worker in self.all:
            if worker.state is WorkerState.IDLE:
                self.dismiss(worker)
            elif worker.state is not WorkerState.LEAVING:
                worker.kill(_CLOSED)
        self._loop.timers.add(time.monotonic() + self._settings.grace, self._kill_all)

    def _kill_all(self) -> None:
        for worker in self.all:
            worker.kill(_CLOSED)

    # ------------------------------------------------ what is sent, and what arrives

    def send(self, worker: WorkerProcess, kind: int, number: int = 0, body: bytes = b"") -> None:
        """Send *worker* a frame, now or as soon as its link takes it."""
        if not worker.link.send(kind, number, body):
            self._loop.watch_writable(worker.link.fileno(), partial(self._flush, worker))

    def _flush(self, worker: WorkerProcess) -> None:
        if worker.link.flush():
            self._loop.watch_writable(worker.link.fileno(), None)

    def _read_link(self, worker: WorkerProcess) -> None:
        frames, size = self._receive(worker)
        self._pass_on(worker, frames)
        if size == 0:
            self._loop.forget(worker.link.fileno())
            # How it ended, the kernel tells in a moment. One that only closed its link is no use.
            leave = partial(worker.kill, "it closed its link")
            self._loop.timers.add(time.monotonic() + _PARTING, leave)

    def _receive(self, worker: WorkerProcess) -> tuple[list[Frame], int | None]:
        try:
            return worker.link.receive()
        except GarbageError as error:
            worker.kill(f"it sent garbage on its link ({error})")
            return [], 0

    def _pass_on(self, worker: WorkerProcess, frames: list[Frame]) -> None:
        for frame in frames:
            if worker.is_garbled:
                return
            try:
                self.on_frame(worker, frame)
            except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
                # No other run, nor the rest of this one, is to pay for it.
                cause = f"{type(error).__name__}: {error}"
                why = f"what it sent cannot be read in the coordinator ({cause})"
                worker.kill(why)
                worker.is_garbled = True

    def _read_stream(self, worker: WorkerProcess, fd: int, to_stderr: bool) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            print_lines(worker, data.decode(errors="replace"), worker.running(), to_stderr)
        else:
            self._loop.forget(fd)

    # ------------------------------------------------ the end

    def _on_end(self, worker: WorkerProcess) -> None:
        ended = reap(worker.process)
        if ended is None:
            return
        self._loop.forget(worker.end)
        self._drain(worker)
        worker.end_family()
        self.all.discard(worker)
        is_failed_start = worker.state is WorkerState.STARTING or worker.failure is not None
        worker.note(WorkerEvent.EXITED)
        kills = count_oom_kills()
        is_oom, self._oom_kills = kills > self._oom_kills, kills
        report = PostMortem(worker.pid, *ended, worker.killed, is_oom, worker.tail.text())
        self.on_exit(worker, report)
        if is_failed_start:
            self._fail_start(worker.failure or report.error("(starting)"))
        worker.close()

    def _drain(self, worker: WorkerProcess) -> None:
        """Read what the dead *worker* has left in its link and its streams."""
        link = worker.link.fileno()
        while link in self._loop:
            frames, size = self._receive(worker)
            self._pass_on(worker, frames)
            if not size:
                self._loop.forget(link)
        for fd, to_stderr in ((worker.stdout, False), (worker.stderr, True)):
            if fd in self._loop:
                self._read_stream(worker, fd, to_stderr)
                self._loop.forget(fd)


def print_lines(worker: WorkerProcess, text: str, task: InFlight | None, to_stderr: bool) -> None:
    """Print what a worker has printed; each line begins with the name of its task."""
    if to_stderr:
        worker.tail.write(text)
    label = f"[{task.job.task.name}]" if task else f"[worker {worker.pid}]"
    stream = sys.stderr if to_stderr else sys.stdout
    # The program may have closed its streams.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream.write("".join(f"{label} {line}\n" for line in text.splitlines()))
        stream.flush()
