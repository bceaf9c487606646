"""The type checkers agree with the marks in `mistakes.py`: each mistake, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("mistakes.py")


def marked() -> set[int]:
    """Return the lines that are marked as mistakes."""
    lines = FILE.read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if "# mistake: " in line}


def run(*words: str) -> str:
    """Return what a checker prints; which code it ends with does not matter."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_refuses_each_mistake_and_nothing_else() -> None:
    """With the settings of the project, which are strict."""
    name = str(FILE.relative_to(ROOT))
    shown = run("mypy", "--no-warn-unused-ignores", "--no-error-summary", name)

    errors = re.findall(rf"^{re.escape(name)}:(\d+): error", shown, re.MULTILINE)
    assert marked() == {int(number) for number in errors}, shown
    assert shown.count("error:") == len(errors), shown


@pytest.mark.slow
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_pyright_refuses_each_mistake_and_nothing_else() -> None:
    """With the settings of the project."""
    shown = json.loads(run("basedpyright", "--outputjson", str(FILE)))

    errors = [each for each in shown["generalDiagnostics"] if each["severity"] == "error"]
    assert marked() == {each["range"]["start"]["line"] + 1 for each in errors}, errors


def test_there_are_enough_mistakes() -> None:
    """A file without marks would let both pass."""
    assert 15 <= len(marked())
