"""What the tests of the documentation site need; `tox -e site` has it.

Without zensical and mkdocstrings they are left out.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.site.building import Site, build

missing = [
    name
    for name in ("axe_playwright_python", "mkdocstrings", "websockets", "zensical")
    if find_spec(name) is None
]
collect_ignore_glob = ["test_*.py"] if missing else []


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The documentation site, built once for all tests."""
    return build(tmp_path_factory.mktemp("site"))
