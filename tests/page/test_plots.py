"""Sweeps in a real browser: columns, CSV, plots and comparisons, also in a report."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowpregel import LMDBSaver
from flowpregel._inspection.inert import InertCodec
from flowpregel.cli.app import app
from flowpregel.plugins.page import scripts
from flowpregel.plugins.page.pages import Pages, json_text, run_report
from flowpregel.watching import CALL_NUMBERS, CallNumber
from tests.page.big import THREAD
from tests.page.browser import NEEDS_CHROMIUM, Tab, keep_picture, open_run
from tests.page.serving import Served, served
from tests.page.sweep_flows import sweep_store

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
HEADS = "[...document.querySelectorAll('.heads > span')].map(e => e.textContent)"
DRAWN = "document.querySelector('.plot').dataset.drawn"
POINT = "document.querySelector('a.point')"
ROWS = "document.querySelectorAll('.rows .row').length"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with two runs of a sweep."""
    return sweep_store(tmp_path_factory.mktemp("sweep") / "store")


@pytest.fixture(scope="module")
def server(store: str) -> Iterator[Served]:
    """The page of the store."""
    with served(store) as server:
        yield server


@pytest.fixture(scope="module")
def report(store: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of the first run."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    with LMDBSaver(store, readonly=True, codec=InertCodec()) as saver:
        file.write_text(run_report(saver, "base"))
    return f"file://{file}"


def choose(tab: Tab, label: str, value: str) -> None:
    """Choose an option of a select element."""
    tab.until(f"document.querySelector('[aria-label=\"{label}\"] option')")
    tab.run(
        f"""(() => {{ const field = document.querySelector('[aria-label="{label}"]');
            field.value = {value!r}; field.dispatchEvent(new Event('change')); }})()"""
    )


def toggle(tab: Tab, column: str) -> None:
    """Press the box of a column in the open list of columns."""
    tab.run(
        "[...document.querySelectorAll('.choices label')]"
        f".find(label => label.textContent.trim() === {column!r}).id = 'wanted'"
    )
    tab.hold("#wanted input")
    tab.run("document.querySelector('#wanted').removeAttribute('id')")


# ------------------------------------------------ columns and CSV


def test_a_reader_chooses_the_columns_and_a_link_shows_the_same(
    tab: Tab, server: Served
) -> None:
    open_run(tab, server, "base")
    tab.until("document.querySelector('.heads button')")
    tab.hold(".columns summary")
    toggle(tab, "Began")
    tab.until(f"!{HEADS}.includes('Began')")
    toggle(tab, "Memory")
    tab.until(f"{HEADS}.includes('Memory')")
    toggle(tab, "epochs")

    tab.until(f"!{HEADS}.includes('epochs')")
    heads = tab.run(HEADS)
    assert ["Call", "State", "Took"] == heads[:3]
    assert "loss" in heads
    assert tab.run("document.querySelector('.columns').open")
    another = tab.another()
    another.open(tab.run("location.href"))
    another.until(f"{HEADS}.join() === {','.join(heads)!r}")
    another.close()
    tab.run("history.back()")
    tab.until(f"{HEADS}.includes('epochs')")
    tab.hold(".columns .card button")
    tab.until(f"{HEADS}.includes('Began') && !location.hash.includes('columns')")


def test_the_usual_columns_have_each_number_of_a_call(
    tab: Tab, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further number is a change of Python only."""
    further = CallNumber("switches", "switches", "switches", "count", "Switches")
    monkeypatch.setattr(scripts, "CALL_NUMBERS", (*CALL_NUMBERS, further))
    with served(store) as server:
        tab.open(server.address)
        usual = tab.run(
            "import('./static/columns.js').then(columns => "
            "columns.columnsOf({ table: { rows: () => [] }, fields: [] }).usual)"
        )

    assert ["began", "took", "cpu", "memory", "switches", "worker"] == usual


def test_the_list_of_columns_obeys_the_keyboard(tab: Tab, server: Served) -> None:
    open_run(tab, server, "base")
    tab.until("document.querySelector('.heads button')")
    tab.run("document.querySelector('.columns summary').focus()")
    tab.press("Enter")
    tab.until("document.querySelector('.columns').open")
    tab.press("Tab")
    assert "INPUT" == tab.run("document.activeElement.tagName")
    tab.press("Escape")

    tab.until("!document.querySelector('.columns').open")
    assert "SUMMARY" == tab.run("document.activeElement.tagName")


CSV = "fetch(document.querySelector('a.csv').href).then(answer => answer.text())"


def test_the_csv_has_the_rows_and_columns_that_are_seen(
    tab: Tab, server: Served
) -> None:
    open_run(tab, server, "base")
    tab.until("document.querySelector('.heads button')")
    # The card of errors comes with an answer of its own, above the calls.
    tab.until("document.querySelector('.kinds li')")
    tab.hold(".bar input[type=search]")
    tab.type("loss:<1.5")
    tab.until("location.hash.includes('loss')")
    tab.run("location.hash += '&columns=loss,depth'")
    tab.until("document.querySelector('a.csv').href.includes('columns')")

    rows = [*csv.DictReader(io.StringIO(tab.run(CSV), newline=""))]

    assert ["call", "state", "loss", "depth", "error"] == [*rows[0]]
    assert 1 < len(rows) < 12
    assert all(float(row["loss"]) < 1.5 for row in rows)


# ------------------------------------------------ plots


def open_plot(tab: Tab, server: Served, query: str = "") -> None:
    """Open the plot of the first run."""
    open_run(tab, server, "base", f"plot{query}")
    tab.until(DRAWN)


def check_plot(tab: Tab) -> None:
    """See that a plot has the points that are asked for, and a table of them."""
    choose(tab, "Horizontal axis", "depth")
    choose(tab, "Vertical axis", "loss")
    choose(tab, "Colour", "lr")
    tab.until(f"{DRAWN} === '11' && document.querySelectorAll('.legend li').length > 2")
    assert ["0.001", "0.01", "0.1"] == tab.run(
        "[...document.querySelectorAll('.legend li')].map(item => item.innerText)"
    )
    tab.hold("details.card summary")
    tab.until("document.querySelectorAll('.figures tbody tr').length === 11")
    heads = tab.run(
        "[...document.querySelectorAll('.figures thead th')].map(e => e.innerText)"
    )
    assert ["Call", "depth", "loss", "lr"] == heads
    depths = tab.run(
        "[...document.querySelectorAll('.figures tbody tr')]"
        ".map(row => Number(row.children[1].innerText))"
    )
    assert sorted(depths) == depths


def test_a_plot_shows_the_chosen_fields_and_the_address_keeps_them(
    tab: Tab, server: Served
) -> None:
    open_plot(tab, server)

    check_plot(tab)

    address = tab.run("location.href")
    another = tab.another()
    another.open(address)
    another.until(f"{DRAWN} === '11' && document.querySelector('.legend li')")
    values = "[...document.querySelectorAll('.bar select')].map(field => field.value)"
    another.until(f"{values}.join() === 'scatter,depth,loss,lr'")
    another.close()
    tab.run("history.back()")
    tab.until("document.querySelector('.legend').hidden")


def test_the_library_of_plots_is_loaded_with_the_first_plot(
    tab: Tab, server: Served
) -> None:
    loaded = (
        "performance.getEntriesByType('resource')"
        ".some(entry => entry.name.includes('vendor/'))"
    )
    open_run(tab, server, "base")
    tab.until(f"{ROWS} > 5")
    assert not tab.run(loaded)
    tab.hold(".tabs a:nth-child(2)")
    tab.until(DRAWN)

    assert tab.run(loaded)


def test_a_point_is_a_link_to_its_call(tab: Tab, server: Served) -> None:
    """Reached by the keyboard, and by a press beside it."""
    open_plot(tab, server, "?x=depth&y=loss")
    tab.run(f"{POINT}.focus()")
    first = tab.run(f"{POINT}.dataset.call")
    tab.press("ArrowDown")
    tab.until(f"{POINT}.dataset.call !== {first!r}")
    call = tab.run(f"{POINT}.dataset.call")
    assert "loss" in tab.run(f"{POINT}.getAttribute('aria-label')")
    assert "depth" in tab.run("document.querySelector('.tip').innerText")
    tab.press("Enter")
    tab.until("document.querySelector('.panel h2')")
    assert call in tab.run("location.hash")

    tab.press("Escape")
    tab.until("!document.querySelector('.panel')")
    tab.hold("a.point")
    tab.until("document.querySelector('.panel h2')")
    assert call in tab.run("location.hash")


def test_a_line_is_drawn_along_the_order_of_calls(tab: Tab, server: Served) -> None:
    open_plot(tab, server, "?kind=line&x=order&y=loss")

    xs = (
        "[...document.querySelectorAll('.figures tbody tr')]"
        ".map(row => Number(row.children[1].innerText))"
    )
    tab.hold("details.card summary")
    tab.until(f"{xs}.length === 11")
    assert [*range(1, 12)] == sorted({*tab.run(xs), 12} - {12})[:11]


def test_a_search_chooses_the_points(tab: Tab, server: Served) -> None:
    open_plot(tab, server, "?x=depth&y=loss")
    tab.hold(".bar input[type=search]")
    tab.type("lr:0.01")

    tab.until(f"{DRAWN} === '4'")
    tab.until("document.querySelector('[role=status].quiet').innerText.startsWith('4')")


def test_a_plot_follows_dark_colours(tab: Tab, server: Served, tmp_path: Path) -> None:
    open_plot(tab, server, "?x=depth&y=loss&colour=lr")
    tab.until("document.querySelector('.legend .swatch')")
    colour = "document.querySelector('.legend .swatch').style.background"
    light = tab.run(colour)
    tab.run("document.querySelector('.tabs').scrollIntoView()")
    keep_picture(tab, tmp_path, "plot")
    tab.look(dark=True)

    tab.until(f"{colour} !== {light!r}")


def test_a_plot_of_many_calls_has_few_points(tab: Tab, many_calls: str) -> None:
    with served(many_calls) as server:
        open_run(tab, server, THREAD, "plot?x=order&y=took")
        tab.until(f"{DRAWN} > 1000")
        tab.until(
            "document.querySelector('[role=status].quiet').innerText"
            ".includes('which stand for 30,0')"
        )
        assert int(tab.run(DRAWN)) <= 4_000


# ------------------------------------------------ metrics over time

LINES = "document.querySelector('.plot').dataset.lines"
SERIES = "document.querySelector('.panel [data-metric=rmse]')"


def check_series(tab: Tab) -> None:
    """Open a call with a metric over time, and compare it with other calls."""
    tab.until(f"{ROWS} > 5")
    tab.run(
        "[...document.querySelectorAll('.row:has(.badge.done) a')]"
        ".find(a => a.title.startsWith('train')).click()"
    )
    tab.until(f"{SERIES}.querySelector('path').getAttribute('d').split('L').length > 4")
    assert "rmse: 5 values from" in tab.run(
        f"{SERIES}.querySelector('svg').getAttribute('aria-label')"
    )
    tab.hold(".panel [data-metric=rmse] summary")
    steps = (
        f"[...{SERIES}.querySelectorAll('tbody tr')].map(row => row.cells[0].innerText)"
    )
    tab.until(f"{steps}.join() === '0,10,20,30,40'")
    tab.hold(".panel [data-metric=rmse] a")
    tab.until(f"{LINES} === '12' && {DRAWN} === '60'")
    legend = "[...document.querySelectorAll('.legend li')].map(e => e.innerText)"
    names = tab.run(legend)
    assert 8 == len(names)
    assert all("lr=0." in name and "depth=" in name for name in names[:7])
    values = "[...document.querySelectorAll('.bar select')].map(field => field.value)"
    assert ["series", "step", "rmse", ""] == tab.run(values)


def test_a_metric_over_time_is_drawn_for_one_call_and_for_all(
    tab: Tab, server: Served
) -> None:
    open_run(tab, server, "base")

    check_series(tab)

    choose(tab, "Colour", "depth")
    tab.until(
        "[...document.querySelectorAll('.legend li')].map(e => e.innerText).join()"
        " === '4,8,12,16'"
    )
    choose(tab, "Horizontal axis", "seconds")
    tab.until("document.querySelector('.plot').ariaLabel.includes('call began')")
    tab.hold(".bar input[type=search]")
    tab.type("depth:8")
    tab.until(f"{LINES} === '3'")
    told = "document.querySelector('[role=status].quiet').innerText"
    assert "rmse of 3 calls." in tab.run(told)
    tab.hold("a.point")
    tab.until("document.querySelector('.panel h2')")


# ------------------------------------------------ comparisons


def test_two_runs_are_chosen_in_the_list_and_compared(
    tab: Tab, server: Served, tmp_path: Path
) -> None:
    tab.open(server.address)
    tab.hold("[data-run=base] input")
    tab.hold("[data-run=wide] input")
    tab.hold("a.button[href*=compare]")
    tab.until("document.querySelectorAll('.compare table').length === 3")

    text = tab.run("document.querySelector('.compare').innerText")
    assert "width" in text
    assert "FloatingPointError: loss is nan" in text
    counts = "[...document.querySelectorAll('.compare .chip')].map(e => e.innerText)"
    assert [
        *("Other result 11", "Only in A 0", "Only in B 0", "The same 1"),
    ] == [" ".join(count.split()) for count in tab.run(counts)]
    assert 11 == tab.run("document.querySelectorAll('.compare .mono a').length")
    keep_picture(tab, tmp_path, "compare")
    tab.hold(".compare .chip:last-child")
    tab.until("document.querySelectorAll('.compare .mono a').length === 1")
    tab.run("history.back()")
    tab.until("document.querySelectorAll('.compare .mono a').length === 11")
    tab.hold(".compare .mono a")
    tab.until("document.querySelector('.compare').innerText.includes('Both calls')")
    assert "Both were asked the same." in tab.run("document.body.innerText")


def test_a_run_is_compared_with_another_by_name(tab: Tab, server: Served) -> None:
    open_run(tab, server, "base")
    tab.hold(".crumbs a:last-child")
    tab.until("document.querySelector('.compare [name=a]').value === 'base'")
    tab.hold(".compare [name=b]")
    tab.type("lost")
    tab.press("Enter")
    tab.until("document.querySelector('.compare .problem').innerText.includes('lost')")
    tab.messages.clear()  # The browser writes that the answer was 404.
    tab.run("document.querySelector('.compare [name=b]').select()")
    tab.type("wide")
    tab.hold(".compare [type=submit]")

    tab.until("document.querySelectorAll('.compare table').length === 3")
    assert "b=wide" in tab.run("location.hash")


def compare_two_calls(tab: Tab) -> str:
    """Choose a call, open another, and return the comparison as text."""
    tab.until(f"{ROWS} > 5")
    train = "[...document.querySelectorAll('.row:has(.badge.done) a')]"
    tab.run(f"{train}.filter(a => a.title.startsWith('train'))[0].click()")
    tab.until("document.querySelector('.panel [aria-pressed]')")
    tab.hold(".panel [aria-pressed]")
    tab.until("document.querySelector('.panel [aria-pressed=true]')")
    tab.run(f"{train}.filter(a => a.title.startsWith('train'))[1].click()")
    tab.hold(".panel a[href*=compare]")
    tab.until("document.querySelectorAll('.compare table').length > 1")
    text: str = tab.run("document.querySelector('.compare').innerText")
    return text


def test_two_calls_are_compared(tab: Tab, server: Served) -> None:
    open_run(tab, server, "base")

    text = compare_two_calls(tab)

    assert "Arguments that differ" in text
    assert "params.lr" in text or "params.depth" in text
    assert "Peak memory" in text


# ------------------------------------------------ reports


def test_a_report_plots_and_compares_its_calls(tab: Tab, report: str) -> None:
    tab.open(f"{report}#/run/base")
    tab.until(f"{ROWS} > 5")
    tab.hold(".tabs a:nth-child(2)")
    tab.until(DRAWN)

    check_plot(tab)

    tab.hold(".tabs a:nth-child(1)")
    text = compare_two_calls(tab)
    assert "Fields that differ" in text
    tab.hold(".crumbs a")
    tab.until(f"{ROWS} > 5")


def test_a_report_draws_metrics_over_time(tab: Tab, report: str) -> None:
    tab.open(f"{report}#/run/base")

    check_series(tab)


def test_a_report_of_two_runs_compares_them(
    tab: Tab, store: str, tmp_path: Path
) -> None:
    file = tmp_path / "both.html"
    words = ["report", "base", "wide", "--store", store, "--output", str(file)]
    result = CliRunner().invoke(app, words)
    assert 0 == result.exit_code, result.output

    tab.open(f"file://{file}")
    tab.until("document.querySelectorAll('.compare table').length === 3")
    text = tab.run("document.querySelector('.compare').innerText")
    assert "width" in text
    assert "Report of two runs" in text
    assert 11 == tab.run("document.querySelectorAll('.compare .mono a').length")
    tab.hold(".compare .chip:last-child")
    rows = "document.querySelectorAll('.compare section:last-child tbody tr')"
    tab.until(f"{rows}.length === 1")
    tab.hold(".compare .chip:first-child")
    tab.until(f"{rows}.length === 11")
    tab.hold(".compare .mono a")
    tab.until("document.querySelector('.compare').innerText.includes('Both calls')")
    assert "loss" in tab.run("document.querySelector('.compare').innerText")
    tab.hold(".crumbs a")
    tab.until(f"{rows}.length === 11")


@pytest.mark.parametrize(
    "query",
    [
        {"kind": "series", "y": "rmse", "q": "depth:8"},
        {"kind": "series", "x": "seconds", "colour": "lr"},
        {"x": "depth", "y": "loss", "colour": "kind"},
        {"x": "order", "y": "epochs", "q": "lr:0.01"},
        {"x": "began", "y": "took", "state": "done"},
        {},
    ],
)
def test_a_report_has_the_same_points_as_the_server(
    tab: Tab, server: Served, store: str, query: dict[str, str]
) -> None:
    with (
        LMDBSaver(store, readonly=True, codec=InertCodec()) as saver,
        closing(Pages(saver)) as pages,
    ):
        report = pages.call_pages.report("base", 100)
        expected = pages.sweeps.plot("base", **query)
        answers = {
            f"call:{row[1]}": pages.call("base", row[1]) for row in report["rows"]
        }
    tab.open(server.address)
    given = f"{json_text(report)}, {json.dumps(query)}, {json_text(answers)}"
    plot = tab.run(
        f"import('./static/points.js').then(points => points.queryPlot({given}))"
    )

    assert expected["points"]
    for point, other in zip(expected["points"], plot["points"], strict=True):
        assert [pytest.approx(each, abs=1e-6) for each in point[:2]] == other[:2]
        assert [*point[2:]] == other[2:]
    assert (expected["x"], expected["y"]) == (plot["x"], plot["y"])
    assert [*expected["numbers"]] == plot["numbers"]


def test_a_report_writes_the_same_file_as_the_server(
    tab: Tab, server: Served, store: str
) -> None:
    with (
        LMDBSaver(store, readonly=True, codec=InertCodec()) as saver,
        closing(Pages(saver)) as pages,
    ):
        report = json_text(pages.call_pages.report("base", 100))
    words = "q=task:train&sort=loss"
    expected = server.ask(f"/api/calls/file?thread=base&{words}").body
    tab.open(server.address)

    written = tab.run(
        "import('./static/columns.js').then(columns => "
        f"columns.csvOf({report}, {{ q: 'task:train', sort: 'loss' }}, []))"
    )

    rows, others = (
        [*csv.DictReader(io.StringIO(text, newline=""))] for text in (expected, written)
    )
    assert 12 == len(rows)
    for row, other in zip(rows, others, strict=True):
        assert {*row} == {*other}
        assert row["call"] == other["call"]
        assert row["error"] == other["error"]
        assert float(row["loss"] or 0) == float(other["loss"] or 0)
