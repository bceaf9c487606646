"""The driver of the browser: what ends or hangs is noticed at once, and replaced."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page import browser as driver
from tests.page.browser import NEEDS_CHROMIUM, Browser, BrowserLostError, browser

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
HELLO = "data:text/html,<p>hello"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for the tests after which it goes on."""
    with browser(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


def test_a_page_that_crashes_is_an_error_at_once(chromium: Browser) -> None:
    """And the browser goes on with another page."""
    with chromium.profile() as tab:
        with pytest.raises(BrowserLostError, match="the page has crashed"):
            tab.send("Page.crash")
        is_lost = tab.is_lost
        tab.become(chromium.new_profile())
        tab.open(HELLO)

        assert is_lost
        assert not tab.is_lost
        assert not chromium.is_lost
        assert "hello" == tab.run("document.body.innerText")


def test_a_browser_that_ends_is_an_error_at_once(tmp_path: Path) -> None:
    with browser(tmp_path) as chromium, chromium.profile() as tab:
        os.kill(chromium.process_id, signal.SIGKILL)
        with pytest.raises(BrowserLostError, match="the browser has ended"):
            tab.run("new Promise(() => {})")

        assert tab.is_lost
        assert chromium.is_lost


def test_a_browser_that_hangs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with browser(tmp_path) as chromium, chromium.profile() as tab:
        number = chromium.process_id
        monkeypatch.setattr(driver, "_SILENCE", 0.05)
        monkeypatch.setattr(driver, "_MOST_QUESTIONS", 2)
        os.kill(number, signal.SIGSTOP)
        with pytest.raises(BrowserLostError, match="the browser does not answer"):
            tab.run("1 + 1")
        os.kill(number, signal.SIGKILL)

        assert chromium.is_lost


def test_a_page_that_hangs_is_found_and_the_browser_is_kept(
    chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chromium.profile() as tab:
        monkeypatch.setattr(driver, "_SILENCE", 0.05)
        monkeypatch.setattr(driver, "_PATIENCE", 0.1)
        monkeypatch.setattr(driver, "_MOST_QUESTIONS", 1_000)
        with pytest.raises(BrowserLostError, match="the page does not answer Runtime"):
            tab.run("(() => { for (;;); })()")

        assert tab.is_lost
        assert not chromium.is_lost


def test_a_dialog_is_closed_and_noted(chromium: Browser) -> None:
    """A page with an open dialog answers nothing."""
    with chromium.profile() as tab:
        tab.open(HELLO)
        answer = tab.run("confirm('Really?')")

        assert answer is True
        assert ["a dialog: Really?"] == tab.messages


def test_a_browser_that_does_not_begin_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho no display >&2\n")
    program.chmod(0o700)
    monkeypatch.setattr(driver, "CHROMIUM", str(program))
    words = re.escape("the browser has not begun:\nno display")
    with pytest.raises(BrowserLostError, match=words), browser(tmp_path):
        pass


def test_a_press_follows_an_element_that_moves_away(chromium: Browser) -> None:
    """As when a card above it appears while the mouse comes near."""
    with chromium.profile() as tab:
        tab.open(
            "data:text/html,<div id=above></div><button>go</button><script>"
            "addEventListener('mousemove', () => { above.style.height = '200px'; });"
            "window.clicks = 0; document.querySelector('button').onclick = "
            "() => { window.clicks += 1; };</script>"
        )
        tab.hold("button")

        assert 1 == tab.run("window.clicks")


def test_a_press_that_a_page_loses_is_not_repeated(chromium: Browser) -> None:
    """A page that draws an element anew under the mouse fails its tests."""
    with chromium.profile() as tab:
        tab.open(
            "data:text/html,<button>go</button><script>"
            "window.presses = window.clicks = 0;"
            "addEventListener('click', event => {"
            " window.clicks += event.target.matches('button'); });"
            "addEventListener('mousedown', event => {"
            " window.presses += 1;"
            " event.target.replaceWith(event.target.cloneNode(true)); });</script>"
        )
        tab.hold("button")

        assert 1 == tab.run("window.presses")
        assert 0 == tab.run("window.clicks")


def test_a_page_that_is_loaded_again_is_another_one(
    chromium: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text("<p>hello")
    with chromium.profile() as tab:
        tab.open(f"{page.as_uri()}#part")
        tab.run("window.isOld = true")
        tab.reload()

        assert tab.run("window.isOld === undefined")
        assert "hello" == tab.run("document.body.innerText")
