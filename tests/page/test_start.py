"""A run is started by a form, which has the fields of its flow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver
from tests.page.browser import NEEDS_CHROMIUM, Tab
from tests.page.serving import Served, result_of, served
from tests.page.start_flows import Optimizer, Params, sweep
from tests.page.stores import ROOT, running_python

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of each flow, which is made once."""
    store = tmp_path_factory.mktemp("start") / "store"
    with LMDBSaver(store) as saver:
        flow = sweep.copy({"checkpointer": saver})
        flow.run(Params(0.5, tags=["a"]), Optimizer.SGD, note="first", id="sweep-1")
    # The command records the variable of a graph.
    words = ["run", "tests.page.start_flows:counting", "--input", '{"count": 4}']
    words += ["--id=count-1", f"--store={store}"]
    with running_python("-m", "flowpregel.cli", *words, cwd=ROOT) as process:
        assert 0 == process.wait()
    return store


@pytest.fixture
def server(store: Path, tmp_path: Path) -> Iterator[Served]:
    """The page of a copy of that store."""
    copied = shutil.copytree(store, tmp_path / "store")
    with served(str(copied), actions=True) as server:
        yield server


def open_form(tab: Tab, server: Served, hash: str) -> None:
    """Open a form, and wait for it."""
    tab.open(server.address)
    tab.until("document.querySelector('tbody a')")
    tab.run(f"location.hash = {json.dumps(hash)}")
    tab.until("document.querySelector('.start input')")


def value_of(tab: Tab, name: str) -> Any:
    """Return the value of a field."""
    return tab.run(f"document.querySelector('form').elements['{name}'].value")


def enter(tab: Tab, name: str, text: str) -> None:
    """Replace the text of a field, as a person does."""
    tab.hold(f"[name='{name}']")
    tab.run("document.activeElement.select()")
    tab.type(text)
    tab.until(f"document.querySelector('form').elements['{name}'].value === '{text}'")


def test_a_run_is_started_with_the_defaults_and_some_values(
    tab: Tab, server: Served
) -> None:
    tab.open(server.address)
    tab.hold("[aria-label$=':sweep'] .flow-head a.button")
    tab.until("document.querySelector('.start input')")
    assert "Train a model." in tab.run("document.querySelector('.head').innerText")
    assert ["", "3", "[]"] == [
        value_of(tab, f"params.{name}") for name in ("rate", "depth", "tags")
    ]
    assert '"fast"' == value_of(tab, "mode")
    assert "sweep-2" == value_of(tab, "id")

    enter(tab, "params.rate", "2")
    line = tab.run("document.querySelector('.start pre').textContent")
    assert '--arguments \'{"params": {"rate": 2, "depth": 3, "tags": []}' in line
    assert f"--id sweep-2 --folder {Path(__file__).parents[2]} --store" in line
    tab.hold(".start .button.main")
    tab.until("document.querySelector('#run-title')?.textContent === 'sweep-2'")

    expected = [6.0, "ADAM", "fast", False, None, (1, 2)]
    assert expected == result_of(server, "sweep-2")


def test_a_run_is_started_again_with_other_values(tab: Tab, server: Served) -> None:
    """The form has the values of the run from which it was opened."""
    tab.open(f"{server.origin}/?token={server.guard.token}#/run/sweep-1")
    tab.hold(".head .buttons a")
    tab.until("document.querySelector('.start input')")
    assert ["0.5", "3", '["a"]', '"sgd"', "first", "[1,2]"] == [
        value_of(tab, name)
        for name in (
            "params.rate",
            "params.depth",
            "params.tags",
            "optimizer",
            "note",
            "sizes",
        )
    ]

    enter(tab, "params.depth", "4")
    tab.hold("[name=is_long]")
    enter(tab, "note", "@second '$(touch hit)'".replace("'", '"'))
    enter(tab, "id", "another")
    tab.hold(".start .button.main")
    tab.until("document.querySelector('#run-title')?.textContent === 'another'")

    note = '@second "$(touch hit)"'
    expected = [2.0, "SGD", "fast", True, note, (1, 2)]
    assert expected == result_of(server, "another")


