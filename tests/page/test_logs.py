"""The output of all calls of a run is one view, with search, levels and colours."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel._inspection.inert import InertCodec
from flowpregel.checkpoint.call_output import CallOutput
from flowpregel.plugins.page.pages import run_report
from flowpregel.watching import output_lines
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import Served, served

MARKUP = "<img src=x onerror='window.hit = 1'>"
LINES = "[...document.querySelectorAll('.line')].map(line => line.innerText)"


@task(executor="processes")
def chat(number: int) -> int:
    for line in range(600 * (number == 0)):
        print(f"line {line}")
    print(f"\x1b[1;31mred\x1b[0m {MARKUP} \x1b[2J\x1b]0;title\x07end")
    print("10 %\r100 %")
    logging.getLogger("jobs").warning("slow: %s", number)
    logging.getLogger("jobs").error("bad")
    return number


@entrypoint
def talk(count: int) -> int:
    return sum(chat(number).result() for number in range(count))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with two calls that have printed and logged."""
    path = str(tmp_path_factory.mktemp("logs") / "store")
    with LMDBSaver(path) as saver:
        talk.copy({"checkpointer": saver}).run(2, id="talk")
    return path


@pytest.fixture(scope="module")
def server(store: str) -> Iterator[Served]:
    """Its page."""
    with served(store) as server:
        yield server


def output(server: Served, query: str = "") -> dict[str, Any]:
    """Return the server's answer about the output of the run."""
    answer = server.ask(f"/api/output?thread=talk{query}")
    assert 200 == answer.status, answer.body
    page: dict[str, Any] = json.loads(answer.body)
    return page


def test_the_last_lines_of_all_calls_come_first(server: Served) -> None:
    page = output(server)
    earlier = output(server, f"&end={page['first']}")

    assert (608, 608, 108) == (page["total"], page["matched"], page["first"])
    assert ["chat(1)", "ERROR", "ERROR jobs: bad"] == page["lines"][-1][1:]
    assert "100 %" == page["lines"][-3][3]
    assert 108 == len(earlier["lines"])
    assert "line 0" == earlier["lines"][0][3]


def test_lines_are_selected_by_text_and_level(server: Served) -> None:
    levels = [line[2] for line in output(server, "&level=WARNING")["lines"]]

    assert ["WARNING", "ERROR"] * 2 == levels
    assert 2 == output(server, "&level=ERROR")["matched"]
    assert ["line 77"] == [line[3] for line in output(server, "&text=LINE+77")["lines"]]


def test_a_traceback_has_the_level_of_its_record() -> None:
    text = (
        b"ERROR jobs: bad\nTraceback (most recent call last):\n"
        b'  File "x.py"\nValueError: 1\nprinted\n'
    )
    lines = output_lines([CallOutput("", "1", "f()", 0, text, b"", len(text))])

    assert ["ERROR"] * 4 + [""] == [line.level for line in lines]


def test_the_whole_output_is_a_text_file(server: Served) -> None:
    answer = server.ask("/api/output/file?thread=talk")

    assert 608 == len(answer.body.splitlines())
    assert answer.headers["content-type"].startswith("text/plain")
    assert "attachment" in answer.headers["content-disposition"]


browser_test = [
    NEEDS_CHROMIUM,
    pytest.mark.slow,
    pytest.mark.usefixtures("quiet"),
]


def browsed(test: Any) -> Any:
    """Mark a test that needs a browser."""
    for mark in browser_test:
        test = mark(test)
    return test


@browsed
def test_colours_are_shown_and_nothing_else_is_obeyed(tab: Tab, server: Served) -> None:
    open_run(tab, server, "talk", "logs")
    tab.until("document.querySelectorAll('.line').length === 500")

    red = tab.run("document.querySelector('.line .bold').outerHTML")
    assert '<span class="c-failed bold">red</span>' == red
    assert f"{MARKUP} end" in tab.run(f"{LINES}.join()")
    assert tab.run("window.hit === undefined")
    tab.run("document.querySelector('.log .button').click()")
    tab.until("document.querySelectorAll('.line').length === 608")


@browsed
def test_the_search_and_the_level_are_in_the_address(tab: Tab, server: Served) -> None:
    open_run(tab, server, "talk", "logs")
    tab.until("document.querySelector('.line')")
    tab.run(
        """{ const level = document.querySelector('.bar select');
        level.value = 'WARNING'; level.dispatchEvent(new Event('change')); }"""
    )
    tab.until("document.querySelectorAll('.line').length === 4")
    tab.hold(".bar input[type=search]")
    tab.type("slow: 1")
    tab.until("document.querySelectorAll('.line').length === 1")
    tab.until("location.hash.includes('level=WARNING&log=slow')")

    tab.hold(".line a")
    tab.until("document.querySelector('.panel h2')?.textContent === 'chat(1)'")


@browsed
def test_the_output_of_a_run_is_followed(tab: Tab, tmp_path: Path) -> None:
    with LMDBSaver(tmp_path / "store") as saver:
        flow = talk.copy({"checkpointer": saver})
        flow.run(1, id="first")
        with served(str(tmp_path / "store")) as server:
            open_run(tab, server, "first", "logs")
            tab.until("document.querySelectorAll('.line').length === 500")
            end = "document.querySelector('.log')"
            tab.until(f"{end}.scrollTop + {end}.clientHeight > {end}.scrollHeight - 9")
            flow.run(2, id="first", again=True)
            tab.until(f"{LINES}.at(-2).includes('slow: 1')")
            tab.until(f"{end}.scrollTop + {end}.clientHeight > {end}.scrollHeight - 9")


@browsed
def test_a_report_has_the_output_and_selects_it_alone(
    tab: Tab, store: str, tmp_path: Path
) -> None:
    with LMDBSaver(store, readonly=True, codec=InertCodec()) as saver:
        page = run_report(saver, "talk")
    (tmp_path / "run.html").write_text(page, encoding="utf-8")
    tab.open(f"file://{tmp_path / 'run.html'}#/run/talk/logs")
    tab.until("document.querySelector('.tabs')")
    tab.run("document.querySelector('.tabs a[href*=logs]').click()")
    tab.until("document.querySelectorAll('.line').length === 608")
    tab.hold(".bar input[type=search]")
    tab.type("LINE 77")
    tab.until("document.querySelectorAll('.line').length === 1")
