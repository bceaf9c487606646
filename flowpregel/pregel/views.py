"""The choice of a run's live view, which depends on stderr and on whether rich is
installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from flowpregel.pregel.progress import ProgressView, is_notebook


def view_of(
    name: str,
    clock: Callable[[], float] = time.monotonic,
) -> ProgressView:
    """Return the view of a run: a `LiveView` on a terminal, or else a view that prints
    a line from time to time.

    Without rich, lines are printed on a terminal too, because a view that overwrites
    its lines would erase the printed output of the program.

    Args:
        name: The name of the graph.
        clock: A function that returns monotonic seconds.
    """
    if sys.stderr.isatty() and not is_notebook():
        try:
            # `live_view` is imported inside the function, because it needs rich, which
            # may not be installed.
            from flowpregel.pregel.live_view import LiveView  # noqa: PLC0415
        except ImportError:
            pass
        else:
            return LiveView(name, clock)
    return ProgressView(name, clock=clock)
