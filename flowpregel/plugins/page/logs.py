"""The answers to the page's queries about the output of all calls of a run."""

from __future__ import annotations

from typing import Any, TypeAlias

from flowpregel.checkpoint.durable import DurableSaver
from flowpregel.plugins.page.values import ValueFile
from flowpregel.watching import OutputLine, StoreReader, output_lines, output_page

Json: TypeAlias = Any
"""A value that `json.dumps` accepts."""


class LogPages:
    """The answers to the page's queries about what calls have printed and logged.

    Args:
        saver: The saver of the open store.
        reader: The reader of the store.
    """

    def __init__(self, saver: DurableSaver, reader: StoreReader) -> None:
        self._saver = saver
        self._reader = reader
        self._known: tuple[tuple[str, int], list[OutputLine]] | None = None
        """The lines of the run that was read last, with its thread and the store's mark
        (a number that each commit changes) at that time.
        """

    def output(
        self,
        thread: str,
        text: str = "",
        level: str = "",
        end: int | str | None = None,
        most: int | str = 500,
    ) -> Json:
        """Return the last *most* of the selected lines of a run's output.

        The parameters are those of `output_page`.
        """
        page = output_page(
            self._lines(thread),
            text=text,
            level=level,
            end=None if end is None else int(end),
            most=int(most),
        )
        return page._asdict()

    def file(self, thread: str) -> ValueFile:
        """Return all lines of a run's output as a text file."""
        lines = [f"{line.name}: {line.text}\n" for line in self._lines(thread)]
        return ValueFile("output.txt", "text/plain", "".join(lines))

    def _lines(self, thread: str) -> list[OutputLine]:
        """Return all lines that the calls of a thread's last run have printed and
        logged.
        """
        state = (thread, self._reader.mark())
        if self._known is not None and self._known[0] == state:
            return self._known[1]
        beginning = self._reader.beginning(thread)
        began = 0 if beginning is None else beginning.at
        outputs = [
            output
            for address in self._saver.namespaces(thread)
            for output in self._saver.kept_output(address)
            if output.began >= began
        ]
        outputs.sort(key=lambda output: output.began)
        lines = list(output_lines(outputs))
        self._known = state, lines
        return lines
