"""What the tests of the page need; without the extra ``ui`` they are left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.page.browser import Browser, Tab

HERE = Path(__file__).parent
missing = [
    name for name in ("starlette", "uvicorn", "websockets") if find_spec(name) is None
]
collect_ignore_glob = ["test_*.py"] if missing else []
if missing:
    print(f"the tests of the page are left out: {', '.join(missing)} not installed")


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let servers keep what they have read in a folder of the tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def many_calls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a run of many calls, which is made once."""
    from tests.page.big import MANY, big_store

    return big_store(tmp_path_factory.mktemp("many") / "store", MANY)


_browsers = ExitStack()
"""Ends the browser, which all files of this folder share, and those that were lost."""
_started: list[Browser] = []


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A page for all tests of a file, with a cache and cookies of their own.

    A browser takes seconds of CPU once it has started, and another page few.
    """
    page = _new_page(tmp_path_factory)
    yield page
    page.close_profile()


def _new_page(tmp_path_factory: pytest.TempPathFactory) -> Tab:
    """Return a page of the shared browser, or of another one if that is lost."""
    from tests.page.browser import browser

    if _started and _started[0].is_lost:
        _started.clear()
        _browsers.close()
    if not _started:
        folder = tmp_path_factory.mktemp("profile")
        _started.append(_browsers.enter_context(browser(folder)))
    return _started[0].new_profile()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the browser before the tests of other folders begin."""
    if nextitem is None or HERE not in nextitem.path.parents:
        _started.clear()
        _browsers.close()


def pytest_sessionfinish() -> None:
    """End the browser of a run that stops before its last test, as with ``-x``."""
    _started.clear()
    _browsers.close()


@pytest.fixture
def quiet(tab: Tab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Begin with a plain window, and see that nothing was thrown or forbidden."""
    if tab.is_lost:
        tab.become(_new_page(tmp_path_factory))
    tab.look()
    tab.messages.clear()
    yield
    tab.leave()
    assert [] == tab.messages
