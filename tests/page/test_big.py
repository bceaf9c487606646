"""A run of 30,000 calls in the browser: what is sent, found, scrolled and drawn.

``tox -e big-page`` measures a run of a million.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.page.big import MANY, THREAD, big_store
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import Served, served

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
ALL = MANY + 3
FAILED = "document.querySelector('.chip.failed .number').textContent"
NAMES = "[...document.querySelectorAll('.rows a')].map(link => link.text)"
INDICES = (
    "[...document.querySelectorAll('.rows .row')].map(row => Number(row.dataset.index))"
)
BYTES = """["navigation", "resource"]
    .flatMap(type => performance.getEntriesByType(type))
    .reduce((sum, entry) => sum + entry.transferSize, 0)"""


@pytest.fixture(scope="module")
def big(many_calls: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a run of many calls, all of which the server has read."""
    # What servers of other files have read of the store is cached under its path.
    store = shutil.copytree(many_calls, tmp_path_factory.mktemp("big") / "store")
    with served(str(store)) as server:
        while ask(server)["is_behind"]:
            pass
        yield server


def ask(server: Served, path: str = "calls", **query: Any) -> dict[str, Any]:
    """Return an answer of the server about the run."""
    words = urlencode(query)
    body = server.ask(f"/api/{path}?thread={THREAD}&{words}").body
    answer: dict[str, Any] = json.loads(body)
    return answer


def open_big(tab: Tab, server: Served, view: str = "calls") -> None:
    """Open the run, and wait until all of its calls are counted."""
    open_run(tab, server, THREAD, view)
    tab.until(f"document.querySelector('.counts').innerText.includes('{ALL:,}'[0])")


def test_opening_the_run_costs_little_on_both_sides(tab: Tab, big: Served) -> None:
    """Far below 9 MB and a second on each side, which all calls would take."""
    tab.send("Performance.enable", timeDomain="threadTicks")
    open_big(tab, big)
    tab.until(f"{NAMES}.length >= 20 && {FAILED} === '311'")
    tab.open("about:blank")
    begin = time.process_time()
    open_big(tab, big)
    tab.until(f"{NAMES}.length >= 20 && {FAILED} === '311'")

    metrics = tab.send("Performance.getMetrics")["metrics"]
    spent = {metric["name"]: metric["value"] for metric in metrics}
    assert time.process_time() - begin < 0.5
    assert spent["TaskDuration"] < 1
    assert 5_000 < tab.run(BYTES) < 50_000
    assert 100 > tab.run("document.querySelectorAll('.rows .row').length")


def test_a_run_that_stands_still_is_drawn_once(tab: Tab, big: Served) -> None:
    """News that change nothing drew the whole page again, twice at each visit."""
    tab.open(big.address)
    tab.until("document.querySelector('tbody a')")
    tab.run(
        f"""import('/static/model.js').then(({{ Run }}) => {{
            globalThis.run = new Run("{THREAD}");
            run.query = {{ count: 10 }};
            return run.refresh();
        }})"""
    )
    answered, published = tab.run("[run.answered, run.published]")
    tab.run("run.take({ mark: '7' }); run.refresh()")

    assert [answered, published] == tab.run("[run.answered, run.published]")
    tab.run("run.take({ mark: '8', time_left: '2 to 3 min' })")
    assert published != tab.run("run.published")
    tab.run("run.query = { count: 11 }; run.refresh()")
    assert answered != tab.run("run.answered")


def test_numbers_and_texts_are_written_as_browsers_write_them(
    tab: Tab, big: Served
) -> None:
    """Without ``Intl`` and the classes of Unicode, which take long to load."""
    tab.open(big.address)
    wrong = tab.run(
        r"""Promise.all([import('/static/format.js'), import('/static/dom.js')]).then(
            ([{ count }, { visible }]) => {
                const numbers = [0, 7, 999, 1000, 1234567, -1234, 0.25, 1234.5678];
                const format = new Intl.NumberFormat("en").format;
                const characters = Array.from({ length: 0x3000 }, (_, code) => (
                    String.fromCharCode(code)));
                const isUnseen = (text) => /[^\P{C}\n\t]|[\u2028\u2029]/u.test(text);
                return [
                    ...numbers.filter((number) => count(number) !== format(number)),
                    ...characters.filter((text) => (
                        (visible(text) === text) === isUnseen(text))),
                ];
            })"""
    )

    assert [] == wrong


def test_a_first_visit_takes_few_bytes(tab: Tab, big: Served) -> None:
    """The files of the page, and all that it asks for about the run."""
    tab.send("Network.clearBrowserCache")
    tab.open(f"{big.address}#/run/{THREAD}/calls")
    tab.until(f"{NAMES}.length >= 20 && {FAILED} === '311'")
    tab.until("document.querySelector('.kinds li')")

    assert 60_000 < tab.run(BYTES) < 200_000


