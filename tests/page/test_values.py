"""Large values are opened, copied and downloaded in full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel._inspection.inert import InertCodec
from flowpregel.plugins.page.pages import run_report
from flowpregel.watching import StoreReader
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import Served, served

TEXT = "".join(f"line {number}\n" for number in range(5_000))
PANEL = "document.querySelector('.panel')"


@task
def produce(count: int) -> dict[str, Any]:
    return {
        "numbers": [*range(count)],
        "text": TEXT,
        "deep": [[[[[["bottom"]]]]]],
        "by name": {f"key {number}": number for number in range(500)},
    }


@entrypoint(executor="inline")
def large(count: int) -> list[int]:
    numbers: list[int] = produce(count).result()["numbers"]
    return numbers


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a call whose result is large."""
    path = str(tmp_path_factory.mktemp("large") / "store")
    with LMDBSaver(path) as saver:
        large.copy({"checkpointer": saver}).run(100_000, id="large")
    return path


@pytest.fixture(scope="module")
def server(store: str) -> Iterator[Served]:
    """Its page."""
    with served(store) as server:
        yield server


def asked(server: Served, path: str = "", start: int = 0) -> dict[str, Any]:
    """Return a page of the result of `produce`."""
    query = f"value?thread=large&call={call_id(server)}&part=result"
    answer = server.ask(f"/api/{query}&path={path}&start={start}")
    assert 200 == answer.status, answer.body
    page: dict[str, Any] = json.loads(answer.body)
    return page


def call_id(server: Served) -> str:
    """Return the id of the call of `produce`."""
    with (
        LMDBSaver(server.store, readonly=True, codec=InertCodec()) as saver,
        closing(StoreReader(saver)) as reader,
    ):
        return next(row.id for row in reader.calls("large").rows if row.text)


def test_the_items_of_a_list_are_read_in_pages(server: Served) -> None:
    page = asked(server, path="0", start=99_990)

    assert ("list", 100_000) == (page["kind"], page["total"])
    assert [[str(n), n] for n in range(99_990, 100_000)] == page["items"]


def test_a_text_is_read_in_parts(server: Served) -> None:
    first = asked(server, path="1")
    rest = asked(server, path="1", start=len(first["text"]))

    assert ("text", len(TEXT)) == (first["kind"], first["total"])
    assert TEXT.startswith(first["text"] + rest["text"])
    assert len(first["text"]) < len(TEXT)


def test_a_path_leads_below_the_depth_of_a_preview(server: Served) -> None:
    assert [["0", "bottom"]] == asked(server, path="2.0.0.0.0.0")["items"]


@pytest.mark.parametrize("path", ["9", "0.100000", "1.0", "0.-1"])
def test_a_path_that_leads_nowhere_is_an_error(server: Served, path: str) -> None:
    query = f"value?thread=large&call={call_id(server)}&part=result&path={path}"

    assert 404 == server.ask(f"/api/{query}").status


@pytest.mark.parametrize(
    "query",
    ["part=code", "part=result&call=x", "part=after&checkpoint=x", "part=after"],
)
def test_a_value_that_does_not_exist_is_an_error(server: Served, query: str) -> None:
    for path in ("value", "value/file"):
        assert 404 == server.ask(f"/api/{path}?thread=large&{query}").status


def test_a_file_has_the_whole_value_and_is_never_shown_by_the_browser(
    server: Served,
) -> None:
    query = f"thread=large&call={call_id(server)}&part=result"
    answer = server.ask(f"/api/value/file?{query}")

    assert [*range(100_000)] == json.loads(answer.body)["numbers"]
    assert TEXT == json.loads(answer.body)["text"]
    disposition = 'attachment; filename="result.json"'
    assert disposition == answer.headers["content-disposition"]
    assert "nosniff" == answer.headers["x-content-type-options"]


browser_test = NEEDS_CHROMIUM


def open_call(tab: Tab, server: Served) -> None:
    """Open the call of `produce` in the page."""
    open_run(tab, server, "large")
    tab.until("document.querySelector('.row a[title^=\"produce\"]')")
    tab.hold('.row a[title^="produce"]')
    tab.until("document.querySelector('.panel details')")


@browser_test
@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_the_rest_of_a_list_is_opened_with_its_right_count(
    tab: Tab, server: Served
) -> None:
    open_call(tab, server)
    assert "list of 100,000" in tab.run(f"{PANEL}.textContent")
    assert "dict of 500" in tab.run(f"{PANEL}.textContent")
    tab.run(f"{PANEL}.querySelectorAll('details details summary')[0].click()")
    rest = f"{PANEL}.querySelector('details details .sort')"
    tab.until(f"{rest}.textContent === '… 99,988 more'")
    tab.run(f"{rest}.scrollIntoView({{block: 'center'}})")
    tab.hold(".panel details details .sort")
    tab.until(f"{rest}.textContent === '… 99,788 more'")

    numbers = f"{PANEL}.querySelector('details details').querySelectorAll('.item')"
    assert "211211" == tab.run(f"[...{numbers}].at(-1).textContent")
    tab.run(f"{rest}.click()")
    tab.until(f"{numbers}.length === 412")


@browser_test
@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_the_rest_of_a_text_and_of_a_deep_list_is_opened(
    tab: Tab, server: Served
) -> None:
    open_call(tab, server)
    shown = f"{PANEL}.querySelector('.item pre')"
    button = (
        f"[...{PANEL}.querySelectorAll('.sort')]"
        ".find(each => each.textContent === '{}')"
    )
    tab.run(button.format("Show all") + ".click()")
    tab.until(f"{shown}.textContent.length === 20000")
    while tab.run(f"Boolean({button.format('Show more')})"):
        size = tab.run(f"{shown}.textContent.length")
        tab.run(button.format("Show more") + ".click()")
        tab.until(f"{shown}.textContent.length > {size}")
    assert TEXT == tab.run(f"{shown}.textContent")
    tab.run(button.format("Show all") + ".click()")
    tab.until(f"{PANEL}.textContent.includes('bottom')")


@browser_test
@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_a_whole_value_is_copied(tab: Tab, server: Served) -> None:
    open_call(tab, server)
    tab.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    buttons = f"[...{PANEL}.querySelectorAll('button')]"
    tab.run(f"{buttons}.find(each => each.textContent === 'Copy').id = 'copy'")
    tab.hold("#copy")
    tab.until("window.copied")

    assert 100_000 == tab.run("JSON.parse(window.copied).numbers.length")


@browser_test
@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_a_report_counts_right_and_offers_its_preview(
    tab: Tab, store: str, tmp_path: Path
) -> None:
    with LMDBSaver(store, readonly=True, codec=InertCodec()) as saver:
        page = run_report(saver, "large")
    (tmp_path / "run.html").write_text(page, encoding="utf-8")
    tab.open(f"file://{tmp_path / 'run.html'}")
    tab.until("document.querySelector('.row a[title^=\"produce\"]')")
    tab.run("document.querySelector('.row a[title^=\"produce\"]').click()")
    tab.until("document.querySelector('.panel details')")

    assert "list of 100,000" in tab.run(f"{PANEL}.textContent")
    tab.run(f"{PANEL}.querySelectorAll('details details summary')[0].click()")
    tab.until(f"{PANEL}.textContent.includes('… 99,988 more')")
    assert not tab.run(f"Boolean({PANEL}.querySelector('.sort'))")
