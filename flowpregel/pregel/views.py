"""The choice of a run's live view, by the kind of stderr and whether rich is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from flowpregel.pregel.progress import ProgressView, is_notebook


def view_of(
    name: str,
    clock: Callable[[], float] = time.monotonic,
) -> ProgressView:
    """Return the view of a run: drawn on a terminal, or a line from time to time.

    Without rich a terminal gets lines too: an overwriting view would erase the printed
    output of the program.

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
