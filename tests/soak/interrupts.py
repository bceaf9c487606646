"""``python -m tests.soak.interrupts --count 2000``: signals at random instants of short
runs.

Each run gets one signal, at a random instant of the time that it takes, and is resumed
at once in the same process. The program has a handler for each of the signals, and each
handler raises. The run has to end with what the handler raised within ``--seconds``,
and the resumed run with the right result. One process makes all the runs of one kind,
so that what a signal leaves behind (a lock, a lease, an OS thread) is met by those
after it. In the end the store is verified, and no process may be left. The exit status
is 1 if a promise did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, product
from pathlib import Path
from typing import Any, Final

from flowpregel import LMDBSaver, StateGraph, entrypoint, task
from flowpregel.errors import EmptyInputError
from flowpregel.executors.processes.wire.guard_process import processes_with

KINDS: Final = [
    *map("-".join, product(("inline", "threads", "processes"), ("sync", "async"))),
    "states-sync",
    "care-sync",
]
"""What is interrupted: runs by executor and driver; reading and updating a thread's
state; and what looks after a store.
"""
STUCK_AFTER: Final = 30.0
"""Seconds after which a run that neither ends nor fails is given up, with its
stacks.
"""
WIDTH: Final = 3
PROGRAM: Final = "FLOWPREGEL_SOAK"
"""The environment variable by which the processes that a kind has left behind are
found.
"""


class Alarm(Exception):
    """Raised by the handler of SIGALRM, as the usual one that bounds a call does."""


class Reload(Exception):
    """Raised by the handler of SIGUSR1."""


def end_program(*_: Any) -> None:
    """Do what the handler of SIGTERM does in most containers."""
    sys.exit(0)


def ring(*_: Any) -> None:
    """Break off what takes too long."""
    raise Alarm


def reload(*_: Any) -> None:
    """Break off what runs, to begin again with other settings."""
    raise Reload


SIGNALS: Final[dict[signal.Signals, tuple[Any, type[BaseException]]]] = {
    signal.SIGINT: (signal.default_int_handler, KeyboardInterrupt),
    signal.SIGTERM: (end_program, SystemExit),
    signal.SIGALRM: (ring, Alarm),
    signal.SIGUSR1: (reload, Reload),
}
"""The program's handler for each signal, and what it raises."""
RAISED: Final = tuple(error for _, error in SIGNALS.values())


class SignalTimer(ctypes.Structure):
    """A timer of the kernel's that sends this process any signal: a `sigevent`
    (Linux).
    """

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal_number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )

    def __init__(self, number: int) -> None:
        super().__init__(signal_number=number)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        created = self._libc.timer_create(
            time.CLOCK_MONOTONIC, ctypes.byref(self), ctypes.byref(self._timer)
        )
        if created != 0:
            raise OSError(ctypes.get_errno(), "timer_create")

    def set(self, seconds: float) -> None:
        """Send the signal after *seconds*; 0: not any more."""
        whole = int(seconds)
        # Two `timespec`: the interval, which is none, and the time until the signal.
        times = (ctypes.c_long * 4)(0, 0, whole, int((seconds - whole) * 1e9))
        self._libc.timer_settime(self._timer, 0, times, None)


@task
def double(number: int) -> int:
    """Return twice *number*."""
    return 2 * number


def body_of(kind: str) -> Any:
    """Return the body of the flow of *kind*: two rounds of a few calls."""
    if kind.endswith("-async"):

        async def aflow(start: int) -> int:
            first = await asyncio.gather(*[double(start + n) for n in range(WIDTH)])
            second = await asyncio.gather(*[double(n) for n in first])
            return sum(second)

        return aflow

    def flow(start: int) -> int:
        first = [future.result() for future in double.map(range(start, start + WIDTH))]
        return sum(future.result() for future in double.map(first))

    return flow


def expected(start: int) -> int:
    """Return what the flow returns for *start*."""
    return sum(4 * (start + n) for n in range(WIDTH))


@contextmanager
def sent(timer: SignalTimer, after: float) -> Iterator[None]:
    """Send a signal *after* some seconds, unless this has ended by then; 0: never."""
    try:
        timer.set(after)
        yield
    finally:
        timer.set(0)


