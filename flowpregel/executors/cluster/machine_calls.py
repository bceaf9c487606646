"""The coordinator's requests to machines. Each answer is also a sign of life."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from flowpregel.context import nothing
from flowpregel.executors.cluster.coordinator_client import LONGEST_POLL
from flowpregel.executors.cluster.engine import ClusterEngine
from flowpregel.executors.cluster.engine_watch import CHECK_EVERY, AwakeClock
from flowpregel.executors.cluster.remote_hosts import RemoteHost
from flowpregel.executors.processes.coordinator.io_loop import IOLoop


class MachineCalls:
    """The requests of one coordinator to machines, whose answers are processed on the
    coordinator's I/O thread.

    Args:
        engine: The engine that carries calls and answers.
        loop: The loop of the I/O thread.
        clock: The clock that measures how long machines have not answered.
    """

    def __init__(
        self,
        engine: ClusterEngine,
        loop: IOLoop,
        clock: AwakeClock,
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._clock = clock

    def ask(
        self,
        callback: Callable[[Future[Any]], object],
        method: Callable[..., Future[Any]],
        *args: Any,
    ) -> Future[Any]:
        """Call a method of `ClusterEngine`, and return the future that it returns.

        If the method raises an error, a future with this error is returned.

        Args:
            callback: A function that is called with the future on the I/O thread when
                the future is done.
            method: The method of the engine.
            args: The arguments of the method.
        """
        try:
            future = method(*args)
        except Exception as error:  # noqa: BLE001 - any error: the engine is not there
            future = Future()
            future.set_exception(error)
        future.add_done_callback(
            lambda done: self._loop.call(partial(callback, done)),
        )
        return future

    def send_commands(self, host: RemoteHost) -> None:
        """Send the pending commands to a machine that gets no tasks, for example to
        release slots. The machine may not understand them, so the answer is ignored.
        """
        commands = host.take_commands()
        if not commands:
            return
        arguments = (0, 0, False, 0)
        host.poll = self.ask(
            nothing,
            self._engine.call,
            host.address,
            "poll",
            commands,
            *arguments,
        )

    # ------------------------------------------------ signs of life

    def beat(self, host: RemoteHost) -> None:
        """Request a sign of life from *host*, if its last answer was a while ago.

        This is needed when a long answer to a poll takes time on a slow network.
        """
        silence = self._clock.now - host.last_seen
        if silence >= LONGEST_POLL and host.is_open and host.batches:
            callback = partial(self._on_beat, host)
            self.ask(callback, self._engine.call, host.address, "beat")

    def _on_beat(
        self,
        host: RemoteHost,
        sign: Future[Any],
    ) -> None:
        has_failed = sign.cancelled() or sign.exception() is not None
        if not has_failed and not host.is_silent:
            self.note_answer(host)

    def note_answer(self, host: RemoteHost) -> None:
        """Record the time at which *host* has answered."""
        host.last_seen = self._clock.now
        host.is_silent = False

    # ------------------------------------------------ turns of polls

    def allow_poll_later(
        self,
        host: RemoteHost,
        poll: Future[Any],
        commands: Sequence[Any],
    ) -> None:
        """Call `allow_poll` with the same arguments after a short time."""
        callback = partial(self.allow_poll, host, poll, commands)
        self._loop.call_at(time.monotonic() + CHECK_EVERY, callback)

    def allow_poll(
        self,
        host: RemoteHost,
        poll: Future[Any],
        commands: Sequence[Any],
    ) -> None:
        """Allow the next poll (request for frames) of *host*, in the next turn of the
        loop.

        Args:
            host: The machine that was polled.
            poll: The poll that was answered, or has failed.
            commands: The commands that were sent with the poll, if the machine may have
                missed them. They are sent again.
        """
        host.commands.extend(commands)
        if host.poll is poll:
            host.poll = None
