"""The terminal on which runs show their progress: the views of all of them, below what
is printed.

rich's `Live` takes what the program prints, and puts it above the views, which are
drawn again below. There is one such display for a terminal, so runs side by side share
it::

    a run ----> LiveView --+
    a run ----> LiveView --+--> TerminalScreen ----> Live ----> stderr
    print() ---------------------------------------> FileProxy --+

Only imported where rich is installed: it comes with the extra ``cli``.
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
from flowpregel._interrupts import held
from flowpregel._text import printable
from flowpregel.pregel.progress import ProgressView

_PERIOD = 0.2
"""Seconds between two drawings, of which none is asked for by a line that is
printed.
"""


class SteadyConsole(Console):
    """A console that draws one picture after the other, whichever OS threads print.

    rich computes how many lines to go back when it renders, and writes later: two
    threads whose pictures differ in height would leave a part of one of them behind.
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
        """None: there are no views."""

    @property
    def console(self) -> Console | None:
        """The console that prints above the views; None: there are none."""
        return None if self._display is None else self._display.console

    def add(self, view: LiveView) -> None:
        """Show *view* below those that are there."""
        with held(), self._lock:
            self._views.append(view)
            if self._display is None:
                self._display = self._start()

    def remove(self, view: LiveView) -> None:
        """Leave the last picture of *view* where it is, and draw it no more."""
        with held(), self._lock:
            if view not in self._views or self._display is None:
                return
            with self._display.console as console:
                if self._views == [view]:
                    self._display.stop()  # it draws a last time, and leaves that
                    self._display = None
                    self._views.clear()
                else:
                    self._views.remove(view)
                    console.print(_lines_for_rich([view]))

    def _start(self) -> Live:
        """Return a display that is drawn now, and from now on by an OS thread of its
        own.
        """
        display = Live(
            console=SteadyConsole(),
            get_renderable=lambda: _lines_for_rich([*self._views]),
            auto_refresh=False,  # rich's own thread takes its locks in another order
            # What is printed into a file, or a pipe, stays there.
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
        """Draw a display again and again, until it is stopped."""
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
        clock: Returns seconds that only grow.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, clock=clock)
        self._show = lambda _: None  # the screen draws it
        self._is_shown = False

    def see(self, item: Item) -> None:
        """Take in an event of the run's stream."""
        if not self._is_shown:
            self._is_shown = True
            SCREEN.add(self)
        super().see(item)

    def close(self) -> None:
        """Show how the run ended."""
        SCREEN.remove(self)

    def current_lines(self) -> list[str]:
        """Return the present lines."""
        return self.lines(self._clock())


def _lines_for_rich(views: list[LiveView]) -> Text:
    """Return the lines of *views* for rich, which cuts what is too long."""
    lines = [line for view in views for line in view.current_lines()]
    return Text(printable("\n".join(lines)), no_wrap=True, overflow="ellipsis")
