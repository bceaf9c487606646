"""The tree works on any machine: no file names a folder of one, nor where packages come
from.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MACHINE_PATH = re.compile(
    r"""(?<![\w.~*)}>\]-])          # not the tail of a longer path or a pattern
        /(?:(?:home|Users)/[\w.-]+  # somebody's home
          |(?:root|work|opt)(?![\w-]))""",
    re.VERBOSE,
)
REGISTRIES = ["pypi", "pythonhosted", "npmjs", "anaconda", "crates"]
REGISTRY = re.compile(
    rf"\b(?:{'|'.join(REGISTRIES)})\.(?:org|com|io)\b|--(?:extra-)?index-url"
)


def tracked() -> list[Path]:
    """Return the files of the repository, those not yet committed included."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        ROOT / name
        for name in listing.stdout.split("\0")
        if name and (ROOT / name).is_file()
    ]


def findings(name: str, text: str) -> Iterator[str]:
    """Yield where *text* names a folder of one machine, or a package registry."""
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern in (MACHINE_PATH, REGISTRY):
            if found := pattern.search(line):
                yield f"{name}:{number}: {found.group()}"


def test_no_file_names_a_machine_or_a_registry() -> None:
    """Whoever checks the tree out needs nothing but what it says it needs."""
    files = tracked()
    assert ROOT / "pyproject.toml" in files

    found = [
        line
        for file in files
        for line in findings(
            str(file.relative_to(ROOT)), file.read_text("utf-8", "replace")
        )
    ]

    assert [] == found


@pytest.mark.parametrize(
    "parts",
    [
        ("see /", "home/ada/runs"),
        ("'/", "root/.cache'"),
        ("path=/", "opt/thing/bin"),
        ("cd /", "work"),
        ("/", "Users/ada"),
        ("https://", "pypi", ".org/simple"),
        ("pip install --", "index-url https://example.com"),
    ],
)
def test_a_machine_path_is_found(parts: tuple[str, ...]) -> None:
    """The check itself works. (The parts are joined here so that this file passes
    it.)
    """
    assert 1 == len(list(findings("f", "".join(parts))))


@pytest.mark.parametrize(
    "line",
    [
        "tests/work/file.py",
        "#!/usr/bin/env bash",
        "a/home/b",
        "$HOME/work",
        "either/or",
        "~/opt/x",
    ],
)
def test_other_paths_are_left_alone(line: str) -> None:
    """Relative paths, those below a variable, and those every system has are fine."""
    assert [] == list(findings("f", line))