def test_what_cannot_be_used_is_told_beside_its_field(tab: Tab, server: Served) -> None:
    """By the page, and by the command."""
    open_form(tab, server, "#/start/sweep-1")
    enter(tab, "params.rate", "fast")
    enter(tab, "sizes", "[1,")
    enter(tab, "id", "sweep-1")
    tab.hold(".start .button.main")
    tab.until("document.querySelectorAll('.start .error').length === 2")
    assert "params.rate" == tab.run("document.activeElement.name")
    told = "document.getElementById('field-params-rate-problem').textContent"
    assert "Must be a number" == tab.run(told)

    enter(tab, "params.rate", "1")
    enter(tab, "sizes", "[1]")
    tab.hold(".start .button.main")
    tab.until("document.getElementById('field-id-problem')?.textContent")

    enter(tab, "id", "sweep-2")
    enter(tab, "sizes", '["x"]')
    tab.hold(".start .button.main")
    told = "document.getElementById('field-sizes-problem')?.textContent"
    tab.until(f"""{told} === "must be a whole number, not 'x'" """)
    assert "sizes" == tab.run("document.activeElement.name")
    assert not tab.run("document.querySelector('[aria-busy]')")


def test_a_run_is_enqueued(tab: Tab, server: Served) -> None:
    open_form(tab, server, "#/start/sweep-1")
    tab.hold(".start .answer .button:not(.main)")
    tab.until("document.querySelector('#run-title')?.textContent === 'sweep-2'")

    tab.until("document.querySelector('.head .badge').innerText.includes('enqueued')")


def test_a_graph_has_the_keys_of_its_state(tab: Tab, server: Served) -> None:
    open_form(tab, server, "#/start/count-1")
    assert "4" == value_of(tab, "count")
    assert not tab.run("document.querySelector('.start .answer .button:not(.main)')")

    enter(tab, "count", "6")
    tab.hold(".start .button.main")
    tab.until("document.querySelector('#run-title')?.textContent === 'count-2'")
    tab.until("document.querySelector('.head .badge').innerText.includes('done')")


def test_a_flow_without_runs_is_started_if_it_is_offered(
    tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server imports nothing: commands do, in the folder of the server."""
    monkeypatch.chdir(ROOT)
    store = str(tmp_path / "store")
    LMDBSaver(store).close()
    flow = "tests.page.start_flows:sweep"
    with served(store, actions=True, flows=[flow]) as server:
        tab.open(server.address)
        tab.hold("[aria-label='Start a run'] a")
        tab.until("document.querySelector('.start input')")
        assert "sweep" == value_of(tab, "id")
        assert "Train a model." in tab.run("document.querySelector('.head').innerText")
        enter(tab, "params.rate", "2")
        tab.hold(".start .button.main")
        tab.until("document.querySelector('#run-title')?.textContent === 'sweep'")

        assert 6.0 == result_of(server, "sweep")[0]
        body = {"flow": flow, "action": "run", "name": "x", "values": "{}"}
        for changes in ({"flow": "os:system"}, {"thread": "sweep"}, {"flow": ""}):
            words = {"option": "--arguments", **body, **changes}
            answer = server.ask("/api/start", "POST", json.dumps(words).encode())
            assert 400 == answer.status, answer.body


def test_a_browser_cannot_name_a_flow(server: Served) -> None:
    """Only a run of the store names one, and only texts and JSON are accepted."""
    usual = {"thread": "sweep-1", "action": "run", "name": "x", "values": "{}"}
    for changes in (
        {"thread": "os:system"},
        {"action": "rm"},
        {"option": "--store"},
        {"values": "@/etc/passwd"},
        {"name": ""},
        {"flow": "os:system"},
    ):
        body = {"option": "--arguments", **usual, **changes}
        answer = server.ask("/api/start", "POST", json.dumps(body).encode())
        assert 400 == answer.status, answer.body
    assert server.actions is not None
    assert [] == server.actions.commands()
