"""The list of runs in a browser: by flow, sorted and filtered by the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver
from flowpregel.checkpoint.paused import PausedRuns
from flowpregel.graph import START, StateGraph
from tests.page.browser import NEEDS_CHROMIUM, Tab
from tests.page.serving import Served, served, wait_for_commands
from tests.page.status_flows import wait
from tests.page.stores import plain_store, shares, sums
from tests.page.waits import stopped_where_it_waits

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]

NAMES = "[...document.querySelectorAll('tbody a')].map(link => link.text)"
CHOSEN = "[...document.querySelectorAll('[aria-label=\"Chosen runs\"] button')]"
WAIT = "tests.page.status_flows:wait"
MANY = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a store with many runs of one flow, and one of two others."""
    store = plain_store(tmp_path_factory.mktemp("runs") / "store")
    with LMDBSaver(store) as saver:
        flow = sums.copy({"checkpointer": saver})
        for number in range(MANY):
            flow.run([1] * (number % 7), id=f"many-{number:02}")
    with served(store) as server:
        yield server


def open_list(tab: Tab, server: Served) -> None:
    """Open the list, and wait for it."""
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")


def test_each_flow_has_its_strip_and_its_newest_runs(tab: Tab, server: Served) -> None:
    open_list(tab, server)

    first = "document.querySelector('.flow')"
    assert 3 == tab.run("document.querySelectorAll('.flow').length")
    assert 20 == tab.run(f"{first}.querySelectorAll('.strip a').length")
    assert 8 == tab.run(f"{first}.querySelectorAll('tbody tr').length")
    assert "median" in tab.run(f"{first}.querySelector('.flow-head').innerText")
    row = tab.run("document.querySelector('tr[data-run=divides]').innerText")
    assert "[1, 0]" in row
    assert "ZeroDivisionError" in row
    assert "median" in tab.run(f"{first}.querySelector('.took').title")


def test_a_bar_of_the_strip_leads_to_its_run(tab: Tab, server: Served) -> None:
    open_list(tab, server)
    tab.hold(".strip .failed")

    tab.until("document.querySelector('#run-title').textContent === 'divides'")


def test_all_runs_of_a_flow_are_read_page_by_page(tab: Tab, server: Served) -> None:
    open_list(tab, server)
    tab.hold(".flow p a")
    tab.until("document.querySelectorAll('tbody tr').length === 50")
    assert "many-59" == tab.run(f"{NAMES}[0]")

    tab.hold("nav a.button")
    tab.until("document.querySelectorAll('tbody tr').length === 11")
    assert "adds" == tab.run(f"{NAMES}[10]")
    assert "page=1" in tab.run("location.hash")
    tab.run("history.back()")
    tab.until("document.querySelectorAll('tbody tr').length === 50")


def test_a_head_sorts_and_sorts_back_and_forth(tab: Tab, server: Served) -> None:
    open_list(tab, server)
    for expected, sort in (
        ("many-59", "descending"),
        ("adds", "ascending"),
        ("many-59", None),
    ):
        tab.hold("th[scope=col] button")
        tab.until(f"{NAMES}[0] === '{expected}'")
        head = "document.querySelector('th[scope=col]').getAttribute('aria-sort')"
        tab.until(f"{head} === {sort!r}".replace("None", "null"))
    tab.run("history.back()")
    tab.until(f"{NAMES}[0] === 'adds'")


def test_runs_with_most_failed_calls_come_first(tab: Tab, server: Served) -> None:
    open_list(tab, server)
    tab.hold("th[scope=col]:nth-child(3) button")
    tab.until(f"{NAMES}[0] === 'divides'")

    assert "sort=-failed" in tab.run("location.hash")


def test_dates_leave_out_what_changed_at_other_times(tab: Tab, server: Served) -> None:
    open_list(tab, server)
    tab.run(
        """{ const field = document.querySelector('input[type=date]');
        field.value = '2999-01-01'; field.dispatchEvent(new Event('change')); }"""
    )
    tab.until("document.querySelector('.empty')")
    assert "from=2999-01-01" in tab.run("location.hash")

    tab.run("history.back()")
    tab.until(f"{NAMES}.length > 3")
    assert "" == tab.run("document.querySelector('input[type=date]').value")


def test_runs_that_recorded_no_flow_have_a_group(tab: Tab, tmp_path: Path) -> None:
    graph = StateGraph(dict[str, int]).add_node("pass", dict).add_edge(START, "pass")
    with LMDBSaver(tmp_path) as saver:
        sums.copy({"checkpointer": saver}).run([1], id="named")
        program = graph.compile(checkpointer=saver)
        for number in range(9):
            program.invoke({"number": number}, thread_id=f"graph-{number}")
    with served(str(tmp_path)) as server:
        open_list(tab, server)
        tab.hold(".flow p a")
        tab.until(f"{NAMES}.length === 9")
        assert "graph-8" == tab.run(f"{NAMES}[0]")


