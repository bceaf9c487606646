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
    segments: int
    started: Started


def log_levels() -> dict[str, int]:
    """Return the levels of this program's loggers that have one of their own, by name."""
    loggers = tuple(logging.root.manager.loggerDict.items())
    levels = {name: each.level for name, each in loggers if isinstance(each, logging.Logger)}
    return {"": logging.root.level, **{name: level for name, level in levels.items() if level}}


class Spawner:
    """Starts workers one after the other; `order` returns at once."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew: in a forked process its OS thread is not there."""
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


spawner = Spawner()
"""The one of this program."""
os.register_at_fork(after_in_child=spawner.renew)


class _Wires:
    """Both ends of everything that connects a worker that is not started yet."""

    def __init__(self) -> None:
        self.link, self.far_link = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.door, self.far_door = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.board = new_board_file()
        self.tokens_read, self.tokens_write = os.pipe()
        self.stdout, self.far_stdout = os.pipe()
        self.stderr, self.far_stderr = os.pipe()
        self.mark = int.from_bytes(os.urandom(4), "little")

    def setup(self, order: Order) -> Setup:
        """Return what the worker is told."""
        return Setup(
            link=Inherited(self.far_link.fileno()),
            door=Inherited(self.far_door.fileno()),
            board=Inherited(self.board),
            tokens=Inherited(self.tokens_read),
            stdout=Inherited(self.far_stdout),
            stderr=Inherited(self.far_stderr),
            mark=self.mark,
            coordinator=os.getpid(),
            initializer=order.initializer,
            shared_limit=order.shared_limit,
            segments=order.segments,
            log_levels=log_levels(),
        )

    def newborn(self, process: Any) -> Newborn:
        """Return the coordinator's ends, none of which ever blocks."""
        os.set_inheritable(self.tokens_read, False)
        self.door.setblocking(False)
        for fd in (self.tokens_read, self.tokens_write, self.stdout, self.stderr):
            os.set_blocking(fd, False)
        return Newborn(
            process=process,
            pid=process.pid,
            pidfd=os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None,
            link=self.link,
            door=self.door,
            board=Board(self.board),
            tokens_read=self.tokens_read,
            tokens_write=self.tokens_write,
            stdout=self.stdout,
            stderr=self.stderr,
            mark=self.mark,
        )

    def close_far(self) -> None:
        """Close the ends that are the worker's."""
        self.far_link.close()
        self.far_door.close()
        for fd in (self.board, self.far_stdout, self.far_stderr):
            os.close(fd)

    def close_near(self) -> None:
        """Close the ends that would have been the coordinator's."""
        self.link.close()
        self.door.close()
        for fd in (self.tokens_read, self.tokens_write, self.stdout, self.stderr):
            os.close(fd)


def _spawn(order: Order) -> Newborn:
    from loky.backend import get_context  # noqa: PLC0415 - 56 ms, only when needed

    wires = _Wires()
    process = get_context("loky").Process(
        target=worker.main, args=(wires.setup(order),), name=order.name, env=dict(order.env)
    )
    try:
        process.start()
        return wires.newborn(process)
    except BaseException:
        wires.close_near()
        raise
    finally:
        wires.close_far()
