"""No part of the tests is left out in silence: CI knows each skip that it may meet."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import skips

ROOT = Path(__file__).parents[2]
PROGRAM = """
import pytest

def test_that_is_left_out():
    pytest.skip({reason!r})
"""


def test_each_pattern_is_a_regular_expression_under_a_known_condition() -> None:
    """A typing error in the list would let a skip pass, or refuse one, without a
    word.
    """
    for pattern in skips.expected_patterns(
        dict.fromkeys(skips.CONDITIONS, lambda: True)
    ):
        re.compile(pattern)


def test_a_reason_is_expected_from_its_beginning() -> None:
    """A reason is compared from its first character, and reported once."""
    assert ["no disk"] == skips.unexpected(
        ["needs 16 GiB of memory", "no disk", "no disk"], [r"needs \d+ GiB", "disk"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "ci", "code"),
    [
        ("the moon is full", "true", 1),
        ("a sync run refuses async nodes", "true", 0),
        ("the moon is full", "", 0),
    ],
)
def test_only_ci_refuses_a_skip_that_is_not_listed(
    reason: str, ci: str, code: int, tmp_path: Path
) -> None:
    """A developer without a browser still gets a green run; CI does not."""
    program = tmp_path / "test_program.py"
    program.write_text(PROGRAM.format(reason=reason), "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-c",
        "pyproject.toml",
    ]

    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-o", "pythonpath=.", str(program)],
        cwd=ROOT,
        env={**os.environ, "CI": ci, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert code == done.returncode, done.stdout + done.stderr
    assert bool(code) == ("skips that are not in" in done.stdout)
