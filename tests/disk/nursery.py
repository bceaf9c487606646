"""Runs functions in processes whose calls to the disk are counted, recorded, or failed.

`Nursery` starts one process with the preloaded library of ``shim.c``, built by the
machine's C compiler; each order runs in a fork of it, which takes milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("shim.c")
KEY = "the tests' key"
_LENGTH = struct.Struct("<Q")
_FAIL = 5
NOTHING, KILL, TEAR, SHORT, AFTER = 0, 1, 2, 3, 4
EIO, ENOSPC = _FAIL + errno.EIO, _FAIL + errno.ENOSPC
"""What is done to a call: it fails with that error."""
FOREVER = 1 << 40
_LONGEST = 120


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a process is to do, and what is to happen to its disk meanwhile."""

    function: str
    """``module:name``."""
    arguments: tuple[Any, ...]
    folder: str = ""
    """Below it calls are counted."""
    log: str = ""
    """The file they are recorded in."""
    act: int = NOTHING
    first: int = 1
    """The first call, from 1, that something is done to."""
    last: int = 0
    """The last such call."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    status: int
    """Its exit code, or the negative number of the signal."""
    calls: int = 0
    """How many calls changed files; not known of one that was killed."""
    result: Any = None

    @property
    def killed(self) -> bool:
        """Whether it was killed where it was told."""
        return self.status == -signal.SIGKILL


class Nursery:
    """The process that forks the others.

    Args:
        folder: Where the library is built, and results lie.
    """

    def __init__(self, folder: Path) -> None:
        self._result = folder / "result"
        library = build(folder)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.disk.nursery", str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=ROOT,
            env={
                **os.environ,
                "LD_PRELOAD": str(library),
                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                "FLOWPREGEL_STORE_KEY": KEY,
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, function: Callable[..., Any], *arguments: Any, **disk: Any) -> Ended:
        """Call *function* in a process; what it returns is in the result.

        Args:
            function: Found by its name.
            arguments: What it is given.
            disk: Fields of `Order`.
        """
        self._result.unlink(missing_ok=True)
        name = f"{function.__module__}:{function.__qualname__}"
        order = Order(function=name, arguments=arguments, **disk)
        data = pickle.dumps((order, str(self._result)))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_LENGTH.pack(len(data)) + data)
        status, calls = struct.unpack("<qq", self._process.stdout.read(16))
        result = (
            pickle.loads(self._result.read_bytes()) if self._result.exists() else None
        )
        return Ended(status, calls, result)

    def ok(self, function: Callable[..., Any], *arguments: Any, **disk: Any) -> Ended:
        """Do as `run`, and see that it ended well."""
        ended = self.run(function, *arguments, **disk)
        assert 0 == ended.status, ended.result
        return ended


def build(folder: Path) -> Path:
    """Return the library, built in *folder*; skip the test where that is not
    possible.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip(
            "calls to the disk are recorded by a library that needs Linux and a C "
            "compiler"
        )
    library = folder / "shim.so"
    done = subprocess.run(
        [
            *compiler.split(),
            "-shared",
            "-fPIC",
            "-O1",
            str(SOURCE),
            "-o",
            str(library),
            "-ldl",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(
            f"the library that records calls to the disk cannot be built: {done.stderr}"
        )
    return library


# ---------------------------------------------------------------- in the process


def _serve(library: str) -> None:
    shim = ctypes.CDLL(library)
    shim.disk_count.restype = ctypes.c_long
    importlib.import_module("flowpregel.checkpoint.lmdb")
    importlib.import_module("lmdb")
    importlib.import_module("tests.disk.workloads")
    importlib.import_module("tests.disk.sqlite_workloads")
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    while (read := _next(sys.stdin.buffer)) is not None:
        counted, counting = os.pipe()
        pid = os.fork()
        if pid == 0:
            os._exit(_live(shim, counting, *read))
        os.close(counting)
        data = os.read(counted, 8)
        os.close(counted)
        _, status = os.waitpid(pid, 0)
        calls = int.from_bytes(data, "little")
        replies.write(struct.pack("<qq", os.waitstatus_to_exitcode(status), calls))


def _next(orders: IO[bytes]) -> tuple[Order, str] | None:
    head = orders.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    read: tuple[Order, str] = pickle.loads(orders.read(*_LENGTH.unpack(head)))
    return read


def _live(shim: ctypes.CDLL, counting: int, order: Order, result: str) -> int:
    signal.alarm(_LONGEST)
    module, _, name = order.function.partition(":")
    status = 0
    try:
        function = getattr(importlib.import_module(module), name)
        first, last = ctypes.c_long(order.first), ctypes.c_long(order.last)
        shim.disk_arm(order.folder.encode(), order.log.encode(), first, last, order.act)
        found = function(*order.arguments)
    except BaseException:  # noqa: BLE001 - the test shows it
        status, found = 1, traceback.format_exc()
    os.write(counting, shim.disk_count().to_bytes(8, "little"))
    shim.disk_arm(b"", b"", 0, 0, 0)
    Path(result).write_bytes(pickle.dumps(found))
    return status


def mark(text: str) -> None:
    """Note in the record that *text* was acknowledged; in a process of a nursery."""
    library = os.environ["LD_PRELOAD"]
    ctypes.CDLL(library).disk_mark(text.encode())


if __name__ == "__main__":
    from tests.disk import nursery

    with contextlib.suppress(KeyboardInterrupt):
        nursery._serve(sys.argv[1])  # noqa: SLF001 - under the name that pickles know
