"""Runs of a program that kills itself, and is started again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.runs.stores import ROOT


def run_program(folder: Path, dies_at: int = 0) -> tuple[int, str]:
    """Run ``program.py`` in its folder; return its exit code, and what it printed.

    Args:
        folder: The folder of the program.
        dies_at: The value of ``DIES_AT``, at which the program kills itself; 0 for
            never.
    """
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DIES_AT": str(dies_at)},
    )
    return done.returncode, done.stdout.strip()
