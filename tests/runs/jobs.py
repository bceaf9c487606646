"""What tests have their worker processes do, beside what `tests.runs.pooling` has.

It is apart from the tests since a worker imports the module of its function, and pytest
takes it half as long again as all else.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from resource import RLIMIT_AS, setrlimit
from typing import Any

from flowpregel.config import get_stream_writer
from flowpregel.context import current
from flowpregel.executors.processes.wire import protocol
from flowpregel.executors.processes.worker.link import WorkerLink
from flowpregel.executors.shared import resource
from tests.runs.pooling import call_task, is_alive, wait_until

# ------------------------------------------------ plain ones


def same(given: Any) -> Any:
    return given


def pid(_: Any) -> int:
    return os.getpid()


def double(number: int) -> int:
    return 2 * number


def caps(_: Any) -> str | None:
    return os.environ.get("OPENBLAS_NUM_THREADS")


def put(_: Any) -> None:
    """Put an item into the run's store."""
    scope = current.get()
    assert scope is not None
    scope.job.run.store.put(("a",), "b", {})


@resource
def model() -> dict[str, int]:
    """Something that takes long to make."""
    return {"made by": os.getpid(), "thread": threading.get_ident()}


def use_model(_: Any) -> tuple[int, int]:
    return id(model()), model()["made by"]


def busy(seconds: float) -> float:
    """Compute for that long."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        pass
    return time.monotonic() - began


# ------------------------------------------------ ends of a worker


def die_of(number: int) -> None:
    os.kill(os.getpid(), number)


def survive(number: int) -> str:
    os.kill(os.getpid(), number)
    return "alive"


def terminate_children(_: Any) -> list[int | None]:
    """Return the exit codes of a forked child and of a program, after SIGTERM."""
    forked = get_context("fork").Process(target=signal.pause)
    forked.start()
    forked.terminate()
    forked.join()
    with subprocess.Popen(["sleep", "60"]) as program:
        program.terminate()
    return [forked.exitcode, program.returncode]


def segfault(_: Any) -> None:
    ctypes.string_at(0)


def leave(code: int) -> None:
    os._exit(code)


def fail(_: Any) -> None:
    raise ValueError("boom")


def refuse() -> None:
    raise OSError("no licence")


def raise_it(error: BaseException) -> None:
    raise error


def note_and_wait(files: tuple[str, str]) -> int:
    """Note that it has begun, and run until the other file is there."""
    begun, end = files
    with open(begun, "a") as out:
        out.write("begun\n")
    wait_until(lambda: os.path.exists(end))
    return os.getpid()


def start_child(_: Any) -> int:
    return subprocess.Popen(["sleep", "60"]).pid


def fork_and_return(_: Any) -> int:
    os.fork()
    return 5


# ------------------------------------------------ what does not stop by itself


def loop_for_ever(_: Any) -> None:
    while True:
        pass


def ignore_everything(_: Any) -> None:
    while True:
        try:
            loop_for_ever(None)
        except BaseException:  # noqa: BLE001 - what a stubborn task does
            continue


def wait_for_a_lock(_: Any) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def power(_: Any) -> int:
    return int(7 ** (10**8) > 0)  # seconds in C, where no signal is looked at


def hold_the_interpreter(_: Any) -> None:
    ctypes.PyDLL(None).sleep(60)


def import_slowly(folder: Path) -> tuple[list[str], int]:
    """Import a package; return a part of it, and the worker's pid."""
    sys.path.insert(0, str(folder))
    import slow_package

    time.sleep(60 * (not (folder / "stopped").exists()))
    return slow_package.names, os.getpid()


def print_until_the_alarm(kind: type[Exception]) -> int:
    """Print much, until a signal's handler raises an error of that *kind*; return how
    much.
    """

    def ring(*_: Any) -> None:
        raise kind

    lines = 0
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        while True:
            print("x" * 30_000)
            lines += 1
    except kind:
        return lines


# ------------------------------------------------ death on the way


class Deadly:
    """Kills whoever unpickles it, once it has left the process that made it."""

    def __init__(self) -> None:
        self.made_by = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if os.getpid() != state["made_by"]:
            os.kill(os.getpid(), signal.SIGKILL)


