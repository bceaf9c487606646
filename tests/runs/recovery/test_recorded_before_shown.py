"""What is recorded is encoded before anybody sees it: what a program changes later is
not kept.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint, interrupt
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.types import Command
from tests.runs.conftest import Drive
from tests.runs.spoiled_flows import (
    FLOWS,
    INPUTS,
    Change,
    LateSaver,
    ask_and_answer,
    late_saver,
    leave,
    record,
    spoil,
)
from tests.runs.stores import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """One worker."""
    with ProcessExecutor(1) as executor:
        yield executor


@dataclass
class Number:
    """What an answer has to be."""

    number: int


def recorded(
    drive: Drive, name: str, saver: Any, executor: Any, change: Change
) -> list[Any]:
    """Run a flow that applies *change* to all it gets; return its record, read anew."""
    app = FLOWS[name](saver, executor, change)
    ask_and_answer(drive.invoke, app, deepcopy(INPUTS[name]), change)
    if not isinstance(saver, LateSaver):
        return [*record(saver)]
    saver.close()
    with LMDBSaver(saver.path) as reopened:
        return [*record(reopened)]


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("where", ["inline", "threads", "processes"])
@pytest.mark.parametrize("kind", ["lmdb", "memory"])
def test_what_is_changed_after_it_was_given_is_not_in_the_record(
    drive: Drive,
    name: str,
    where: str,
    kind: str,
    tmp_path: Path,
    pool: ProcessExecutor,
) -> None:
    """Results, state, input, arguments, questions and answers, all while the disk is
    behind.
    """

    def saver_at(path: Path) -> Any:
        return InMemorySaver() if kind == "memory" else late_saver(path)

    executor = pool if where == "processes" else where
    undisturbed = recorded(drive, name, saver_at(tmp_path / "one"), executor, leave)
    disturbed = recorded(drive, name, saver_at(tmp_path / "two"), executor, spoil)

    assert undisturbed == disturbed


def test_an_answer_is_not_changed_in_the_record_when_another_is_refused(
    drive: Drive, saver: Any, executor: str
) -> None:
    """Both are kept again then, and the body has changed the first."""

    @entrypoint(checkpointer=saver, executor=executor)
    def flow(_: int) -> tuple[str, int]:
        first = interrupt("a list?")
        seen = repr(first)
        first.append("more")
        return seen, interrupt("a number?", response_schema=Number).number

    drive.invoke(flow, 0, thread_id="t")
    drive.invoke(flow, Command(resume=[1]), thread_id="t")
    with pytest.raises(ValueError, match="number"):
        drive.invoke(flow, Command(resume={"number": "none"}), thread_id="t")

    assert drive.invoke(flow, Command(resume={"number": 2}), thread_id="t") == (
        "[1]",
        2,
    )


@pytest.mark.parametrize("name", FLOWS)
def test_what_a_killed_run_leaves_is_what_it_was_given(
    name: str, tmp_path: Path
) -> None:
    """Whatever it changed between the hand-over of a batch and the commit of it."""
    with late_saver(tmp_path / "one") as saver:
        whole = recorded(Drive(is_async=False), name, saver, "inline", leave)
    path = tmp_path / "two"
    command = [sys.executable, "-m", "tests.runs.spoiled_flows", str(path), name]
    assert (
        -signal.SIGKILL
        == subprocess.run(command, check=False, cwd=ROOT, timeout=60).returncode
    )

    with LMDBSaver(path) as reopened:
        left = [*record(reopened)]

    assert left
    for step, source, values, deltas, writes in left:
        (same,) = [each for each in whole if each[0] == step]
        assert (step, source, values, deltas) == same[:4]
        assert set(writes) <= set(same[4])
