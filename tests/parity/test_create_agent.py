"""LangChain's `create_agent` on both engines: the same messages, questions, streams."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("langchain") is None,
        reason="langchain is not installed",
    ),
]
ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: str, **variables: str) -> Any:
    """Run a module of the tests in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", f"tests.parity.{module}", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@cache
def results_of(engine: str, drive: str, executor: str = "inline") -> Any:
    """Return what the programs show on an engine."""
    done = run("run_agents", engine, drive, FLOWPREGEL_EXECUTOR=executor)
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("drive", ["sync", "async"])
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_agents_do_what_they_do_on_langgraph(executor: str, drive: str) -> None:
    """Tools, forms, middleware, questions, streams, several agents."""
    theirs = results_of("langgraph", drive)
    ours = dict(results_of("flowpregel", drive, executor))

    if executor == "processes" and drive == "sync":
        # The error cannot leave the worker process, so another one names it.
        assert "ToolCallLimitExceededError" in ours.pop("strict_limit")
        theirs = {name: theirs[name] for name in theirs if name in ours}
    assert theirs.keys() == ours.keys()
    assert [] == [name for name in theirs if theirs[name] != ours[name]]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_an_agent_that_is_killed_in_a_tool_resumes(
    executor: str, tmp_path: Path
) -> None:
    """The tools that have answered are not called again, nor is the model asked
    again.
    """
    first, second = (
        run("killed_agent", executor, AGENT_FOLDER=str(tmp_path)) for _ in range(2)
    )

    assert -signal.SIGKILL == first.returncode, first.stderr
    assert 0 == second.returncode, second.stderr
    assert "'paid 90', 'Done.']" in second.stdout
    assert ["Ritz", "Savoy"] == (tmp_path / "book").read_text().split()
    assert ["90", "90"] == (tmp_path / "pay").read_text().split()
    assert 4 == len((tmp_path / "model").read_text().splitlines())
