"""The built site in a real browser: search, dark pages, small screens, accessibility.

With FLOWPREGEL_SITE_PICTURES=FOLDER what is seen is written there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.page.browser import NEEDS_CHROMIUM, Tab, browser
from tests.site.building import Site

PICTURES = os.environ.get("FLOWPREGEL_SITE_PICTURES")
PAGES = {
    "front": "",
    "how-to": "how-to/retry/",
    "api": "reference/api/flowpregel.func/",
    "tables": "reference/errors/",
    "figures": "explanation/performance/",
}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"dark": True},
    "phone": {"width": 390, "height": 844},
}
SEARCHES = {
    "slurm": "Time limits and SLURM",
    "rate limit": "Resources and rate limits",
    "resume": "Resume a run",
    "progress bar": "Progress bars",
    "notification": "Notifications",
    "stop after four hours on SLURM": "Questions and troubleshooting",
    "rate limit of 60 a minute": "Resources and rate limits",
    "resume after I renamed the function": "Questions and troubleshooting",
    "human in the loop": "Human in the loop",
    "migrate from langgraph": "Move from LangGraph",
    "why is a run waiting": "Progress bars",
}
RESULTS = """[...document.querySelectorAll("div")].map(host => host.shadowRoot)
    .flatMap(root => root ? [...root.querySelectorAll("[role=option]")] : [])
    .map(result => result.innerText)"""

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
]


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A page of one browser for all tests."""
    folder = tmp_path_factory.mktemp("profile")
    with browser(folder) as chromium, chromium.profile() as tab:
        yield tab


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    """The address under which the site is served."""
    handler = partial(_QuietHandler, directory=str(site.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def open_page(tab: Tab, address: str, look: str) -> None:
    """Open a page, and wait until its scripts have set it up."""
    tab.look(**LOOKS[look])
    tab.open(address)
    tab.until(
        "document.querySelector('.md-search__button') && Boolean(window.document$)"
    )


def keep_picture(tab: Tab, name: str) -> None:
    """Write what is seen, if pictures are wanted."""
    if PICTURES:
        tab.picture(Path(PICTURES) / f"{name}.png")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("page", PAGES)
def test_axe_has_no_serious_finding(
    tab: Tab, address: str, page: str, look: str
) -> None:
    """Contrast, names and the keyboard suit every reader."""
    open_page(tab, address + PAGES[page], look)
    keep_picture(tab, f"{page}-{look}")
    package = find_spec("axe_playwright_python")
    assert package is not None
    assert package.submodule_search_locations is not None
    (folder,) = package.submodule_search_locations
    tab.run((Path(folder) / "axe.min.js").read_text("utf-8"))

    findings = tab.run(
        """axe.run(document).then(report => report.violations
            .filter(rule => ["serious", "critical"].includes(rule.impact))
            .map(rule => [rule.id, rule.nodes[0].html]))"""
    )

    assert [] == findings


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_a_phone(tab: Tab, address: str, page: str) -> None:
    """Only tables and code scroll sideways, never the page."""
    open_page(tab, address + PAGES[page], "phone")

    assert 390 >= tab.run("document.documentElement.scrollWidth")


def test_a_page_loads_only_files_of_the_site(tab: Tab, address: str) -> None:
    """Fonts, scripts and the search index come from the site's own server."""
    open_page(tab, address, "light")

    loaded = tab.run(
        "performance.getEntriesByType('resource').map(entry => entry.name)"
    )

    assert loaded
    assert [] == [name for name in loaded if not name.startswith(address)]
    assert [] == tab.messages


@pytest.mark.parametrize("words", SEARCHES)
def test_a_search_finds_the_page_by_the_words_of_its_reader(
    tab: Tab, address: str, words: str
) -> None:
    """The page is among the first three results."""
    open_page(tab, address, "light")
    tab.run("document.querySelector('.md-search__button').click()")
    tab.until(
        """[...document.querySelectorAll("div")].some(
            host => host.shadowRoot?.activeElement?.matches("input"))"""
    )
    tab.send("Input.insertText", text=words)

    title = json.dumps(SEARCHES[words])
    tab.until(f"{RESULTS}.slice(0, 3).some(text => text.includes({title}))")
    keep_picture(tab, f"search-{words.replace(' ', '-')}")
