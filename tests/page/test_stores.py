"""One server shows several stores, each on a page of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from flowpregel import LMDBSaver
from flowpregel.errors import FlowPregelError
from flowpregel.plugins.page.stores import open_stores
from flowpregel.plugins.sqlite import SQLiteSaver
from tests.page.browser import NEEDS_CHROMIUM, Tab, attempts
from tests.page.serving import Served, served_together
from tests.page.stores import plain_store, sums

NAMES = "[...document.querySelectorAll('tbody a')].map(link => link.text)"
pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """A store in a folder, another of the same name, and a SQLite file."""
    second = tmp_path / "other" / "store"
    with LMDBSaver(second) as saver:
        sums.copy({"checkpointer": saver}).run([5], id="only here")
    database = tmp_path / "runs.db"
    with SQLiteSaver(database) as saver:
        flow = sums.copy({"checkpointer": saver})
        flow.run([1], id="in a database")
    return [plain_store(tmp_path / "store"), str(second), f"sqlite:///{database}"]


@pytest.fixture
def server(paths: list[str]) -> Iterator[Served]:
    """The pages of all stores, with buttons."""
    with served_together(*paths, actions=True) as server:
        yield server


def runs_of(server: Served, prefix: str) -> list[str]:
    """Return the ids of the runs of a store, sorted."""
    answer = server.ask(f"{prefix}/api/runs")
    assert 200 == answer.status, answer.body
    return sorted(run["thread_id"] for run in json.loads(answer.body)["runs"])


def arrive(tab: Tab, path: str) -> None:
    """Wait until a press has led to another page, whose scripts are loaded.

    An expression that is evaluated while the browser leaves a page fails.
    """
    is_there = f"location.pathname === {path!r} && document.readyState === 'complete'"
    for _ in attempts(f"a press to lead to {path}"):
        with suppress(AssertionError):
            if tab.run(is_there):
                break


def test_each_store_has_a_path(server: Served) -> None:
    assert ["adds", "asks", "divides"] == runs_of(server, "")
    assert ["only here"] == runs_of(server, "/stores/store-2")
    assert ["in a database"] == runs_of(server, "/stores/runs.db")
    page = json.loads(server.ask("/stores/runs.db/api/runs").body)
    assert ["store", "store-2", "runs.db"] == page["stores"]
    assert "runs.db" == page["name"]
    assert 404 == server.ask("/stores/elsewhere/api/runs").status


@pytest.mark.parametrize("prefix", ["/stores/store-2", "/stores/runs.db"])
def test_each_page_is_guarded_as_that_of_one_store(server: Served, prefix: str) -> None:
    """Its answers are not stored, and it has no other paths that accept data."""
    assert 401 == server.ask(f"{prefix}/api/runs", cookie=None).status
    assert "no-store" == server.ask(f"{prefix}/api/runs").headers["cache-control"]
    file = server.ask(f"{prefix}/static/main.js")
    assert (200, "no-cache") == (file.status, file.headers["cache-control"])
    assert 405 == server.ask(f"{prefix}/api/runs", "POST", b"{}").status
    body = json.dumps({"thread": "no such run"}).encode()
    assert 202 == server.ask(f"{prefix}/api/actions/cancel", "POST", body).status


def test_a_store_that_cannot_be_opened_is_left_out(
    paths: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing")
    with ExitStack() as resources:
        stores = open_stores([missing, *paths], resources, actions=False)
        names = [(store.name, store.prefix) for store in stores]

    assert ("store", "") == names[0]
    assert ["/stores/store-2", "/stores/runs.db"] == [prefix for _, prefix in names[1:]]
    assert "left out: there is no store at" in capsys.readouterr().err
    with ExitStack() as resources, pytest.raises(FlowPregelError, match="no store at"):
        open_stores([missing], resources, actions=False)


def test_the_switch_leads_to_another_store(tab: Tab, server: Served) -> None:
    tab.open(server.address)
    tab.until(f"{NAMES}.includes('adds')")
    tab.hold(".store nav a:nth-child(2)")
    arrive(tab, "/stores/store-2/")
    tab.until(f"{NAMES}.includes('only here')")
    assert "store-2" == tab.run("document.querySelector('.store [aria-current]').text")
    tab.hold("tbody a")
    tab.until("document.querySelector('.head .badge')")
    assert "/stores/store-2/" == tab.run("location.pathname")
    tab.until("document.querySelector('#link.on')")

    tab.hold(".store nav a:nth-child(1)")
    arrive(tab, "/")
    tab.until(f"{NAMES}.includes('adds')")
    assert "/" == tab.run("location.pathname")


def test_a_button_works_on_its_own_store(tab: Tab, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        with LMDBSaver(path) as saver:
            flow = sums.copy({"checkpointer": saver})
            flow.enqueue([1], id="same")
    with served_together(*paths, actions=True) as server:
        tab.open(server.address)
        tab.until(f"{NAMES}.includes('same')")
        tab.open(f"{server.origin}/stores/b/#/run/same")
        tab.hold(".head .buttons button")
        tab.until(
            "document.querySelector('.head .badge') && "
            "document.body.innerText.includes('It is paused')"
        )

    for path, expected in zip(paths, (set(), {"same"}), strict=True):
        with LMDBSaver(path, readonly=True) as saver:
            assert expected == set(saver.paused().threads)


def test_a_store_that_vanishes_does_not_disturb_the_others(
    tab: Tab, server: Served, paths: list[str]
) -> None:
    tab.open(server.address)
    tab.until(f"{NAMES}.includes('adds')")
    tab.open(f"{server.origin}/stores/store-2/")
    tab.until("document.querySelector('#link.on')")
    shutil.rmtree(paths[1])
    tab.until("document.querySelector('#banner').innerText.includes('was deleted')")

    tab.hold(".store nav a:nth-child(3)")
    arrive(tab, "/stores/runs.db/")
    tab.until(f"{NAMES}.includes('in a database')")
    tab.until("document.querySelector('#link.on')")
    assert tab.run("document.querySelector('#banner').hidden")
    assert ["adds", "asks", "divides"] == runs_of(server, "")
    # A question that the page asked while the store vanished.
    assert all("500" in message for message in tab.messages)
    tab.messages.clear()
