"""The choice of a run's live view: by what stderr is, and whether rich is installed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from flowpregel.pregel.progress import ProgressView, is_notebook


def view_of(name: str, clock: Callable[[], float] = time.monotonic) -> ProgressView:
    """Return the view of a run: drawn on a terminal, otherwise a line from time to
    time.

    A terminal gets lines too where rich is not installed: to write over what is there
    would erase what the program has printed.

    Args:
        name: The name of the graph.
        clock: Returns seconds that only grow.
    """
    if sys.stderr.isatty() and not is_notebook():
        try:
            from flowpregel.pregel.live_view import LiveView  # noqa: PLC0415 - needs rich
        except ImportError:
            pass
        else:
            return LiveView(name, clock)
    return ProgressView(name, clock=clock)
