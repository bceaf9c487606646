"""The live output of a notebook cell whose last value is the handle of a run.

The OS thread of the run counts its tasks by their status. Another OS thread reads these
counts, and updates the cell's output until the run has ended::

    run ----> CellView <---- OS thread of the output ----> IPython's display

So a slow notebook does not slow the run down, and only one OS thread calls IPython.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from flowpregel.context import nothing
from flowpregel.pregel.progress import (
    MODES,
    NotebookProgress,
    ProgressView,
    is_notebook,
)

if TYPE_CHECKING:
    from flowpregel.pregel.runner import GraphRun

_PERIOD = 0.5
"""Seconds between two updates of the output of a cell."""


class DisplayedRun(Protocol):
    """A started run that a notebook displays: the methods of `RunHandle` that this
    needs.
    """

    id: str | None

    def _repr_html_(self) -> str | None:
        """Return the run's page as HTML, or None if there is none."""


class CellView(ProgressView):
    """A view of a started run in the outputs of a notebook's cells.

    Args:
        name: The name of the workflow.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, show=nothing)

    def display(self, handle: DisplayedRun, future: Future[Any]) -> None:
        """Add an output below the cell, and update it until the run has ended.

        Args:
            handle: The handle of the run that is shown.
            future: The future of the run's result.
        """
        ipython: Any = import_module("IPython.display")
        output = ipython.display(self._content(handle), display_id=True)
        threading.Thread(
            target=self._update,
            args=(output, handle, future),
            name=f"flowpregel-output-{handle.id}",
            daemon=True,
        ).start()

    def _update(
        self,
        output: Any,
        handle: DisplayedRun,
        future: Future[Any],
    ) -> None:
        """Update *output* until the run has ended, and then replace it by the run's
        page.
        """
        while not wait([future], _PERIOD).done:
            output.update(self._content(handle))
        output.update(self._content(handle))
        # If the program has already closed the store, the page cannot be made. Then the
        # error is ignored, and the output keeps showing the task counts.
        with suppress(Exception):
            page = handle._repr_html_()
            if page is not None:
                bundle = {"text/plain": repr(handle), "text/html": page}
                output.update(bundle, raw=True)

    def _content(self, handle: DisplayedRun) -> NotebookProgress:
        """Return the text that the cell's output shows: the run's present status and
        task counts.
        """
        lines = [repr(handle), *self.lines(time.monotonic())]
        return NotebookProgress(lines, self.shares())


def cell_view_of(run: GraphRun) -> CellView | None:
    """Return a view that counts the tasks of *run* from its beginning.

    The result is None outside of a notebook, and for a run that shows its progress
    (``progress=True``).

    Args:
        run: A run that has not begun.
    """
    if run.form.view is not None or not is_notebook():
        return None
    view = CellView(run.definition.name)
    run.form.view = view
    run.options = replace(run.options, modes=run.options.modes.union(MODES))
    return view
