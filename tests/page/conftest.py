"""What the tests of the page need; without the extra ``ui`` they are left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.page.browser import Tab

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


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A page of one browser for all tests of a file."""
    from tests.page.browser import browser

    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def quiet(tab: Tab) -> Iterator[None]:
    """Begin with a plain window, and see that nothing was thrown or forbidden."""
    tab.look()
    tab.messages.clear()
    yield
    tab.open("about:blank")
    tab.until("location.href === 'about:blank'")
    assert [] == tab.messages
