"""The exits of `Context` channels when their runs have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from flowpregel._core.run import Result
from flowpregel._engine.nested import ActiveRun
from flowpregel._engine.tasks import RunExecutors
from flowpregel.channels.context import Context


@dataclass(frozen=True, slots=True)
class LeaveContexts:
    """A request to exit the `Context` channels of a run that has ended, in every
    process that entered them.
    """

    contexts: Sequence[Context[Any]]
    end: Result | BaseException | None
    """The result of the run, or the error with which it ended."""

    def perform(self, executors: RunExecutors) -> None:
        """Exit the contexts of the channels, in the processes of the *executors* and in
        this process.
        """
        error = self.end if isinstance(self.end, BaseException) else None
        tokens = [channel.held.token for channel in self.contexts]
        executors.leave_contexts(tokens, error)
        with ExitStack() as closing:
            for channel in self.contexts:
                closing.callback(channel.close, error)


def take_contexts(runs: Iterable[ActiveRun]) -> list[Context[Any]]:
    """Return the `Context` channels of *runs* that end, and let the runs forget
    them.
    """
    channels: list[Any] = []
    for run in runs:
        channels += run.channels.values()
        run.channels = {}
    return [channel for channel in channels if isinstance(channel, Context)]