class Reduced:
    """Does *deed* when it is pickled in a worker."""

    def __init__(self, deed: Any) -> None:
        self.deed = deed

    def __reduce__(self) -> Any:
        self.deed()
        return str, ()


def make_deadly(_: Any) -> Reduced:
    return Reduced(lambda: os._exit(7))


def make_endless(_: Any) -> Reduced:
    def deed() -> None:
        while True:
            pass

    return Reduced(deed)


def make_wrong(_: Any) -> Reduced:
    def deed() -> None:
        raise LookupError("not today")

    return Reduced(deed)


def poison(file: str) -> None:
    with open(file, "a") as out:
        out.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


# ------------------------------------------------ garbage


def explode() -> None:
    """Fail, as a class may while it is unpickled."""
    raise RuntimeError("it explodes")


class Bomb:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return explode, ()


def work(number: int) -> int:
    """Do what is right."""
    return number * number


def stream_a_bomb(_: Any) -> None:
    """Send a chunk that cannot be read."""
    get_stream_writer()(Bomb())


def call_with_a_bomb(_: Any) -> None:
    """Call a task with an argument that cannot be read."""
    call_task(work, Bomb()).result()


def send_nonsense(seed: int) -> int:
    """Send frames that carry the link's mark, and nonsense in their bodies."""
    luck = random.Random(seed)
    (link,) = [each for each in gc.get_objects() if type(each) is WorkerLink]
    kinds = [
        protocol.EMITTED,
        protocol.CALLED,
        protocol.ASKED,
        protocol.LOGGED,
        protocol.PRINTED,
    ]
    for _ in range(5):
        # Without the opcodes by which a pickle asks for any amount of memory.
        body = bytes(
            luck.choice(b"\0\1\2abcXYZ.)]}") for _ in range(luck.randrange(80))
        )
        link.send(luck.choice(kinds), luck.randrange(8), body)
    return seed


def end_with_nonsense(_: Any) -> None:
    """Send what should be how a task has ended, and is not."""
    (link,) = [each for each in gc.get_objects() if type(each) is WorkerLink]
    link.send(protocol.ENDED, link.task, b"no result")


def end_another_task(_: Any) -> None:
    """Send how a task has ended that this worker was never sent, just before its own
    end.
    """
    (link,) = [each for each in gc.get_objects() if type(each) is WorkerLink]
    link.send(protocol.ENDED, link.task + 1000)


# ------------------------------------------------ memory


def touch(size: int) -> int:
    """Use that much memory for a moment; return the worker's pid."""
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1
    return os.getpid()


_leak: list[bytearray] = []


def leak(size: int) -> int:
    """Keep that much memory for ever; return the worker's pid."""
    _leak.append(bytearray(b"x" * size))
    return os.getpid()


def may_have(size: int) -> None:
    setrlimit(RLIMIT_AS, (size, size))


def join(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))


def fill_beside_others(item: tuple[int, Path]) -> int:
    """Use memory while other calls do, until the largest call is killed for it.

    The first large call waits until four small ones hold their memory, and they hold it
    until that call's worker is dead.
    """
    size, folder = item
    large = folder / "large"
    with mmap.mmap(-1, size) as memory:
        is_large = size > 100 << 20
        if is_large and not large.exists():
            wait_until(lambda: len(list(folder.glob("small-*"))) >= 4)
            (folder / "new").write_text(str(os.getpid()))
            (folder / "new").rename(large)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1
        if not is_large:
            (folder / f"small-{os.getpid()}").touch()
            wait_until(large.exists)
            wait_until(lambda: not is_alive(int(large.read_text())))
    return size


def meet(item: tuple[str, int]) -> int:
    """Wait until that many calls run at the same time and the file ``go`` exists.
    Return the nice value that this one has then.
    """
    name, count = item
    folder = Path(name)
    (folder / f"pid-{os.getpid()}").touch()

    def is_met() -> bool:
        pids = [int(path.name[4:]) for path in folder.glob("pid-*")]
        return (folder / "met").exists() or sum(map(is_alive, pids)) >= count

    wait_until(is_met)
    # A worker may end after its call, so the others need not find it alive.
    (folder / "met").touch()
    wait_until((folder / "go").exists)
    return os.getpriority(os.PRIO_PROCESS, 0)