def test_a_new_server_answers_before_it_has_read_the_run(
    tab: Tab, many_calls: str, tmp_path: Path
) -> None:
    """No answer waits until all calls are read; the page says how far it is."""
    # The other server stores what it has read, while one of its pages is open.
    store = str(shutil.copytree(many_calls, tmp_path / "store"))
    with served(store) as server:
        first = json.loads(server.ask("/api/runs").body)["runs"][0]
        run = ask(server, "run")
        tab.open(f"{server.address}#/run/{THREAD}/calls")
        tab.until(f"{NAMES}.length >= 20")
        tab.until(f"{FAILED} === '311'")
        tab.until("document.querySelector('.head .badge.failed')")
        tab.until("!document.querySelector('.sentence').textContent.includes('so far')")

    assert ("reading", None) == (first["situation"], first["failed"])
    assert run["is_behind"]
    assert 0 < sum(run["states"].values()) < MANY
    assert "calls so far" in run["text"]["sentence"]
    assert run["text"]["command"] == ""


def test_the_next_server_begins_where_the_last_one_ended(
    many_calls: str, tmp_path: Path
) -> None:
    """It read all calls again, which took ten times as much CPU time."""
    store = str(shutil.copytree(many_calls, tmp_path / "store"))
    with served(store) as server:
        begin = time.process_time()
        while ask(server)["is_behind"]:
            pass
        reading = time.process_time() - begin
        last = ask(server, sort="-took", q="depth:8")
        last_listed = json.loads(server.ask("/api/runs").body)["runs"][0]
    with served(store) as server:
        begin = time.process_time()
        listed = json.loads(server.ask("/api/runs").body)["runs"][0]
        run = ask(server, "run")
        first = ask(server, sort="-took", q="depth:8")
        kinds = ask(server, "errors")["kinds"]
        spent = time.process_time() - begin

    print(f"{reading:.2f} s of CPU to read all, {spent:.2f} s to begin there")
    assert spent < reading / 3
    assert "failed" == listed["situation"]
    assert last_listed == listed
    assert not run["is_behind"]
    assert not first["is_behind"]
    for name in ("total", "numbers", "rows", "counts", "bodies", "fields"):
        assert last[name] == first[name], name
    assert 311 == kinds[0]["count"]


def test_only_changed_rows_are_sent_again(big: Served) -> None:
    first = ask(big, sort="began", offset=10_000)
    known = ",".join(map(str, first["numbers"]))
    since = f"{first['epoch']}.{first['version']}"

    again = ask(big, sort="began", offset=10_000, known=known, since=since)
    moved = ask(big, sort="began", offset=10_050, known=known, since=since)
    older = ask(big, sort="began", offset=10_000, known=known, since="1.0")

    assert 100 == len(first["rows"]) == len(older["rows"])
    assert [] == again["rows"]
    assert first["numbers"] == again["numbers"]
    assert 50 == len(moved["rows"])


def test_the_table_is_scrolled_to_its_end(tab: Tab, big: Served) -> None:
    open_big(tab, big)
    tab.until(f"{NAMES}.length >= 20")
    tab.run("document.querySelector('.window').scrollTop = 1e9")
    tab.until(f"{INDICES}.at(-1) === {ALL - 1} && {NAMES}.length >= 15")
    assert str(ALL + 1) == tab.run(
        "document.querySelector('.calls').getAttribute('aria-rowcount')"
    )
    tab.run("document.querySelector('.window').scrollTop = 36 * 10_000")
    tab.until(f"{INDICES}[5] === 10_000 && {NAMES}.length >= 20")


def test_a_search_a_filter_and_an_order_are_the_servers(tab: Tab, big: Served) -> None:
    open_big(tab, big)
    tab.until(f"{NAMES}.length >= 20")
    # The card of errors comes with an answer of its own, above the calls.
    tab.until("document.querySelector('.kinds li')")
    tab.hold("input[type=search]", 0)
    tab.type("took:>8.9ms -state:failed")
    tab.until("document.querySelector('.empty').innerText.includes('of 30,003')")
    total = ask(big, q="took:>8.9ms -state:failed")["total"]
    assert 1_500 < total < 4_500
    tab.until(
        f"document.querySelector('.empty').innerText.includes('{total:,} of 30,003')"
    )
    tab.run("document.querySelector('input[type=search]').value = ''")
    tab.type("nan")
    tab.hold(".chip.failed")
    tab.until("document.querySelector('.empty').innerText.startsWith('312 of')")
    assert {"train(12)", "sweep"} >= {*tab.run(NAMES)}


