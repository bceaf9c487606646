"""What a call was asked and what came out, in a real browser and in a report."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel._inspection.inert import InertCodec
from flowpregel.plugins.page.pages import run_report
from flowpregel.runtime import Runtime
from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import Served, served

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmM"
    "IQAAAABJRU5ErkJggg=="
)
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">'
    "<script>window.hit = 1; parent.hit = 1</script>"
    '<rect width="40" height="20" fill="#18f"/></svg>'
)
PANEL = "document.querySelector('.panel').innerText"


@dataclass
class Params:
    depth: int
    rate: float
    api_key: str = "sk-hidden"


class Text:
    """Markdown, as IPython knows it."""

    def _repr_markdown_(self) -> str:
        return "# Title\n\nA **bold** word."


class Frame:
    """A table, as pandas has one."""

    columns = ("name", "loss")
    shape = (20, 2)

    def head(self, count: int) -> Frame:
        return self

    def itertuples(self, **_: Any) -> list[tuple[Any, ...]]:
        return [("a", 0.25)]


@task
def train(params: Params, seed: int, *, runtime: Runtime) -> dict[str, float]:
    runtime.metric("epochs", 10 - seed)
    runtime.report(PNG, title="picture")
    runtime.report(SVG, title="drawing")
    runtime.report(Text(), title="words")
    runtime.report(Frame(), title="rows")
    if params.depth == 12 and seed == 1:
        raise FloatingPointError("loss is nan")
    return {"loss": params.rate * params.depth}


@entrypoint(executor="inline")
def sweep(seeds: list[int]) -> int:
    calls = [
        train(Params(depth, 0.01), seed=seed) for depth in (8, 12) for seed in seeds
    ]
    return sum(call.exception() is None for call in calls)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a run of `sweep`."""
    path = tmp_path_factory.mktemp("sweep") / "store"
    with LMDBSaver(path) as saver:
        sweep.copy({"checkpointer": saver}).run([1, 2], id="sweep")
    return str(path)


@pytest.fixture(scope="module")
def server(store: str) -> Iterator[Served]:
    """The page of the store."""
    with served(store) as server:
        yield server


def open_call(tab: Tab) -> None:
    """Open the first call of the table that is done."""
    tab.until("document.querySelector('.row .badge.done')")
    tab.run("document.querySelector('.row:has(.badge.done) a[title^=train]').click()")
    tab.until("document.querySelectorAll('.panel .media').length === 4")


def check_panel(tab: Tab) -> None:
    """See that the panel shows the fields and each of the media, and runs nothing."""
    panel = tab.run(PANEL)
    assert "params.depth" in panel
    assert "sk-hidden" not in panel
    assert "epochs" in panel
    assert "A bold word." in panel
    assert "20 rows, 2 columns" in panel
    assert ["name", "loss", "a", "0.25"] == tab.run(
        "[...document.querySelectorAll('.media th, .media td')].map(e => e.innerText)"
    )
    tab.until(
        "[...document.querySelectorAll('.media img')]"
        ".every(image => image.complete && image.naturalWidth > 0)"
    )
    assert [1, 40] == tab.run(
        "[...document.querySelectorAll('.media img')].map(image => image.naturalWidth)"
    )
    assert not tab.run("'hit' in window")


def test_a_call_shows_its_fields_and_media(tab: Tab, server: Served) -> None:
    open_run(tab, server, "sweep")

    open_call(tab)

    check_panel(tab)


def open_report(tab: Tab, store: str, folder: Path) -> None:
    """Open a report of the run as a file."""
    with LMDBSaver(store, readonly=True, codec=InertCodec()) as saver:
        (folder / "report.html").write_text(run_report(saver, "sweep"))
    tab.open(f"file://{folder}/report.html#/run/sweep/calls")


def test_a_report_shows_them_too(tab: Tab, store: str, tmp_path: Path) -> None:
    open_report(tab, store, tmp_path)

    open_call(tab)

    check_panel(tab)


# ------------------------------------------------ columns


HEADS = "[...document.querySelectorAll('.heads > span')].map(e => e.textContent)"
CELLS = (
    "[...document.querySelectorAll('.rows .row')].sort((a, b) => "
    "a.dataset.index - b.dataset.index).map(row => [...row.children]"
    ".slice(4, -1).map(cell => cell.textContent).join(' '))"
)


def search(tab: Tab, text: str) -> None:
    """Type a text into the field for the search."""
    tab.run(
        f"""(() => {{ const field = document.querySelector('.bar input[type=search]');
            field.value = {text!r}; field.dispatchEvent(new Event('input')); }})()"""
    )


def press_head(tab: Tab, name: str) -> None:
    """Press the head of a column."""
    tab.run(
        "[...document.querySelectorAll('.heads button')]"
        f".find(button => button.textContent.match(/[a-z]+/)[0] === {name!r}).click()"
    )


def check_columns(tab: Tab) -> None:
    """See that calls are found, sorted and shown by their fields."""
    tab.until("document.querySelectorAll('.heads button').length === 6")
    assert [
        *("Call", "State", "Began", "Took"),
        *("depth", "rate", "api_key", "seed", "epochs", "loss"),
        "Error or progress",
    ] == tab.run(HEADS)
    search(tab, "depth:>8 loss:<0.2")
    tab.until("document.querySelectorAll('.rows .row').length === 1")
    assert ["12 0.01 <redacted> 2 8 0.12"] == tab.run(CELLS)
    search(tab, "task:train")
    tab.until("document.querySelectorAll('.rows .row').length === 4")
    press_head(tab, "loss")
    tab.until("document.querySelector('.heads').textContent.includes('loss ▲')")
    tab.until(f"{CELLS}[3].startsWith('12 0.01 <redacted> 1')")
    press_head(tab, "loss")
    tab.until("document.querySelector('.heads').textContent.includes('loss ▼')")
    tab.until(f"{CELLS}[0].endsWith('0.12')")
    assert tab.run(CELLS)[3].startswith("12 0.01 <redacted> 1")


def test_calls_are_shown_found_and_sorted_by_field(tab: Tab, server: Served) -> None:
    open_run(tab, server, "sweep")

    check_columns(tab)


def test_a_report_has_the_same_columns(tab: Tab, store: str, tmp_path: Path) -> None:
    open_report(tab, store, tmp_path)

    check_columns(tab)
