"""A worker in a fork of the test, which has the coordinator's end of its link."""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from flowpregel._core.records import RETURN, Outcome, Raised, Returned
from flowpregel.context import Job
from flowpregel.executors.processes.coordinator.code_cache import codes
from flowpregel.executors.processes.wire import messages, protocol
from flowpregel.executors.processes.wire.guard_process import PROCESS_TAG
from flowpregel.executors.processes.wire.protocol import HEADER, Frame, Parser
from flowpregel.executors.processes.wire.shared_memory import new_shared_file
from tests.unit.executors.quick_pools import LONG, be_worker, job_of, settings

_MARK: Final = 0x5EED


class DrivenWorker:
    """A worker that gets its orders from a test."""

    def __init__(self, **changed: Any) -> None:
        self.link, link = socket.socketpair()
        self.fd_socket, fd_socket = socket.socketpair()
        status = new_shared_file(protocol.STATUS_SIZE)
        self.status = protocol.map_status(status)
        tokens, self._tokens = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        setup = protocol.WorkerSetup(
            settings=settings(**changed),
            link=link.fileno(),
            fd_socket=fd_socket.fileno(),
            status=status,
            tokens=tokens,
            stdout=stdout,
            stderr=stderr,
            magic=_MARK,
            coordinator=os.getpid(),
            log_levels={"": 10, "quiet": 40},
        )
        self.magic = os.urandom(8).hex()
        self.pid = os.fork()
        if self.pid == 0:
            for ours in (self.link, self.fd_socket):
                ours.close()
            for fd in (self._tokens, self.stdout, self.stderr):
                os.close(fd)
            os.dup2(tokens, 0)  # whatever its stdin was: no task may read it
            be_worker(setup, {PROCESS_TAG: self.magic})
        link.close()
        fd_socket.close()
        for fd in (status, tokens, stdout, stderr):
            os.close(fd)
        self.link.settimeout(LONG)
        self._parser = Parser(_MARK, protocol.UP)
        self._frames: list[Frame] = []
        self._has_code: set[bytes] = set()
        self._numbers = 0

    def send(self, kind: int, number: int = 0, body: bytes = b"") -> None:
        """Send a frame down the link."""
        self.link.sendall(HEADER.pack(_MARK, kind, 0, 0, number, len(body)) + body)

    def order(
        self,
        *jobs: Job,
        tokens: Sequence[int] = (),
        begins: int | None = 0,
        number: int = 0,
    ) -> list[int]:
        """Send *jobs*, numbered on; return their numbers.

        Args:
            jobs: The jobs.
            tokens: Those that it may begin, by their positions.
            begins: The position of the one that it begins without a token.
            number: The number of the first; 0: the next.
        """
        first = number or self._numbers + 1
        numbers = [first + position for position in range(len(jobs))]
        self._numbers = numbers[-1]
        orders = []
        for position, job in enumerate(jobs):
            node_code = codes.code_of(job.task.node)
            code = b"" if node_code.digest in self._has_code else node_code.data
            self._has_code.add(node_code.digest)
            body = messages.pack_job(job, None).data
            orders.append((numbers[position], node_code.digest, code, [], body))
        for position in tokens:
            os.write(self._tokens, protocol.TOKEN.pack(numbers[position]))
        begun = 0 if begins is None else numbers[begins]
        self.send(protocol.TASKS, begun, pickle.dumps(orders))
        return numbers

    def frame(self, kind: int | None = None) -> Frame:
        """Return the next frame; it is of that *kind*."""
        while not self._frames:
            data = self.link.recv(1 << 20)
            assert data, "the worker has closed its link"
            self._frames += self._parser.feed(data)
        frame = self._frames.pop(0)
        assert kind in (None, frame.kind), frame
        return frame

    def end(self, number: int) -> tuple[Outcome, Frame]:
        """Return how task *number* has ended, which is the next frame, and that."""
        frame = self.frame(protocol.ENDED)
        assert number == frame.number
        at = messages.unpack_head(frame.body).size
        return messages.unpack_outcome(frame.body, None, at), frame

    def stop(self, number: int) -> None:
        """Tell it to stop task *number*."""
        self.status[protocol.UNWANTED] = number
        os.kill(self.pid, protocol.STOP_SIGNAL)

    def exit_code(self) -> int:
        """Wait for its end; return its exit code."""
        pid, self.pid = self.pid, 0
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """End it."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.exit_code()
        self.link.close()
        self.fd_socket.close()
        for fd in (self._tokens, self.stdout, self.stderr):
            os.close(fd)


def driven_workers() -> Iterator[Callable[..., DrivenWorker]]:
    """Yield what starts workers, of settings that are changed; end them."""
    made: list[DrivenWorker] = []

    def start(*, is_ready: bool = True, **changed: Any) -> DrivenWorker:
        made.append(DrivenWorker(**changed))
        if is_ready:
            made[-1].frame(protocol.READY)
        return made[-1]

    yield start
    for each in made:
        each.close()


WorkerMaker = Callable[..., DrivenWorker]


# ------------------------------------------------ how tasks have ended


def value_of(outcome: Any) -> Any:
    """Return what a task has returned."""
    assert isinstance(outcome, Returned), outcome
    return dict(outcome.writes)[RETURN]


def value(
    worker: DrivenWorker, function: Callable[..., Any], *args: Any, **of_job: Any
) -> Any:
    """Return what *worker* returns for a call."""
    (number,) = worker.order(job_of(function, *args, **of_job))
    return value_of(worker.end(number)[0])


def error_of(outcome: Any) -> BaseException:
    """Return what a task has raised."""
    assert isinstance(outcome, Raised), outcome
    return outcome.error