def test_an_address_of_no_run_says_so(tab: Tab, server: Served) -> None:
    """The page said that it was reading the run, for good."""
    tab.open(f"{server.address}#/run/none/calls")
    tab.until("document.querySelector('.problem:not([hidden])')?.textContent")
    shown = tab.run("document.querySelector('main').innerText")
    tab.leave()
    tab.messages.clear()  # The browser writes that the answer was 404.

    assert "the store has no thread 'none'" in shown
    assert "Reading" not in shown


def test_failed_runs_are_tried_again_together(tab: Tab, tmp_path: Path) -> None:
    with LMDBSaver(tmp_path / "store") as saver:
        flow = shares.copy({"checkpointer": saver})
        for number in range(3):
            with pytest.raises(ZeroDivisionError):
                flow.run([0], id=f"fails-{number}")
        flow.run([1], id="fine")
    with served(str(tmp_path / "store"), actions=True) as server:
        open_list(tab, server)
        for thread in ("fails-0", "fails-2", "fine"):
            tab.hold(f"tr[data-run={thread}] input")
        buttons = (
            "[...document.querySelectorAll('[aria-label=\"Chosen runs\"] button')]"
        )
        assert ["Try again what failed (2)", "Choose none"] == tab.run(
            f"{buttons}.map(button => button.textContent)"
        )
        tab.hold('[aria-label="Chosen runs"] button')
        tab.until("!document.querySelector('[aria-label=\"Chosen runs\"]')")
        ended = "[...document.querySelectorAll('details .badge.failed')].length"
        tab.until(f"{ended} === 2")

        assert server.actions is not None
        commands = server.actions.commands()
        assert ["fails-2", "fails-0"] == [each["thread"] for each in commands]
        assert {"retry"} == {each["action"] for each in commands}
        assert not tab.run("document.querySelector('tbody input:checked')")


@pytest.mark.parametrize(
    ("pause", "words", "line"),
    [
        ({"flows": [WAIT]}, "Unpause their flow (2)", f"--flow={WAIT}"),
        ({"everything": True}, "Unpause all runs (2)", "--all"),
        ({"threads": ["a", "b"]}, "Unpause (2)", "unpause"),
    ],
)
def test_a_pause_of_chosen_runs_ends_whatever_is_paused(
    tab: Tab, tmp_path: Path, pause: dict[str, Any], words: str, line: str
) -> None:
    """The list shows a pause that begins while it is open."""
    with LMDBSaver(tmp_path / "store") as saver, served_list(tab, saver) as server:
        tab.hold("tr[data-run=a] input")
        tab.hold("tr[data-run=b] input")
        tab.until(f"{CHOSEN}.some(button => button.textContent === 'Pause (2)')")
        saver.pause(**{"threads": [], **pause})
        tab.until(f"{CHOSEN}.some(button => button.textContent === {words!r})")
        offered = tab.run(f"{CHOSEN}.map(button => button.textContent)")
        tab.run(f"{CHOSEN}.find(e => e.textContent === {words!r}).id = 'unpause'")
        tab.hold("#unpause")
        tab.until("!document.querySelector('[aria-label=\"Chosen runs\"]')")
        assert server.actions is not None
        wait_for_commands(server.actions)
        paused = saver.paused()
        commands = server.actions.commands()

    assert words in offered
    assert not any(text.startswith("Pause") for text in offered)
    assert PausedRuns() == paused
    assert all(line in command["line"] for command in commands)


@contextmanager
def served_list(tab: Tab, saver: LMDBSaver) -> Iterator[Served]:
    """Open the list of two runs that wait for a signal."""
    for thread in ("a", "b"):
        with stopped_where_it_waits():
            wait.copy({"checkpointer": saver}).run("paid", id=thread)
    with served(str(saver.path), actions=True) as server:
        open_list(tab, server)
        yield server


def test_without_actions_chosen_runs_can_only_be_compared(
    tab: Tab, server: Served
) -> None:
    open_list(tab, server)
    tab.hold("tbody tr:nth-child(1) input")
    tab.hold("tbody tr:nth-child(2) input")
    chosen = "[...document.querySelectorAll('[aria-label=\"Chosen runs\"] .button')]"
    tab.until(f"{chosen}.some(button => button.innerText === 'Compare')")

    assert ["Compare", "Choose none"] == tab.run(
        f"{chosen}.filter(e => e.offsetParent).map(e => e.innerText)"
    )