def test_the_keyboard_reaches_the_last_call(tab: Tab, big: Served) -> None:
    open_big(tab, big)
    tab.until(f"{NAMES}.length >= 20")
    tab.run("document.querySelector('.rows a').focus()")
    focused = "Number(document.activeElement.closest('.row')?.dataset.index)"
    tab.run(
        """document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", { key: "End", bubbles: true }))"""
    )
    tab.until(f"{focused} === {ALL - 1}")
    tab.press("ArrowUp")
    tab.until(f"{focused} === {ALL - 2}")
    tab.press("Enter")
    tab.until("document.querySelector('.panel h2')")


def test_the_timeline_is_a_picture(tab: Tab, big: Served) -> None:
    """Of some thousand bars at most; zoomed in, it names the calls."""
    open_big(tab, big, "timeline")
    label = "document.querySelector('canvas').getAttribute('aria-label')"
    tab.until(f"{label}?.includes('{ALL:,} calls')")
    whole = ask(big, "timeline", width=1000)
    part = ask(big, "timeline", width=1000, begin=5 * 10**9, end=5 * 10**9 + 10**8)

    assert 100 < sum(len(bars) for _, bars in whole["lanes"]) <= 6_000
    counted = sum(
        1 if number >= 0 else -number
        for _, bars in whole["lanes"]
        for *_, number in bars
    )
    assert ALL == counted
    assert 60 < sum(len(bars) for _, bars in part["lanes"]) < 200
    assert {"train(8)", "train(12)"} == {name for _, name in part["labels"].values()}


# ------------------------------------------------ a report answers by itself

QUERIES = [
    {},
    {"count": 7, "offset": 3},
    {"q": "nan"},
    {"q": "NaN -task:sweep", "sort": "call"},
    {"q": 'error:"loss is"', "sort": "-call"},
    {"q": "took:>8.5ms took:<=8700ms", "sort": "-took"},
    {"q": "took:=0.008", "sort": "took"},
    {"q": "worker:1003 tries:1 memory:<1gb", "sort": "began"},
    {"q": "call:train(8 lost:x"},
    {"q": "task:=train worker:>1005 worker:<1008", "sort": "-began"},
    {"q": "took:abc"},
    {"q": "-nan", "state": "failed,done", "sort": "error"},
    {"sort": "-error"},
    {"sort": "worker", "task": "train"},
    {"sort": "-state"},
    {"sort": "missing"},
    {"state": "waiting"},
    {"q": "depth:8 result:<0.2", "sort": "-result"},
    {"q": "-depth:8", "sort": "depth"},
]


def test_a_report_answers_queries_as_the_server_does(
    tab: Tab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The calls that match, their order, and the positions of calls."""
    store = big_store(tmp_path_factory.mktemp("few") / "store", 500)
    with served(store) as server:
        open_run(tab, server, THREAD)
        answers = [ask(server, find=f"{97:032x}", **query) for query in QUERIES]
        kept = ask(server, count=1_000, sort="path")
        timelines = [
            ask(server, "timeline", width=width, begin=begin, end=end)
            for width, begin, end in (
                (1000, 0, 0),
                (100, 0, 0),
                (300, 10**8, 2 * 10**8),
            )
        ]
        told = tab.run(
            f"""import('/static/query.js').then(({{ queryCalls, queryTimeline }}) => {{
                const report = {json.dumps(kept)};
                const answer = (query) => {{
                    const told = queryCalls(report, {{ find: "{97:032x}", ...query }});
                    return [told.total, told.numbers, told.found[0].slice(0, 2)];
                }};
                const line = (query) => queryTimeline(report, query);
                return [{json.dumps(QUERIES)}.map(answer), [
                    line({{ width: 1000 }}), line({{ width: 100 }}),
                    line({{ width: 300, begin: 1e8, end: 2e8 }}),
                ]];
            }})"""
        )

    expected = [
        [answer["total"], answer["numbers"], answer["found"][0][:2]]
        for answer in answers
    ]
    for query, one, other in zip(QUERIES, expected, told[0], strict=True):
        assert one == other, query
    assert len({total for total, *_ in expected}) > 6
    for one, other in zip(timelines, told[1], strict=True):
        assert shape(one) == shape(other)


def shape(timeline: dict[str, Any]) -> Any:
    """Return a timeline without its ends, which JavaScript rounds."""
    return (
        timeline["total"],
        timeline["columns"],
        [
            (pid, sorted([urgency, number] for _, _, urgency, number in bars))
            for pid, bars in timeline["lanes"]
        ],
    )
