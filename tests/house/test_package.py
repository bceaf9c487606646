"""The package's data: what it declares is the same in every place that states it."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.benchmarks import origins
from tests.package.__main__ import (
    NAMES,
    RESULTS,
    marks_older_figures,
    missing_addresses,
    missing_pages,
    mistakes_in,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
ADDRESS = re.compile(rf'^({"|".join(NAMES)}) = "[^"]*"', re.MULTILINE)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree whose addresses are filled in."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    filled = ADDRESS.sub(r'\1 = "https://example.org/\1"', text)
    (tmp_path / "pyproject.toml").write_text(filled, "utf-8")
    return tmp_path


def test_the_extra_of_the_tests_is_their_group() -> None:
    """README's line installs the extra; tox and other tools know the group."""
    extra = PROJECT["project"]["optional-dependencies"]["test"]

    assert PROJECT["dependency-groups"]["test"] == extra


def test_the_same_versions_of_python_are_declared_and_tested() -> None:
    declared = re.findall(
        r"Python :: (3\.\d\d)", "\n".join(PROJECT["project"]["classifiers"])
    )
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    environments = re.findall(r"\bpy3(\d\d)\b", tox["tox"]["env_list"])
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    matrix = re.findall(r"3\.\d\d", re.findall(r"python: \[(.*)\]", workflow)[0])

    assert ["3.11", "3.12", "3.13", "3.14"] == declared
    assert declared == matrix
    assert declared == [f"3.{minor}" for minor in environments]


@pytest.mark.parametrize("name", NAMES)
def test_a_release_needs_each_address(tree: Path, name: str) -> None:
    file = tree / "pyproject.toml"
    assert [] == missing_addresses(tree)

    file.write_text(file.read_text("utf-8").replace(f"https://example.org/{name}", ""))

    assert [name] == missing_addresses(tree)


def test_a_release_needs_pages_that_mark_older_figures(tree: Path) -> None:
    """A change of code after the pages were written asks for new marks."""
    module, results = tree / "flowpregel/module.py", tree / RESULTS
    for file in (module, results):
        file.parent.mkdir(parents=True)
    module.write_text("x = 1\n", "utf-8")
    written = {"package": origins.package_digest(tree)}
    results.write_text(json.dumps({"written": written}), "utf-8")
    assert marks_older_figures(tree)

    module.write_text("x = 2\n", "utf-8")

    assert not marks_older_figures(tree)


def test_the_index_page_of_a_release_has_no_relative_link() -> None:
    """Nor does the metadata lack a URL, or have another version."""
    metadata = {"Metadata-Version": "2.4"}

    class Page(dict[str, str]):
        def get_payload(self) -> str:
            return "[one](docs/one.md) [two](https://example.org/two) [three](#three)"

        def get_all(self, name: str) -> list[str]:
            return [f"{label}, https://example.org" for label in NAMES]

    assert [] == mistakes_in(Page(metadata), release=False)
    assert ["a link of the index page is not absolute: docs/one.md"] == mistakes_in(
        Page(metadata), release=True
    )
    assert ["the metadata has version 2.5"] == mistakes_in(
        Page({"Metadata-Version": "2.5"}), release=False
    )


def test_a_wheel_has_each_page_of_the_navigation(tmp_path: Path) -> None:
    """The check itself works: a page that is missing is named."""
    wheel = tmp_path / "some.whl"
    names = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    with ZipFile(wheel, "w") as archive:
        for name in names:
            if name != "how-to/retry.md":
                archive.writestr(f"flowpregel/_docs/{name}", "")

    assert ["how-to/retry.md"] == missing_pages(wheel)


@pytest.mark.slow
def test_the_package_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "flowpregel", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert result.stdout.startswith("Usage: flowpregel ")
