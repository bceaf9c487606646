"""Programs that import LangGraph, in processes of their own, with and without the
hook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.runs.forked_programs import ProgramServer
from tests.runs.stores import ROOT

HOOK = ("-m", "flowpregel.langgraph")

HIDE = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""
"""The beginning of a program in which the packages in ``HIDDEN`` are not installed."""


def run_python(
    *arguments: str | Path,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Python with *arguments*, and return how it ended.

    Args:
        arguments: The arguments of the interpreter.
        cwd: The working folder.
        variables: Environment variables, in addition to those of this process.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})},
    )


def outcomes_of(*program: str, executor: str | None = None) -> list[Any]:
    """Return the outcomes that a program prints, one a line.

    Args:
        program: The module of the program, and its arguments.
        executor: The executor of flowpregel that runs the nodes; None for LangGraph.
    """
    options = () if executor is None else HOOK
    variables = {"FLOWPREGEL_EXECUTOR": executor or ""}
    done = run_python(*options, "-m", *program, variables=variables)
    assert 0 == done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def output_of_code(
    code: str, *, hidden: tuple[str, ...] = (), programs: ProgramServer | None = None
) -> list[str]:
    """Return the lines that *code* prints.

    Args:
        code: The program.
        hidden: Packages that the program finds not installed.
        programs: The process that forks the program; None for an interpreter of its
            own.
    """
    head = f"HIDDEN = {hidden!r}\n{HIDE}\n" if hidden else ""
    program = head + code
    done = run_python("-c", program) if programs is None else programs.run(program)
    assert 0 == done.returncode, done.stderr
    return done.stdout.splitlines()
