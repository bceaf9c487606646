"""The page answers which parameters fail, and why a run takes long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowpregel import LMDBSaver, entrypoint
from flowpregel._inspection.inert import InertCodec
from flowpregel.plugins.page.pages import run_report
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import Served, served, wait_for_commands
from tests.page.stores import chatter
from tests.runs.sweep_flow import sweep

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
KINDS = "[...document.querySelectorAll('.kinds li')].map(e => e.innerText)"
SENTENCE = "document.querySelector('.sentence').textContent"


@pytest.fixture
def swept(tmp_path: Path) -> Iterator[Served]:
    """The page of a sweep of which eleven calls failed."""
    with LMDBSaver(tmp_path / "store") as saver:
        flow = sweep.copy({"checkpointer": saver})
        assert 49 == flow.run(60, str(tmp_path / "flag"), id="s")
    with served(str(tmp_path / "store"), actions=True) as server:
        yield server


def test_errors_are_grouped_with_the_parameters_that_only_they_have(
    tab: Tab, swept: Served
) -> None:
    open_run(tab, swept, "s")
    tab.until("document.querySelectorAll('.kinds li').length === 2")

    first, second = tab.run(KINDS)
    assert "10" == first.split()[0]
    assert "FloatingPointError loss is nan at epoch #" in first
    assert "only where lr = 0.1 and depth = 12" in first
    assert "1" == second.split()[0]
    assert "MemoryError could not allocate 12 GiB" in second
    assert "only where" not in second


def test_one_kind_is_tried_again(tab: Tab, swept: Served, tmp_path: Path) -> None:
    open_run(tab, swept, "s")
    tab.until("document.querySelectorAll('.kinds li').length === 2")
    (tmp_path / "flag").touch()

    tab.hold(".kinds .button")
    tab.until(f"{SENTENCE} === 'Done, but 1 call failed.'")

    tab.until("document.querySelectorAll('.kinds li').length === 1")
    assert "MemoryError" in tab.run(KINDS)[0]
    assert swept.actions is not None
    wait_for_commands(swept.actions, "s")
    assert "--error=FloatingPointError" in swept.actions.commands("s")[0]["line"]


def test_a_kind_leads_to_its_calls_and_a_traceback_without_our_frames(
    tab: Tab, swept: Served
) -> None:
    open_run(tab, swept, "s")
    tab.hold(".kinds a")
    tab.until("document.querySelectorAll('.window .row').length === 10")
    tab.hold(".window .row a")
    tab.until("document.querySelector('.panel .attempt pre')")

    shown = tab.run("document.querySelector('.panel .attempt pre').innerText")
    assert shown.startswith("Traceback (most recent call last):\n")
    assert "sweep_flow.py" in shown
    assert "During task" not in shown
    tab.hold(".panel .full summary")
    tab.until("document.querySelector('.panel .full pre').innerText.includes('During')")


def test_where_the_time_went_is_a_view(tab: Tab, swept: Served) -> None:
    open_run(tab, swept, "s", "time")
    tab.until("document.querySelectorAll('.time table').length >= 3")

    text = tab.run("document.querySelector('.time').innerText")
    for words in ("from the first call to the last", "Calls ran", "By task", "train"):
        assert words in text
    assert "Critical path" in text
    tab.hold(".time table a")
    tab.until("document.querySelector('.panel h2')?.textContent.startsWith('train(')")


@entrypoint()
def talks(count: int) -> int:
    return len([chatter("x").result() for _ in range(count)])


def test_the_use_of_the_workers_is_drawn_over_time(tab: Tab, tmp_path: Path) -> None:
    with LMDBSaver(tmp_path / "store") as saver:
        talks.copy({"checkpointer": saver}).run(2, id="talks")
    with served(str(tmp_path / "store")) as server:
        open_run(tab, server, "talks", "time")
        tab.until("document.querySelectorAll('.usage svg').length === 2")
        labels = tab.run(
            "[...document.querySelectorAll('.usage svg')].map(e => e.ariaLabel)"
        )

    assert "CPU of the workers over time" == labels[0].partition(":")[0]
    assert labels[0].endswith("of 1 CPUs used on average")
    assert "Memory of the workers over time" == labels[1].partition(":")[0]


def test_a_report_has_the_errors_and_the_times(
    tab: Tab, swept: Served, tmp_path: Path
) -> None:
    with LMDBSaver(swept.store, readonly=True, codec=InertCodec()) as saver:
        (tmp_path / "run.html").write_text(run_report(saver, "s"), encoding="utf-8")
    tab.open(f"file://{tmp_path / 'run.html'}")
    tab.until("document.querySelectorAll('.kinds li').length === 2")
    assert not tab.run("document.querySelector('.kinds .button').offsetParent")

    tab.hold(".tabs a:last-child")
    tab.until("document.querySelectorAll('.time table').length >= 3")
