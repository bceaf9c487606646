"""The live views of all runs on a terminal, below the program's printed output.

rich's `Live` captures the program's output and prints it above the views, which are
drawn again below. A terminal can have only one such display, so concurrent runs share
it::

    a run ----> LiveView --+
    a run ----> LiveView --+--> TerminalScreen ----> Live ----> stderr
    print() ---------------------------------------> FileProxy --+

This module needs rich, which the extra ``cli`` installs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowpregel._engine.drivers import Item
from flowpregel._interrupts import defer_interrupts
from flowpregel._text import printable
from flowpregel.pregel.progress import ProgressView

_PERIOD = 0.2
"""Seconds between two drawings of the views if the program prints nothing."""


class SteadyConsole(Console):
    """A console that lets only one OS thread draw at a time.

    rich computes the number of lines to move up when it renders, and writes later. If
    two OS threads drew pictures of different heights, a part of one picture would stay
    on the terminal.
    """

    def __init__(self) -> None:
        super().__init__(
            stderr=True,
            markup=False,
            highlight=False,
            emoji=False,
        )
        self._drawing = threading.RLock()

    def __enter__(self) -> Self:
        self._drawing.acquire()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self._drawing.release()


class TerminalScreen:
    """The views that are shown on stderr, one below the other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._views: list[LiveView] = []
        self._display: Live | None = None
        """The display of the views, or None if there are no views."""

    @property
    def console(self) -> Console | None:
        """The console that prints above the views, or None if there are no views."""
        return None if self._display is None else self._display.console

    def add(self, view: LiveView) -> None:
        """Show *view* below the other views."""
        with defer_interrupts(), self._lock:
            self._views.append(view)
            if self._display is None:
                self._display = self._start()

    def remove(self, view: LiveView) -> None:
        """Stop drawing *view*, and leave its last picture on the terminal."""
        with defer_interrupts(), self._lock:
            if view not in self._views or self._display is None:
                return
            with self._display.console as console:
                if self._views == [view]:
                    self._display.stop()  # This draws the view a last time.
                    self._display = None
                    self._views.clear()
                else:
                    self._views.remove(view)
                    console.print(_lines_for_rich([view]))

    def _start(self) -> Live:
        """Return a new display, which is drawn at once and then repeatedly by a new OS
        thread.
        """
        display = Live(
            console=SteadyConsole(),
            get_renderable=lambda: _lines_for_rich([*self._views]),
            # rich must not refresh the view on its own OS thread. That OS thread
            # acquires rich's locks in another order than the other OS threads do, so it
            # could deadlock with them.
            auto_refresh=False,
            # Output is redirected only if it goes to the terminal: output that goes to
            # a file or a pipe must not be shown there.
            redirect_stdout=sys.stdout.isatty(),
        )
        with display.console:
            display.start(refresh=True)
        threading.Thread(
            target=self._refresh,
            args=(display,),
            name="flowpregel-screen",
            daemon=True,
        ).start()
        return display

    def _refresh(self, display: Live) -> None:
        """Draw a display repeatedly until it is stopped."""
        while True:
            time.sleep(_PERIOD)
            with display.console:
                if not display.is_started:
                    return
                display.refresh()


SCREEN = TerminalScreen()


class LiveView(ProgressView):
    """The view of a run on the terminal, from its first event until it is closed.

    Args:
        name: The name of the graph.
        clock: A function that returns monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, clock=clock)
        # `TerminalScreen` draws this view, so the function that shows the view's lines
        # does nothing.
        self._show = lambda _: None
        self._is_shown = False

    def see(self, item: Item) -> None:
        """Process an event of the run's stream."""
        if not self._is_shown:
            self._is_shown = True
            SCREEN.add(self)
        super().see(item)

    def close(self) -> None:
        """Draw the view a last time, and remove it from the screen."""
        SCREEN.remove(self)

    def current_lines(self) -> list[str]:
        """Return the lines of the view at the present time."""
        return self.lines(self._clock())


def _lines_for_rich(views: list[LiveView]) -> Text:
    """Return the lines of *views* as a `Text` of rich, in which long lines are
    truncated.
    """
    lines = [line for view in views for line in view.current_lines()]
    return Text(printable("\n".join(lines)), no_wrap=True, overflow="ellipsis")
