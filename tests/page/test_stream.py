"""The connection of the tabs to the server: one for all, and what ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.page.browser import NEEDS_CHROMIUM, Tab, open_run
from tests.page.serving import Served, served
from tests.page.stores import ROOT, plain_store

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.usefixtures("quiet"),
]
LINK = "document.querySelector('#link').textContent"
BANNER = "document.querySelector('#banner:not([hidden])')?.textContent ?? ''"
STREAMS = """(async () => {
    const { held } = await navigator.locks.query();
    return held.filter(lock => lock.name === "flowpregel news").length;
})()"""
HIDE = """Object.defineProperty(document, "hidden", { value: %s, configurable: true });
document.dispatchEvent(new Event("visibilitychange"));"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a run that is done, one that failed and one that waits."""
    return plain_store(tmp_path / "store")


@pytest.fixture
def server(store: str) -> Iterator[Served]:
    """The page of that store."""
    with served(store) as server:
        yield server


def run_again(store: str, name: str, numbers: list[int]) -> None:
    """Run a flow in the store, in another process."""
    flow = ["tests.page.stores:sums", f"--id={name}", f"--input={numbers}", "--again"]
    subprocess.run(
        [sys.executable, "-m", "flowpregel.cli", "run", *flow, f"--store={store}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )


@contextmanager
def others(tab: Tab, number: int) -> Iterator[list[Tab]]:
    """Open further tabs, and close those that are left."""
    tabs = [tab.another() for _ in range(number)]
    try:
        yield tabs
    finally:
        for each in tabs:
            each.close()


def sees(tab: Tab, name: str) -> None:
    """Wait until a list shows a run."""
    tab.until(f"document.querySelector('[data-run={json.dumps(name)}]')")


def open_list(tab: Tab, server: Served) -> None:
    """Open the list of runs, and wait for it."""
    tab.open(server.address)
    sees(tab, "adds")
    tab.until(f"{LINK} === 'live'")


def test_seven_tabs_follow_over_one_connection(tab: Tab, server: Served) -> None:
    """A browser opens six to a server, so seven streams would be one too many."""
    with others(tab, 7) as tabs:
        for each in tabs[:4]:
            open_list(each, server)
        for each in tabs[4:]:
            open_run(each, server, "adds")
            each.until(f"{LINK} === 'live'")
        assert 1 == tabs[0].run(STREAMS)
        run_again(server.store, "later", [1])
        for each in tabs[:4]:
            sees(each, "later")
        run_again(server.store, "adds", [5, 6, 7, 8])
        for each in tabs[4:]:
            each.until("document.querySelectorAll('.rows .row').length === 5")
        assert 1 == tabs[0].run(STREAMS)


def test_another_tab_takes_over_from_one_that_is_closed(
    tab: Tab, server: Served
) -> None:
    first = tab.another()
    open_list(first, server)
    open_list(tab, server)
    first.close()
    run_again(server.store, "later", [1])

    sees(tab, "later")


def test_a_tab_that_is_hidden_follows_nothing(tab: Tab, server: Served) -> None:
    """It catches up when it is seen again."""
    open_list(tab, server)
    tab.run(HIDE % "true")
    while tab.run(STREAMS):
        tab.until("true")
    run_again(server.store, "later", [1])
    assert not tab.run("document.querySelector('[data-run=later]')")
    tab.run(HIDE % "false")

    sees(tab, "later")


def test_a_server_that_is_started_again_is_found(tab: Tab, store: str) -> None:
    """Under the same address, in each tab; until then a banner tells what to type."""
    with others(tab, 1) as [other]:
        with served(store) as server:
            open_run(tab, server, "asks")
            open_list(other, server)
            address = tab.run("location.href")
        for each in (tab, other):
            each.until(f"({BANNER}).includes('has ended')")
            assert f"flowpregel ui x --port {server.port} " in each.run(BANNER)
        run_again(store, "later", [1])
        with served(store, port=server.port, token=server.guard.token):
            for each in (tab, other):
                each.until(f"({BANNER}) === '' && {LINK} === 'live'")
            sees(other, "later")
            tab.open(address)
            tab.until("document.querySelector('h1').textContent === 'asks'")
            tab.until("document.querySelector('.question')")


def test_a_server_with_another_secret_is_told_from_one_that_has_ended(
    tab: Tab, store: str
) -> None:
    with served(store) as server:
        open_list(tab, server)
    with served(store, port=server.port):
        tab.until(f"({BANNER}).includes('is no longer valid')")
    tab.open("about:blank")
    assert all("401" in message for message in tab.messages)
    tab.messages.clear()


def test_a_store_that_vanishes_is_told_until_it_is_there_again(
    tab: Tab, server: Served
) -> None:
    open_list(tab, server)
    os.rename(server.store, f"{server.store}.away")
    tab.until(f"({BANNER}).includes('was deleted or moved')")
    os.mkdir(server.store)
    tab.until(f"({BANNER}).includes('Another store has replaced')")
    os.rmdir(server.store)
    os.rename(f"{server.store}.away", server.store)

    tab.until(f"({BANNER}) === '' && {LINK} === 'live'")
    # A question that the page asked while the store vanished.
    assert all("500" in message for message in tab.messages)
    tab.messages.clear()
