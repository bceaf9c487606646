"""Starts worker processes, from one OS thread that lives as long as the program.

The kernel's death signal of a child fires when the OS *thread* that started it
ends, so a worker must not be started by a thread that comes and goes.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from flowpregel.executors.processes import worker
from flowpregel.executors.processes.board import Board, new_board_file
from flowpregel.executors.processes.setup import Inherited, Setup

Started: TypeAlias = "Callable[[Newborn | BaseException], None]"


@dataclass(slots=True, kw_only=True)
class Newborn:
    """A worker that was started, and the coordinator's ends of what connects it."""

    process: Any
    """The loky process."""
    pid: int
    pidfd: int | None
    """Readable when the process has ended; None where there is no such thing."""
    link: socket.socket
    door: socket.socket
    board: Board
    tokens_read: int
    tokens_write: int
    stdout: int
    stderr: int
    mark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A worker that is wanted."""

    name: str
    env: Mapping[str, str]
    initializer: bytes
    shared_limit: int
    started: Started


class Spawner:
    """Starts workers one after the other; `order` returns at once."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def order(self, order: Order) -> None:
        """Start a worker, and call ``order.started`` with it, or with what went wrong."""
        self._orders.put(order)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._spawn_all, name="flowpregel-spawner", daemon=True
                )
                self._thread.start()

    def _spawn_all(self) -> None:
        while True:
            order = self._orders.get()
            try:
                result: Newborn | BaseException = _spawn(order)
            except BaseException as error:  # noqa: BLE001 - told to who ordered it
                result = error
            order.started(result)
            del order, result


def _after_fork() -> None:
    global spawner
    spawner = Spawner()


spawner = Spawner()
"""The one of this program."""
os.register_at_fork(after_in_child=_after_fork)


def _spawn(order: Order) -> Newborn:
    from loky.backend import get_context  # noqa: PLC0415 - 56 ms, only when needed

    link, far_link = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    door, far_door = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    board = new_board_file()
    tokens_read, tokens_write = os.pipe()
    stdout, far_stdout = os.pipe()
    stderr, far_stderr = os.pipe()
    far = [far_link.fileno(), far_door.fileno(), board, tokens_read, far_stdout, far_stderr]
    mark = int.from_bytes(os.urandom(4), "little")
    setup = Setup(
        link=Inherited(far[0]),
        door=Inherited(far[1]),
        board=Inherited(board),
        tokens=Inherited(tokens_read),
        stdout=Inherited(far_stdout),
        stderr=Inherited(far_stderr),
        mark=mark,
        coordinator=os.getpid(),
        initializer=order.initializer,
        shared_limit=order.shared_limit,
        log_level=logging.getLogger().level,
    )
    process = get_context("loky").Process(
        target=worker.main, args=(setup,), name=order.name, env=dict(order.env)
    )
    try:
        process.start()
        newborn = Newborn(
            process=process,
            pid=process.pid,
            pidfd=os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None,
            link=link,
            door=door,
            board=Board(board),
            tokens_read=tokens_read,
            tokens_write=tokens_write,
            stdout=stdout,
            stderr=stderr,
            mark=mark,
        )
    except BaseException:
        for fd in (tokens_read, tokens_write, stdout, stderr):
            os.close(fd)
        link.close()
        door.close()
        raise
    finally:
        far_link.close()
        far_door.close()
        for fd in (board, far_stdout, far_stderr):
            os.close(fd)
    os.set_inheritable(tokens_read, False)
    door.setblocking(False)
    for fd in (tokens_read, tokens_write, stdout, stderr):
        os.set_blocking(fd, False)
    return newborn
