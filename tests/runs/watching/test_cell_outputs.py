"""The handle of a run as the last value of a notebook's cell."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel import InMemorySaver, entrypoint, task
from flowpregel.checkpoint.lmdb import LMDBSaver

LONGEST = 60
"""The seconds after which a test that waits for an output has failed."""
CELL = """
import threading
from flowpregel import entrypoint, task

go = threading.Event()

@task(executor="inline")
def work(n):
    go.wait(60)
    return n

@entrypoint()
def study(numbers):
    return sum(work(n).result() for n in numbers)

handle = study.start([1, 2])
handle
"""


class Screen:
    """Stands for a notebook's display: keeps what it was given, in order."""

    def __init__(self) -> None:
        self.shown: SimpleQueue[Any] = SimpleQueue()

    def display(self, item: Any, *, display_id: bool) -> Screen:
        """Show an output that can be updated."""
        assert display_id
        self.shown.put(repr(item))
        return self

    def update(self, item: Any, *, raw: bool = False) -> None:
        """Show something else in its place."""
        self.shown.put(item if raw else repr(item))

    def next(self, matches: Callable[[Any], bool]) -> Any:
        """Return the next output that matches."""
        while not matches(item := self.shown.get(timeout=LONGEST)):
            pass
        return item


class ZMQInteractiveShell:
    """A shell with the name that a notebook's has."""


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Return the display of a notebook in which the test runs."""
    screen = Screen()
    parts = SimpleNamespace(display=screen.display)
    notebook = SimpleNamespace(get_ipython=ZMQInteractiveShell, display=parts)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", parts)
    return screen


def waiting_flow(go: threading.Event, saver: Any = None) -> Any:
    """Return a workflow whose second call waits for *go*, and whose third one fails."""

    @task(executor="inline")
    def work(n: int) -> int:
        if n == 1:
            go.wait(LONGEST)
        return 1 // (2 - n)

    @entrypoint(checkpointer=saver)
    def study(numbers: list[int]) -> int:
        return sum(work(n).exception() is None for n in numbers)

    return study


def test_the_output_is_updated_until_the_run_has_ended(screen: Screen) -> None:
    go = threading.Event()
    handle = waiting_flow(go).start([0, 1, 2])

    handle._ipython_display_()
    first = screen.next(lambda shown: "work: 1 done, 1 to do" in shown)
    (thread,) = output_threads(handle)
    go.set()
    last = screen.next(lambda shown: "study, done>" in shown)

    assert first.startswith("<run")
    assert "of study, running>" in first
    assert "work: 2 done, 1 failed" in last
    thread.join(LONGEST)
    assert not output_threads(handle)
    assert screen.shown.empty()


def output_threads(handle: Any) -> list[threading.Thread]:
    """Return the OS threads that update outputs of *handle*."""
    name = f"flowpregel-output-{handle.id}"
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_the_page_of_a_stored_run_takes_the_place_of_the_counts(
    screen: Screen, tmp_path: Path
) -> None:
    go = threading.Event()
    with LMDBSaver(tmp_path / "store") as saver:
        handle = waiting_flow(go, saver).start([1], id="paged")
        handle._ipython_display_()
        go.set()
        bundle = screen.next(lambda shown: isinstance(shown, dict))

    assert "<run 'paged' of study, done>" == bundle["text/plain"]
    assert bundle["text/html"].startswith("<iframe ")


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_recorded_results_are_counted(screen: Screen, tmp_path: Path) -> None:
    """Although they are no events of the handle."""
    go = threading.Event()
    go.set()
    with LMDBSaver(tmp_path / "store") as saver:
        flow = waiting_flow(go, saver)
        flow.run([0, 1], id="twice")
        go.clear()
        handle = flow.start([0, 1, 3, 1], id="twice", adopt=True)
        handle._ipython_display_()
        shown = screen.next(lambda shown: "work: 3 done, 2 of them before" in shown)
        go.set()
        events = [mode for mode, _ in handle]
        handle.result()

    assert "<run 'twice' of study, running>" in shown
    assert {"tasks", "updates"} == {*events}


def test_a_run_that_has_ended_is_shown_as_html(screen: Screen) -> None:
    """IPython takes the next method if this one is not implemented."""
    go = threading.Event()
    go.set()
    handle = waiting_flow(go).start([1])
    handle.result()

    with pytest.raises(NotImplementedError):
        handle._ipython_display_()


def test_a_handle_outside_of_a_notebook_has_a_plain_repr() -> None:
    go = threading.Event()
    handle = waiting_flow(go, InMemorySaver()).start([1], id="plain")

    with pytest.raises(NotImplementedError):
        handle._ipython_display_()
    assert "<run 'plain' of study, running>" == repr(handle)
    go.set()
    handle.result()
    assert "<run 'plain' of study, done>" == repr(handle)


@pytest.fixture
def kernel() -> Iterator[Any]:
    """Yield a client of a real kernel."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    manager = pytest.importorskip("jupyter_client.manager")
    process, client = manager.start_new_kernel(kernel_name="python3")
    try:
        yield client
    finally:
        client.stop_channels()
        process.shutdown_kernel(now=True)


@pytest.mark.slow
def test_the_output_is_updated_in_a_real_kernel(kernel: Any) -> None:
    """Below the cell that has ended already."""
    kernel.execute(CELL)
    first = next_output(kernel, "display_data", "of study, running>")
    next_output(kernel, "update_display_data", "work: 0 done, 1 to do")
    kernel.execute("go.set()")
    last = next_output(kernel, "update_display_data", "study, done>")

    assert "work: 2 done" in last["data"]["text/plain"]
    assert "<progress " in last["data"]["text/html"]
    assert first["transient"]["display_id"] == last["transient"]["display_id"]


def next_output(kernel: Any, kind: str, text: str) -> Any:
    """Return the content of the kernel's next output of a *kind* that has *text*."""
    while True:
        message = kernel.get_iopub_msg(timeout=LONGEST)
        content = message["content"]
        assert message["msg_type"] != "error", content["traceback"]
        is_kind = message["msg_type"] == kind
        if is_kind and text in content["data"]["text/plain"]:
            return content
