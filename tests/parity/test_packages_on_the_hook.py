"""Packages on top of LangGraph do the same on flowpregel, under the import hook.

``tox -e packages`` has these packages.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.runs.hooked_programs import outcomes_of

pytestmark = pytest.mark.slow

FOLDER = "tests.parity.programs"


def need(package: str) -> None:
    """Skip the test if a package is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize("programs", ["supervisors", "swarms"])
def test_agents_that_hand_over_do_what_they_do_on_langgraph(
    programs: str, executor: str
) -> None:
    """Messages, states, streams, questions and errors are the same, wherever nodes
    run.
    """
    need(f"langgraph_{programs.removesuffix('s')}")
    module = f"{FOLDER}.{programs}"

    expected = outcomes_of(module)
    outcomes = outcomes_of(module, executor=executor)

    assert [] == [line for line in expected if "error" in line[2]]
    for theirs, ours in zip(expected, outcomes, strict=True):
        assert theirs == ours


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize(
    ("package", "program"),
    [
        ("deepagents", "deepagents"),
        ("deepagents", "deepagents_files"),
        ("deepagents", "deepagents_questions"),
        ("langchain", "langchain"),
        ("langgraph_bigtool", "langgraph_bigtool"),
        ("langgraph_codeact", "langgraph_codeact"),
        ("langgraph_reflection", "langgraph_reflection"),
        ("langmem", "langmem"),
        ("langmem", "langmem_summary"),
        ("trustcall", "trustcall"),
    ],
)
def test_a_package_does_what_it_does_on_langgraph(
    package: str, program: str, executor: str
) -> None:
    """One program for each part of it."""
    need(package)
    module = f"{FOLDER}.packages"

    expected = outcomes_of(module, program)

    assert expected == outcomes_of(module, program, executor=executor)
