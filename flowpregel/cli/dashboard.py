"""The full-screen view of `flowpregel watch` on a terminal, which is controlled from
the keyboard.

One OS thread does everything, in turns of a fifth of a second::

    read the changes of the run ──► draw a picture ──► wait for a key ──┐
       ▲                                                                │
       └────────────────────────────────────────────────────────────────┘

When the run ends, the terminal shows again what it showed before, and a summary below
it, with the command for the next step.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live

from flowpregel._shell import with_options
from flowpregel._text import in_one_line
from flowpregel.cli import console
from flowpregel.cli.call_output import output_of_last_run
from flowpregel.cli.console import Code, print_note, rich_console
from flowpregel.cli.screens import (
    ScreenState,
    ViewName,
    count_lines,
    error_lines,
    screen_lines,
)
from flowpregel.cli.snapshots import RunSnapshot, RunWatcher
from flowpregel.cli.wording import SITUATION_STYLES, StyledText
from flowpregel.errors import StoreError

if TYPE_CHECKING:
    from flowpregel._inspection.reader import StoreReader
    from flowpregel.checkpoint.durable import DurableSaver

_PERIOD: Final = 0.2
"""Seconds between two pictures, unless a key is pressed."""
_OUTPUT_PERIOD: Final = 1.0
"""Seconds between two reads of the output of calls."""
_ESCAPE_SEQUENCE: Final = re.compile(rb"\x1b(?:[\[O][0-9;]*[A-Za-z~])?")
"""The bytes of an arrow or a function key, which the dashboard ignores."""
_VIEWS: Final[dict[str, ViewName]] = {"c": "calls", "e": "errors", "l": "logs"}
"""The view that each key selects."""


def can_draw() -> bool:
    """Return whether the dashboard can be drawn on stdout."""
    if console.has_flag("--json") or not sys.stdout.isatty():
        return False
    return not rich_console().is_dumb_terminal


class Dashboard:
    """The view of one run on a terminal.

    Args:
        saver: The open store.
        reader: The reader of the store.
        thread: The id of the run.
        store: The store to name in the command for the next step.
    """

    def __init__(
        self,
        saver: DurableSaver,
        reader: StoreReader,
        thread: str,
        store: str | None,
    ) -> None:
        self._saver = saver
        self._thread = thread
        self._store = store
        self._watcher = RunWatcher(reader, thread)
        self._state = ScreenState()
        self._answers: Mapping[str, Callable[[], None]] = {}
        """The actions that keys start while a question is open; empty if none is."""
        self._failed = 0
        """The number of calls that have failed so far."""
        self._must_retry = False
        """True if the failed calls are tried again once the run has stopped."""
        self._retry_process: subprocess.Popen[bytes] | None = None
        """The process that tries failed calls again, or None."""
        self._output: list[str] = []
        self._output_due = 0.0
        """The monotonic time of the next read of the output of calls."""

    def show(self) -> Code:
        """Show the run until it ends or the person leaves, and return the exit code."""
        snapshot = self._watcher.snapshot(time.time())
        leaves = False
        if snapshot.status == "running":
            snapshot, leaves = self._show_until_end(snapshot)
        self._print_summary(snapshot)
        if leaves:
            print_note(f"{in_one_line(self._thread)} is still running")
            return Code.STOPPED
        if self._state.retries and snapshot.text.command[:1] == ("retry",):
            return self._retry(snapshot)
        return console.code_of_status(snapshot.status)

    def _show_until_end(self, snapshot: RunSnapshot) -> tuple[RunSnapshot, bool]:
        """Draw the run until it ends.

        Returns:
            The last snapshot, and True if the person leaves before the end.
        """
        terminal = rich_console()
        with ExitStack() as resources:
            read_key = resources.enter_context(_keys())
            live = resources.enter_context(
                Live(console=terminal, screen=True, auto_refresh=False)
            )
            while self._is_under_way(snapshot):
                self._failed = sum(len(kind.ids) for kind in snapshot.errors)
                size = terminal.size
                lines = screen_lines(
                    snapshot,
                    self._state,
                    self._recent_output(size.height),
                    (size.width, size.height),
                )
                live.update(Group(*lines), refresh=True)
                if self._is_left_by(read_key(_PERIOD)):
                    return snapshot, True
                snapshot = self._watcher.snapshot(time.time())
        return snapshot, False

    def _is_under_way(self, snapshot: RunSnapshot) -> bool:
        """Return whether the run is running, or failed calls are tried again now."""
        if snapshot.status == "running":
            return True
        if self._must_retry:
            self._must_retry = False
            self._retry_process = subprocess.Popen(
                self._command("retry", self._thread, "--failed", "--quiet"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        process = self._retry_process
        return process is not None and process.poll() is None

    def _is_left_by(self, keys: str) -> bool:
        """Do what the pressed keys mean, and return whether one of them leaves the
        view.
        """
        for key in keys.lower():
            if self._answers:
                self._take_answer(key)
            elif key == "q":
                return True
            else:
                self._obey(key)
        return False

    def _take_answer(self, key: str) -> None:
        """Do what a key means as an answer to the question that the dashboard asks, and
        remove the question.
        """
        action = self._answers.get(key)
        self._answers = {}
        self._state = replace(self._state, message="")
        if action is not None:
            action()

    def _obey(self, key: str) -> None:
        """Do what a key means while no question is open."""
        match key:
            case "c" | "e" | "l":
                self._state = replace(self._state, view=_VIEWS[key], message="")
            case "r" if self._failed and not self._state.retries:
                self._ask_to_retry()
            case "r":
                self._toggle_retries()
            case "x":
                self._ask_to_cancel()

    def _toggle_retries(self) -> None:
        """Choose whether failed calls are tried again when the run ends."""
        self._state = replace(self._state, retries=not self._state.retries)

    def _ask_to_retry(self) -> None:
        """Ask the person whether to try the failed calls again now or when the run
        ends.
        """
        question = (
            f"try the failed calls again ({self._failed:,})? y now, which stops the "
            "run and resumes it, e when it ends, n to go back"
        )
        self._answers = {"y": self._retry_now, "e": self._toggle_retries}
        self._state = replace(self._state, message=question)

    def _retry_now(self) -> None:
        """Stop the run, so that its failed calls can be tried again."""
        self._cancel()
        self._must_retry = True
        message = "the run is being stopped, to try the failed calls again"
        self._state = replace(self._state, message=message)

    def _ask_to_cancel(self) -> None:
        """Ask the person whether to cancel the run."""
        question = "cancel the run? finished calls are kept: y to cancel, n to go back"
        self._answers = {"y": self._cancel}
        self._state = replace(self._state, message=question)

    def _cancel(self) -> None:
        """Ask the process of the run to stop it."""
        message = "the run is being cancelled"
        try:
            self._saver.cancel(self._thread)
        except StoreError as error:
            message = str(error)
        self._state = replace(self._state, message=message)

    def _recent_output(self, most: int) -> list[str]:
        """Return the last lines that calls have printed, if they are shown."""
        now = time.monotonic()
        if self._state.view == "logs" and now >= self._output_due:
            self._output_due = now + _OUTPUT_PERIOD
            self._output = list(_output_lines(self._saver, self._thread))[-most:]
        return self._output

    def _print_summary(self, snapshot: RunSnapshot) -> None:
        """Print how the run has ended, what its calls did, and the next step."""
        text = snapshot.text
        name = in_one_line(self._thread)
        parts: list[str | StyledText] = [
            StyledText(f"{name}: {text.sentence}", SITUATION_STYLES[text.situation])
        ]
        parts += [line.plain for line in count_lines(snapshot)]
        if snapshot.errors:
            parts += [line.plain for line in error_lines(snapshot)]
        if text.command:
            parts.append(f"{text.next_step}: {text.command_line(self._store)}")
        console.print_result(None, *parts)

    def _retry(self, snapshot: RunSnapshot) -> Code:
        """Try the failed calls again in a separate process, and return its exit
        code.
        """
        return Code(subprocess.call(self._command(*snapshot.text.command)))

    def _command(self, *words: str) -> list[str]:
        """Return the words of the command line for a command on the store in a separate
        process.
        """
        location = [] if self._store is None else ["--store", self._store]
        all_words = with_options(words, location)
        return [sys.executable, "-m", "flowpregel", *all_words]


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Open a context with a function that returns the pressed keys.

    The function waits at most the number of seconds that it gets as argument. Ctrl-C
    still interrupts the command.
    """
    if not sys.stdin.isatty():
        yield _no_keys
        return
    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)

    def read_keys(timeout: float) -> str:
        """Return the keys that are pressed within *timeout* seconds."""
        ready, _, _ = select.select([descriptor], [], [], timeout)
        if not ready:
            return ""
        data = os.read(descriptor, 64)
        if not data:
            # The terminal was closed, so `select` returns at once. This sleep keeps the
            # caller from calling it again and again.
            time.sleep(timeout)
        return _ESCAPE_SEQUENCE.sub(b"", data).decode(errors="ignore")

    try:
        tty.setcbreak(descriptor)
        yield read_keys
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)


def _no_keys(timeout: float) -> str:
    """Wait for *timeout* seconds, and return no keys."""
    time.sleep(timeout)
    return ""


def _output_lines(saver: DurableSaver, thread: str) -> Iterator[str]:
    """Yield the lines that the calls of a run have printed, each after the name of the
    call.
    """
    outputs = output_of_last_run(saver, thread, wait=True)
    for output in sorted(outputs, key=lambda output: output.began):
        for line in output.text.splitlines():
            yield f"[{output.name}] {line}"
