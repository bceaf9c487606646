"""Packages on top of LangGraph do the same on flowpregel, under the import hook.

``tox -e packages`` has these packages.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from tests.runs.hooked_programs import HOOK, run_python

pytestmark = pytest.mark.slow


def outcomes_of(module: str, *options: str, executor: str = "") -> list[Any]:
    """Return the outcomes that the programs of a module print, one a line."""
    variables = {"FLOWPREGEL_EXECUTOR": executor}
    done = run_python(*options, "-m", module, variables=variables)
    assert 0 == done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize(
    ("package", "programs"),
    [("langgraph_supervisor", "supervisors"), ("langgraph_swarm", "swarms")],
)
def test_a_package_does_on_flowpregel_what_it_does_on_langgraph(
    package: str, programs: str, executor: str
) -> None:
    """Messages, states, streams, questions and errors are the same, wherever nodes
    run.
    """
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    module = f"tests.parity.programs.{programs}"

    expected = outcomes_of(module)
    outcomes = outcomes_of(module, *HOOK, executor=executor)

    assert [] == [line for line in expected if "error" in str(line[2])[:9]]
    for theirs, ours in zip(expected, outcomes, strict=True):
        assert theirs == ours