class Storm:
    """Runs and interrupts one kind of run, again and again, on one store.

    Args:
        kind: Which.
        folder: Where the store is.
        seed: Of the instants.
        seconds: From the interrupt to `KeyboardInterrupt`, and from the call to a
            resumed run's result.
    """

    def __init__(self, kind: str, folder: Path, seed: int, seconds: float) -> None:
        self.kind = kind
        self._seconds = seconds
        self.found: Counter[str] = Counter()
        self._random = random.Random(f"{kind}{seed}")
        self._timers = {number: SignalTimer(number) for number in SIGNALS}
        self._saver = LMDBSaver(folder / f"{kind}.lmdb")
        self._flow: Any
        if not kind.startswith(("inline", "threads", "processes")):
            graph = StateGraph(dict).add_node(
                "add", lambda state: {"count": state["count"] + 1}
            )
            self._flow = graph.set_entry_point("add").compile(
                self._saver, executor="inline"
            )
        else:
            executor = kind.partition("-")[0]
            self._flow = entrypoint(checkpointer=self._saver, executor=executor)(
                body_of(kind)
            )

    def call(
        self,
        given: int | None,
        thread: str,
        number: int = signal.SIGINT,
        after: float = 0.0,
    ) -> int:
        """Invoke the flow; None goes on. Send a signal *after* some seconds, if it
        still runs.
        """
        timer = self._timers[signal.Signals(number)]
        options: Any = {"thread_id": thread, "durability": "sync"}
        if self.kind in ("states-sync", "care-sync"):
            with sent(timer, after):
                if self.kind == "care-sync":
                    self._care()
                return self._states(given, {"configurable": {"thread_id": thread}})
        if self.kind.endswith("-async"):

            async def invoke() -> int:
                # On the loop: asyncio's own beginning and end are not ours to make
                # safe.
                with sent(timer, after):
                    return await self._flow.ainvoke(given, **options)

            return asyncio.run(invoke())
        with sent(timer, after):
            return self._flow.invoke(given, **options)

    def _care(self) -> None:
        """Back the store up, compact it, look at each page, and open it once more."""
        with tempfile.TemporaryDirectory() as folder:
            self._saver.backup(f"{folder}/backup")
        self._saver.compact()
        with LMDBSaver(self._saver.path) as again:
            again.verify()

    def _states(self, given: int | None, config: dict[str, Any]) -> int:
        if given is not None:
            self._flow.update_state(
                config, {"count": expected(given)}, as_node="__start__"
            )
        seen = [self._flow.get_state(config).values for _ in range(5)]
        if not seen[-1]:
            raise EmptyInputError("nothing was kept")
        count: int = seen[-1]["count"]
        return count

    def once(self, number: int, signal_number: signal.Signals, seconds: float) -> None:
        """Send run *number* a signal within *seconds*, and resume it."""
        thread = f"run-{number}"
        after = self._random.uniform(0.0, seconds)
        due = time.monotonic() + after
        _, raised = SIGNALS[signal_number]
        try:
            result = self.call(number, thread, signal_number, max(after, 1e-6))
        except raised:
            self.found["interrupted"] += 1
            self.found[signal_number.name] += 1
            self._judge(time.monotonic() - due < self._seconds, "late")
        except BaseException as error:  # noqa: BLE001 - counted, and fails the storm
            self._judge(False, f"{signal_number.name}: ended with {error!r}"[:200])
        else:
            self.found["not in time"] += 1
            self._judge(result == expected(number), "wrong result")
            return
        self.resume(number, thread)

    def resume(self, number: int, thread: str) -> None:
        """Go on with run *number*, from its input if nothing was kept of it."""
        began = time.monotonic()
        try:
            try:
                result = self.call(None, thread)
            except EmptyInputError:
                result = self.call(number, thread)
        except BaseException as error:  # noqa: BLE001 - counted, and fails the storm
            self._judge(False, f"resumed with {error!r}"[:200])
            return
        # One that had ended before the interrupt has its result already.
        self._judge(
            result in (None, expected(number)), f"resumed with {result!r}"[:200]
        )
        self._judge(time.monotonic() - began < self._seconds, "resumed late")

    def _judge(self, holds: bool, broken: str) -> None:
        if not holds:
            self.found[f"! {broken}"] += 1

    def run(self, count: int) -> Counter[str]:
        """Interrupt *count* runs; return what was found, promises broken with a "!"."""
        # Also of SIGINT: what a shell starts in the background ignores it.
        for number, (handler, _) in SIGNALS.items():
            signal.signal(number, handler)
        for number in range(-5, 0):
            self.call(number, f"first{number}")
        began = time.monotonic()
        for number in range(-15, -5):
            self.call(number, f"first{number}")
        usual = (time.monotonic() - began) / 10
        for number, signal_number in zip(range(count), cycle(SIGNALS), strict=False):
            faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
            with suppress(*RAISED):
                self.once(number, signal_number, 1.1 * usual)
        faulthandler.cancel_dump_traceback_later()
        self._judge(self.found["interrupted"] > 0, "no run was interrupted")
        handlers = [signal.getsignal(number) for number in SIGNALS]
        own = [handler for handler, _ in SIGNALS.values()]
        self._judge(handlers == own, f"other handlers are left: {handlers}")
        self._saver.verify()
        self._saver.close()
        return self.found


def child(asked: argparse.Namespace) -> int:
    """Make the storm of one kind in this process, and print what was found."""
    found = Storm(asked.kind, Path(asked.folder), asked.seed, asked.seconds).run(
        asked.count
    )
    print(f"{asked.kind}: {dict(found)}", flush=True)
    return 1 if any(each.startswith("!") for each in found) else 0


def has_left_processes(mark: str) -> bool:
    """Return whether a process of a program that has ended is still there, and say
    so.
    """
    until = time.monotonic() + 5.0
    while left := processes_with({f"{PROGRAM}={mark}".encode()}):
        if time.monotonic() > until:
            print(f"! processes are left: {left}", flush=True)
            return True
        time.sleep(0.05)
    return False


def main(arguments: list[str] | None = None) -> int:
    """Storm every kind, each in a process of its own, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.interrupts", description=__doc__
    )
    parser.add_argument("--count", type=int, default=2000, help="signals in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="that an end may take"
    )
    parser.add_argument("--kind", choices=KINDS, help="only this one, in this process")
    parser.add_argument("--folder", help="where its store is")
    asked = parser.parse_args(arguments)
    if asked.kind is not None:
        return child(asked)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="flowpregel-interrupts-") as folder:
        for kind in KINDS:
            command = [sys.executable, "-m", "tests.soak.interrupts", "--kind", kind]
            command += ["--folder", folder, "--seed", str(asked.seed)]
            command += ["--seconds", str(asked.seconds)]
            command += ["--count", str(-(-asked.count // len(KINDS)))]
            mark = uuid.uuid4().hex
            done = subprocess.run(
                command, check=False, env={**os.environ, PROGRAM: mark}
            )
            failed += done.returncode != 0 or has_left_processes(mark)
    print(f"{len(KINDS) - failed} of {len(KINDS)} kinds kept their promises")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
