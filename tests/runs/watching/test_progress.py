"""The live view: what it counts, where it writes, and that nobody else notices it."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import flowpregel
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.executors.processes.coordinator.executor import worker_memory
from flowpregel.func import entrypoint, task
from flowpregel.pregel.progress import ProgressView, workers_text
from flowpregel.types import interrupt
from tests.runs.crashes import Once


def flow_of(executor: str, **options: Any) -> Any:
    crash = Once(OSError("crash"))

    @task
    def work(n: int) -> int:
        if n == 3:
            raise LookupError(n)
        return n

    @entrypoint(executor=executor, checkpointer=InMemorySaver())
    def flow(n: int) -> int:
        total = 0
        for future in work.map(range(n)):
            try:
                total += future.result()
            except LookupError:
                continue
        if options.get("crashes"):
            crash()
        return total

    return flow


def test_a_run_shows_what_became_of_its_tasks(
    drive: Any, executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name, on stderr; the result is what it is without."""
    assert 7 == drive.invoke(flow_of(executor), 5, thread_id="1", progress=True)

    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("flow: ")
    assert "work: 4 done, 1 failed" in last
    assert "to do" not in last


@pytest.mark.parametrize("is_asked", [True, False])
def test_flow_run_shows_it_if_asked_to(
    is_asked: bool, executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 7 == flow_of(executor).run(5, progress=is_asked)

    assert is_asked == ("work: 4 done, 1 failed" in capsys.readouterr().err)


def test_what_was_done_before_is_told(
    drive: Any, executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that goes on shows how much it need not do."""
    flow = flow_of(executor, crashes=True)
    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow, 3, thread_id="1", progress=True)
    capsys.readouterr()

    assert 3 == drive.invoke(flow, None, thread_id="1", progress=True)
    assert "work: 3 done, 3 of them before" in capsys.readouterr().err.splitlines()[-1]


def test_every_run_of_a_block_can_be_shown(
    drive: Any, executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``progress()`` stands for the keyword, which may say no."""
    flow = flow_of(executor)
    with flowpregel.progress():
        drive.invoke(flow, 2, thread_id="1")
        drive.invoke(flow, 2, thread_id="2", progress=False)
    drive.invoke(flow, 2, thread_id="3")

    assert 1 == len(capsys.readouterr().err.splitlines())


def test_a_stream_yields_what_it_yields_without_the_view(
    drive: Any, executor: str
) -> None:
    """The events that the view reads are not the reader's."""
    flow = flow_of(executor)

    with_view = drive.stream(
        flow, 2, thread_id="1", progress=True, stream_mode="values"
    )

    assert drive.stream(flow, 2, thread_id="2", stream_mode="values") == with_view


def test_questions_are_counted(drive: Any, executor: str, capsys: Any) -> None:
    """A task that waits for a person is neither done nor to do."""

    @task
    def ask(n: int) -> Any:
        return interrupt(n)

    @entrypoint(executor=executor, checkpointer=InMemorySaver())
    def flow(n: int) -> Any:
        return [future.result() for future in ask.map(range(n))]

    drive.invoke(flow, 2, thread_id="1", progress=True)

    assert (
        "ask: 0 done, 2 waiting for an answer"
        in capsys.readouterr().err.splitlines()[-1]
    )


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def started(name: str) -> Any:
    return (), "tasks", {"name": name, "id": "1", "input": None}


def ended(name: str) -> Any:
    return (
        (),
        "tasks",
        {"name": name, "id": "1", "result": {}, "error": None, "interrupts": []},
    )


def test_a_terminal_is_written_over() -> None:
    """Each picture begins where the one before began."""
    now = [0.0]
    out = Terminal()
    view = ProgressView("flow", out, lambda: now[0], str)
    for event in (started("work"), started("work"), ended("work")):
        now[0] += 1
        view.see(event)
    view.close()

    pictures = out.getvalue().split("\x1b[2F\x1b[J")
    assert "flow: 1.0 s\n  work: 0 done, 1 to do\n" == pictures[0]
    assert "flow: 3.0 s\n  work: 1 done, 1 to do, 0.3/s\n" == pictures[2]
    assert 4 == len(pictures)


def test_a_view_estimates_the_time_left_once_some_calls_have_ended() -> None:
    """Before the third end too little is known."""
    now = [0.0]
    view = ProgressView("flow", io.StringIO(), lambda: now[0], str)
    for _ in range(10):
        view.see(started("work"))
    lines: list[str] = []
    for _ in range(3):
        now[0] += 2
        view.see(ended("work"))
        lines.append(view.lines(now[0])[-1])

    assert [
        "  work: 1 done, 9 to do, 0.5/s",
        "  work: 2 done, 8 to do, 0.5/s",
        "  work: 3 done, 7 to do, 0.5/s, about 14 s left",
    ] == lines


def test_a_terminal_shows_the_first_event_at_once() -> None:
    """A task that takes long has begun: nobody wonders whether anything goes on."""
    out = Terminal()
    view = ProgressView("flow", out, lambda: 5.0, str)
    view.see(started("work"))

    assert "flow: 0.0 s\n  work: 0 done, 1 to do\n" == out.getvalue()


def test_a_file_gets_a_line_from_time_to_time() -> None:
    """Two seconds apart, and one at the end."""
    now = [0.0]
    out = io.StringIO()
    view = ProgressView("flow", out, lambda: now[0])
    for _ in range(50):
        now[0] += 0.1
        view.see(started("work"))
    view.close()

    assert 3 == len(out.getvalue().splitlines())


def test_the_memory_of_the_workers_is_shown() -> None:
    """Beside the time, where there are any."""
    out = Terminal()

    ProgressView("flow", out, lambda: 1.0, lambda: "2 workers with 90 MB").close()

    assert out.getvalue().startswith("flow: 0.0 s, 2 workers with 90 MB\n")


def test_workers_are_counted_with_their_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of every pool of the program."""
    flow_of("processes").invoke(2, thread_id="1", progress=True)
    count, size = worker_memory()

    assert count > 0
    assert size > 1_000_000 * count
    assert " MB" in capsys.readouterr().err.splitlines()[-1]
    assert workers_text().startswith(f"{count} worker")


class Display:
    """Stands for a notebook's display: keeps what it was given."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def display(self, item: Any, *, display_id: bool) -> Display:
        """Show an output that can be updated."""
        assert display_id
        self.shown.append(item)
        return self

    def update(self, item: Any) -> None:
        """Show something else in its place."""
        self.shown.append(item)


class ZMQInteractiveShell:
    """A shell with the name that a notebook's has."""


def test_a_notebook_has_one_output_that_is_updated(
    drive: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing goes to stderr."""
    screen = Display()
    parts = SimpleNamespace(display=screen.display)
    notebook = SimpleNamespace(get_ipython=ZMQInteractiveShell, display=parts)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", parts)

    assert 7 == drive.invoke(flow_of("inline"), 5, thread_id="1", progress=True)

    first, *_, last = screen.shown
    assert "" == repr(first)
    assert "work: 4 done, 1 failed" in repr(last)
    assert "work: 4 done, 1 failed" in last._repr_html_()
    assert '<td>work</td><td><progress value="5" max="5">' in last._repr_html_()
    assert "" == capsys.readouterr().err
