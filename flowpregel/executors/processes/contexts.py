"""The `Context` channels of runs in a worker: entered once a run, left when it ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from flowpregel._core.records import Raised
from flowpregel.channels.context import Context, contexts_in
from flowpregel.executors.processes import messages, serialization

_log: Final = logging.getLogger("flowpregel.worker")


class Contexts:
    """Keeps what tasks of this worker have entered, until their run has ended."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Context[Any]] = {}

    def keep(self, given: Any) -> None:
        """Keep the contexts that a task was given: the run's next task finds them entered."""
        for channel in contexts_in(given):
            self._kept.setdefault(channel.held.token, channel)

    def leave(self, order: bytes) -> None:
        """Do what `pack_leave` has asked for."""
        tokens, ended = serialization.unpack(order)
        outcome = None if ended is None else messages.unpack_outcome(ended, "of the run", None)
        self._leave(tokens, outcome.error if isinstance(outcome, Raised) else None)

    def leave_all(self) -> None:
        """Leave everything, since the worker ends."""
        self._leave(tuple(self._kept), None)

    def _leave(self, tokens: Sequence[bytes], error: BaseException | None) -> None:
        for token in tokens:
            channel = self._kept.pop(token, None)
            try:
                if channel is not None:
                    channel.close(error)
            except Exception:  # noqa: BLE001 - the run has ended; nobody waits for this
                _log.exception("a Context channel could not be left")


def pack_leave(tokens: Sequence[bytes], error: BaseException | None) -> bytes:
    """Return the order to leave the contexts of a run that ended with *error*, or well."""
    ended = None if error is None else messages.pack_outcome(Raised(error), "(the run)", None)
    return serialization.pack((tuple(tokens), ended)).data
