"""Packages on top of LangGraph do the same on flowpregel, under the import hook.

``tox -e packages`` has these packages.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.runs.hooked_programs import HOOK, outcomes_of, run_python

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


def test_middleware_that_cannot_be_sent_is_named_with_the_remedy() -> None:
    """On OS threads the agent runs."""
    need("langchain")
    module = f"{FOLDER}.unsendable"

    variables = {"FLOWPREGEL_EXECUTOR": "processes"}
    failed = run_python(*HOOK, "-m", module, variables=variables)

    [error] = [
        line for line in failed.stderr.splitlines() if "TaskSerializationError" in line
    ]
    assert "_lock: _thread.lock (in __main__.OneAtATime)" in error
    assert "FLOWPREGEL_EXECUTOR=threads" in error
    assert [["Hello", "Done."]] == outcomes_of(module, executor="threads")
