"""A program that invokes a flow while the system gives it few OS threads, and then
again.

Prints for each try: the workers that are left, how the run ended, and how it ended when
it was resumed with as many threads as it wants. Linux only. Root is not held to the
limit, so root becomes another user. A process is an OS thread to the system, so workers
cannot be started either.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel.executors.processes import ProcessExecutor
from tests.soak.faults import workers_of

NOBODY = 65534
READ, ENTER = 1, 2
"""The capabilities to read each file and to enter each folder (CAP_DAC_...)."""
TRIES = {
    "inline": range(6),
    "threads": range(6),
    "coroutines": range(6),
    "processes": (2, 4, 6, 7),
}
"""How many more OS threads than there are it may have, in turn."""


@task
def double(number: int) -> int:
    """Return twice *number*."""
    return 2 * number


@task
async def double_on_a_loop(number: int) -> int:
    """Return twice *number*, on an event loop."""
    return 2 * number


def flow_on_a_loop(count: int) -> int:
    """Make some calls at once, on an event loop."""
    return sum(future.result() for future in double_on_a_loop.map(range(count)))


def flow(count: int) -> int:
    """Make some calls at once."""
    return sum(future.result() for future in double.map(range(count)))


def run(saver: LMDBSaver, executor: str, thread: str, durability: str) -> Any:
    """Invoke the flow, kept by *saver*; in new worker processes if it is to run in
    some.
    """
    with ExitStack() as stack:
        where: Any = executor
        body = flow
        if executor == "processes":
            where = stack.enter_context(ProcessExecutor(2, grace=0.5))
        elif executor == "coroutines":
            where = "inline"
            body = flow_on_a_loop
        app = entrypoint(checkpointer=saver, executor=where)(body)
        return app.invoke(3, thread_id=thread, durability=durability)


def threads_now() -> int:
    """Return how many OS threads this user has."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text("utf-8")
        except OSError:
            continue
        if f"Uid:\t{os.getuid()}\t" in text:
            found += int(text.partition("Threads:")[2].split()[0])
    return found


def become_somebody_else() -> None:
    """Become another user, who may read what root may: so may the processes that it
    starts.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    keep_capabilities, ambient, add = 8, 47, 2
    libc.prctl(keep_capabilities, 1, 0, 0, 0)
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    mask = 1 << READ | 1 << ENTER
    if libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, mask)):
        raise OSError(ctypes.get_errno(), "capset")
    for capability in (READ, ENTER):
        libc.prctl(ambient, add, capability, 0, 0)


def main(folder: str, executor: str, durability: str) -> None:
    """Try with no more OS threads than there are, then with one more, and so on."""
    with (
        tempfile.TemporaryDirectory() as first,
        LMDBSaver(Path(first) / "store.lmdb") as saver,
    ):
        # All is imported now: another user may not be able to read it.
        run(saver, executor, "first", durability)
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        become_somebody_else()
    saver = LMDBSaver(Path(folder) / "store.lmdb")
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    run(saver, executor, "first", durability)
    for more in TRIES[executor]:
        resource.setrlimit(resource.RLIMIT_NPROC, (threads_now() + more, most))
        try:
            ended = str(run(saver, executor, str(more), durability))
        except Exception as error:  # noqa: BLE001 - which, the test looks at
            ended = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        left = len(workers_of(os.getpid()))
        print(
            f"{left}\t{ended!r}\t{run(saver, executor, str(more), durability)}",
            flush=True,
        )
    saver.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
