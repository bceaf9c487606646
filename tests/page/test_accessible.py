"""The page for every reader: contrast, names, the keyboard; and addresses, titles and
icons that show the state.

axe comes with `tox -e axe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver
from flowpregel.errors import UnansweredError
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.graph_flows import add_graph_runs
from tests.page.question_flows import QUESTIONS, ask, book
from tests.page.serving import Served, served
from tests.page.stores import long_store, plain_store, sums
from tests.page.sweep_flows import DEPTHS, sweep

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"dark": True},
    "phone": {"width": 390, "height": 844},
    "zoomed": {"zoom": 2},
}
VIEWS = {
    "list": "",
    "calls": "#/run/divides/calls",
    "call": "#/run/divides/calls?call=FAILED",
    "plot": "#/run/divides/plot",
    "series": "#/run/base/plot?kind=series&x=step&y=rmse",
    "metric": "#/run/base/calls?call=FIRST",
    "compare": "#/compare?a=adds&b=many",
    "timeline": "#/run/divides/timeline",
    "graph": "#/run/divides/graph",
    "time": "#/run/many/time",
    "boxes": "#/run/study/graph?open=%257Cstudy%257Cfetch",
    "steps": "#/run/adds/steps",
    "questions": "#/run/book",
    "object": "#/run/object",
    "markdown": "#/run/markdown",
    "form": "#/start/adds",
}
READY = {
    "call": ".panel pre",
    "plot": "[data-drawn]",
    "series": "[data-lines]",
    "metric": ".panel [data-metric] svg",
    "compare": ".compare table",
    "timeline": "canvas",
    "graph": ".node",
} | {
    "boxes": ".inner .node",
    "steps": ".channel",
    "list": "tbody a",
    "questions": ".question",
    "object": ".question",
    "markdown": ".markdown",
    "form": ".start textarea",
    "time": ".time table",
}
FINDINGS = """axe.run(document).then(report => report.violations
    .filter(rule => ["serious", "critical"].includes(rule.impact))
    .map(rule => [rule.id, rule.nodes[0].html, rule.nodes[0].failureSummary]))"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a store with runs in each state, with buttons."""
    store = plain_store(tmp_path_factory.mktemp("plain") / "store")
    with LMDBSaver(store) as saver:
        with pytest.raises(UnansweredError):
            book.copy({"checkpointer": saver}).run(3, id="book")
        for name in QUESTIONS:
            with pytest.raises(UnansweredError):
                ask.copy({"checkpointer": saver}).run(name, id=name)
        sums.copy({"checkpointer": saver}).run([*range(40)], id="many")
        add_graph_runs(saver)
        sweep.copy({"checkpointer": saver}).run([*DEPTHS], id="base")
    with served(store, actions=True) as server:
        yield server


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe."""
    package = find_spec("axe_playwright_python")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("axe-playwright-python is not installed")
    (folder,) = package.submodule_search_locations
    return (Path(folder) / "axe.min.js").read_text("utf-8")


def open_view(tab: Tab, server: Served, view: str) -> None:
    """Open a view, and wait for it."""
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    address = VIEWS[view]
    first = "document.querySelector('.rows .row').dataset.id"
    if view == "call":
        open_run(tab, server, "divides")
        address = address.replace("FAILED", tab.run(first))
    elif view == "metric":
        open_run(tab, server, "base")
        tab.until(f"{first} && document.querySelectorAll('.rows .row').length > 5")
        train = (
            "[...document.querySelectorAll('.rows .row')]"
            ".find(row => row.innerText.includes('train')).dataset.id"
        )
        address = address.replace("FIRST", tab.run(train))
    tab.run(f"location.hash = {address!r}")
    tab.until(f"document.querySelector('{READY.get(view, '.row a')}')")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("view", VIEWS)
def test_axe_has_no_serious_finding(
    tab: Tab, server: Served, axe: str, view: str, look: str
) -> None:
    tab.look(**LOOKS[look])
    open_view(tab, server, view)
    tab.run(axe)

    assert [] == tab.run(FINDINGS)


@pytest.mark.parametrize("view", VIEWS)
def test_at_200_percent_nothing_scrolls_sideways(
    tab: Tab, server: Served, view: str
) -> None:
    tab.look(zoom=2)
    open_view(tab, server, view)

    assert tab.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_arrow_keys_go_through_calls_and_tab_leaves_them(
    tab: Tab, server: Served
) -> None:
    open_view(tab, server, "calls")
    tab.run("document.querySelector('.rows a[tabindex=\"0\"]').focus()")
    tab.press("ArrowDown")
    second = tab.run("document.activeElement.title")
    tab.press("Tab")

    assert "rows" not in tab.run("document.activeElement.parentNode.className")
    assert not tab.run("Boolean(document.activeElement.closest('.rows'))")
    tab.run("document.querySelector('.rows a[tabindex=\"0\"]').focus()")
    assert second == tab.run("document.activeElement.title")


def test_the_arrow_keys_travel_through_supersteps(tab: Tab, server: Served) -> None:
    open_view(tab, server, "steps")
    tab.run("document.querySelector('.steps [aria-current]').focus()")
    tab.press("ArrowDown")
    tab.until("document.querySelector('.travel h2').textContent === 'Input'")

    assert "Input" in tab.run("document.activeElement.textContent")
    assert 1 == tab.run("document.querySelectorAll('.steps [tabindex=\"0\"]').length")


# ------------------------------------------------ the address


NAMES = "[...document.querySelectorAll('.rows a')].map(link => link.text)"


def test_search_filter_and_order_are_in_the_address(tab: Tab, server: Served) -> None:
    """The address opens the same view elsewhere, and survives back and forth."""
    open_run(tab, server, "many")
    tab.until(f"{NAMES}.length > 10")
    tab.hold(".bar input[type=search]")
    tab.type("double(3")
    tab.until("location.hash.includes('q=double')")
    tab.hold(".chip.done")
    tab.until("location.hash.includes('state=done')")
    tab.run(
        """(() => {
            const sort = document.querySelector(".bar select");
            sort.value = "by name";
            sort.dispatchEvent(new Event("change"));
        })()"""
    )
    tab.until(f"{NAMES}[0] === 'double(3)' && {NAMES}.length === 11")
    names = tab.run(NAMES)
    address = tab.run("location.href")
    assert 11 == len(names)
    assert sorted(names) == names
    tab.hold(".rows a")
    tab.until("document.querySelector('.panel h2')")
    tab.hold(".panel .close")
    tab.until("!document.querySelector('.panel')")
    assert names == tab.run(NAMES)
    assert address == tab.run("location.href")
    tab.hold(".tabs a:nth-child(4)")
    tab.until("document.querySelector('.graph')")
    tab.run("history.back()")
    tab.until(f"{NAMES}.join() === {','.join(names)!r}")
    another = tab.another()
    another.open(address)
    another.until(f"{NAMES}.length === 11")
    assert names == another.run(NAMES)
    pressed = "document.querySelector('.chip.done').getAttribute('aria-pressed')"
    assert "true" == another.run(pressed)
    another.close()


def test_a_filter_is_undone_by_going_back(tab: Tab, server: Served) -> None:
    open_run(tab, server, "divides")
    tab.until(f"{NAMES}.length === 5")
    # The card of errors comes with an answer of its own, above the calls.
    tab.until("document.querySelector('.kinds li')")
    tab.hold(".chip.failed")
    tab.until(f"{NAMES}.length < 5")
    tab.run("history.back()")

    tab.until(f"{NAMES}.length === 5")


def test_the_list_keeps_its_filter_too(tab: Tab, server: Served) -> None:
    open_view(tab, server, "list")
    tab.hold(".chip.failed")
    shown = "[...document.querySelectorAll('tbody a')].map(link => link.text)"
    tab.until(f"{shown}.length === 1")
    tab.hold("tbody a")
    tab.until("document.querySelector('.head')")
    tab.run("history.back()")
    tab.until("document.querySelector('tbody a')")

    assert ["divides"] == tab.run(shown)


def test_a_superstep_is_in_the_address(tab: Tab, tmp_path: Path) -> None:
    with served(long_store(tmp_path / "store", 20)) as server:
        open_run(tab, server, "long", "steps")
        tab.until("document.querySelectorAll('.steps li').length === 22")
        tab.hold(".steps li:nth-child(4) button")
        tab.until("location.hash.includes('at=')")
        title = "document.querySelector('.travel h2').textContent"
        tab.until(f"{title} === 'After superstep 17'")
        address = tab.run("location.href")
        another = tab.another()
        another.open(address)
        another.until(f"{title} === 'After superstep 17'")
        another.close()


def test_a_zoom_is_in_the_address(tab: Tab, server: Served) -> None:
    label = "document.querySelector('canvas')?.getAttribute('aria-label')"
    is_drawn = f"({label} ?? '').includes(' calls in ')"
    open_run(tab, server, "many", "timeline")
    tab.until(is_drawn)
    tab.hold("[aria-label='Zoom in']")
    tab.until("location.hash.includes('zoom=')")
    tab.reload()
    tab.until(is_drawn)

    assert "zoom=" in tab.run("location.hash")
    tab.hold("[aria-label='Show the whole run']")
    tab.until("!location.hash.includes('zoom=')")


# ------------------------------------------------ the tab


@pytest.mark.parametrize(
    ("thread", "title", "icon"),
    [
        ("adds", "✓ done · adds · flowpregel", "static/icon-done.svg"),
        ("divides", "✕ failed · divides · flowpregel", "static/icon-failed.svg"),
        ("book", "? asks · book · flowpregel", "static/icon-waiting.svg"),
    ],
)
def test_the_title_and_the_icon_show_the_state(
    tab: Tab, server: Served, thread: str, title: str, icon: str
) -> None:
    open_run(tab, server, thread)
    tab.until(f"document.title === {title!r}")

    link = "document.querySelector('link[rel=icon]')"
    assert icon == tab.run(f"{link}.getAttribute('href')")
    assert 200 == server.ask(f"/{icon}").status


def test_a_late_answer_to_the_list_does_not_change_the_title_of_a_run(
    tab: Tab, server: Served
) -> None:
    """The list asks again and again, also just before its view is left."""
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    tab.run(
        """{
        const ask = window.fetch;
        window.fetch = async (address, ...options) => {
            const answer = await ask(address, ...options);
            if (!String(address).includes("api/runs")) return answer;
            await new Promise((done) => { window.release = done; });
            const copy = answer.clone();
            copy.text().then(() => { window.isRead = true; });
            return answer;
        };
        }"""
    )
    tab.until("window.release")
    tab.run("location.hash = '#/run/adds/calls'")
    title = "✓ done · adds · flowpregel"
    tab.until(f"document.title === {title!r}")
    tab.run("window.release()")
    tab.until("window.isRead")
    tab.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    assert title == tab.run("document.title")
