"""The progress of a run on stderr: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self

from rich.live import Live
from rich.text import Text

from flowpregel._engine.drivers import Item
from flowpregel._text import printable
from flowpregel.cli.console import rich_console
from flowpregel.pregel.progress import MODES, ProgressView
from flowpregel.watching.preview import one_line

__all__ = ["MODES", "RunView"]


class RunView(ProgressView):
    """Shows the view of a run in its place, or where stderr is no terminal a line now and then.

    Each failed task and each custom chunk gets a line of its own.

    Args:
        name: The name of the flow.
        clock: Returns seconds that only grow.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name, clock=clock)
        self._console = rich_console(stderr=True)
        self._live = Live(console=self._console, get_renderable=self._text, refresh_per_second=5)
        if sys.stderr.isatty():
            self._show = lambda _: None  # rich draws, from an OS thread of its own

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self.close()

    def see(self, item: Item) -> None:
        """Take in an event of the run's stream."""
        _, mode, payload = item
        if mode == "custom":
            self._console.print(f"  {one_line(payload)}")
        elif mode == "tasks" and (error := payload.get("error")) is not None:
            text = one_line(f"{type(error).__name__}: {error}")
            self._console.print(f"  {printable(payload['name'])} failed: {text}", style="red")
        super().see(item)

    def _text(self) -> Text:
        return Text(printable("\n".join(self.lines(self._clock()))))
