"""The desk: serves what tasks in workers ask of their run's store.

A store may wait for a disk or another process, so it is not asked by the OS
thread that reads the links, but by one of a few of the desk's own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from flowpregel._core.records import RETURN, Outcome, Raised, Returned
from flowpregel.executors.processes import frames, messages, serialization
from flowpregel.executors.processes.pool import Pool
from flowpregel.executors.processes.slot import Flight, Slot

_THREADS: Final = 4


class Desk:
    """Answers store requests.

    Args:
        pool: Whose workers ask.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._threads: ThreadPoolExecutor | None = None

    def serve(self, slot: Slot, flight: Flight, body: bytes) -> None:
        """Answer a request as soon as an OS thread is free."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "flowpregel-store")
        self._threads.submit(self._serve, slot, flight, body)

    def _serve(self, slot: Slot, flight: Flight, body: bytes) -> None:
        request = int.from_bytes(body[:4], "little")
        try:
            method, args, kwargs = serialization.unpack(body[4:])
            if method.startswith("_"):
                raise AttributeError(method)  # noqa: TRY301 - told to the caller like any other
            value = getattr(flight.job.store, method)(*args, **kwargs)
            outcome: Outcome = Returned(((RETURN, value),))
        except Exception as error:  # noqa: BLE001 - the caller's to see
            outcome = Raised(error)
        answer = messages.pack_outcome(outcome, flight.job.info.name, None)
        if flight.slot is slot:
            self._pool.send(slot, frames.STORED, request, answer)

    def close(self) -> None:
        """Let the OS threads go."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
