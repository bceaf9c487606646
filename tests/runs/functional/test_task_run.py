"""`task.run`: one durable call, without a workflow."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowpregel import Command, entrypoint, interrupt, task
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.cli.targets import load_flow
from flowpregel.errors import (
    ConfigurationError,
    FlowMismatchError,
    InputMismatchError,
    RunNotice,
    UnansweredError,
)
from flowpregel.runtime import Runtime
from tests.runs.crashes import Once
from tests.runs.functional.flows import double, run
from tests.runs.notes import Notes
from tests.runs.stores import ROOT


@task(executor="inline")
def gather(a: int, b: int = 2, *rest: int, c: int = 3, **named: int) -> Any:
    """Return the arguments."""
    return a, b, rest, c, named


@task(executor="inline")
def placed(a: int, b: int = 1, c: int = 2, /) -> Any:
    """Return the arguments, which only positions name."""
    return a, b, c


@task(executor="inline")
def nothing() -> str:
    """Return a text."""
    return "nothing"


@task(executor="inline")
def attempt(runtime: Runtime, n: int) -> Any:
    """Return an argument behind what the run fills in."""
    return n, type(runtime).__name__


@task(executor="inline")
def ask(n: int) -> Any:
    """Ask about *n*."""
    return n, interrupt("sure?")


class Scale:
    """Has a task for a method."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @task(executor="inline")
    def times(self, n: int) -> int:
        """Return a product."""
        return self.factor * n


def test_a_call_that_has_ended_is_not_made_again(drive: Any, saver: Any) -> None:
    """Under its id; another id is another call."""
    calls = Notes()

    @task(executor="inline")
    def square(n: int) -> int:
        calls.append(n)
        return n * n

    assert 9 == run(drive, square, 3, id="a", store=saver)
    assert 9 == run(drive, square, 3, id="a", store=saver)
    assert 9 == run(drive, square, n=3, id="b", store=saver)
    assert [3, 3] == [*calls]


def test_a_call_that_failed_is_made_again(drive: Any, saver: Any) -> None:
    """By the same line."""
    fail = Once(OSError("not yet"))

    @task(executor="inline")
    def square(n: int) -> int:
        fail()
        return n * n

    with pytest.raises(OSError, match="not yet"):
        run(drive, square, 3, id="a", store=saver)
    assert 9 == run(drive, square, 3, id="a", store=saver)


@pytest.mark.parametrize("name", [None, "a"])
def test_arguments_arrive_as_in_a_plain_call(name: str | None) -> None:
    """Whatever kinds of parameters the function has."""
    assert gather.func(1) == gather.run(1, id=name, store=InMemorySaver())
    full = gather.run(1, 2, 5, 6, c=7, d=8, id=name, store=InMemorySaver())
    assert gather.func(1, 2, 5, 6, c=7, d=8) == full
    assert (1, 1, 9) == placed.run(1, 1, 9, store=InMemorySaver())
    assert "nothing" == nothing.run(id=name, store=InMemorySaver())
    assert (3, "Runtime") == attempt.run(3, id=name, store=InMemorySaver())


def test_the_ways_to_spell_one_call_are_one_call() -> None:
    """By name, by position, with a default or without."""
    saver = InMemorySaver()
    assert gather.func(1) == gather.run(1, id="a", store=saver)
    for result in (
        gather.run(a=1, id="a", store=saver),
        gather.run(1, 2, id="a", store=saver),
        gather.run(1, c=3, id="a", store=saver),
    ):
        assert gather.func(1) == result


def test_other_arguments_need_another_id_or_adopt() -> None:
    """As for a workflow."""
    saver = InMemorySaver()
    gather.run(1, id="a", store=saver)

    with pytest.raises(InputMismatchError):
        gather.run(2, id="a", store=saver)
    with pytest.raises(FlowMismatchError):
        placed.run(1, id="a", store=saver)
    with pytest.warns(RunNotice, match="1 executed"):
        assert 2 == gather.run(2, id="a", adopt=True, store=saver)[0]


def test_a_method_is_run_with_its_object() -> None:
    """Which is one of the arguments: another one is another call."""
    saver = InMemorySaver()

    assert 6 == Scale(2).times.run(3, id="a", store=saver)
    assert 6 == Scale.times.run(Scale(2), 3, id="a", store=saver)
    with pytest.raises(InputMismatchError):
        Scale(5).times.run(3, id="a", store=saver)


def test_it_runs_over_when_asked_to() -> None:
    """`again` starts over, as for a workflow."""
    saver, calls = InMemorySaver(), Notes()

    @task(executor="inline")
    def count() -> int:
        calls.append(1)
        return len([*calls])

    assert 1 == count.run(id="a", store=saver)
    assert 2 == count.run(id="a", again=True, store=saver)
    assert 2 == count.run(id="a", store=saver)


def test_changed_code_is_told() -> None:
    """The recorded result stays, unless another treatment is asked for."""
    saver = InMemorySaver()

    def version(function: Any) -> Any:
        function.__qualname__ = function.__name__ = "study"
        return task(executor="inline")(function)

    def add(n: int) -> int:
        return n + 10

    def multiply(n: int) -> int:
        return n * 20

    assert 11 == version(add).run(1, id="a", store=saver)
    with pytest.warns(RunNotice, match="code of `study` has changed"):
        assert 11 == version(multiply).run(1, id="a", store=saver)
    got = version(multiply).run(1, id="a", on_code_change="rerun", store=saver)
    assert 20 == got


def test_a_call_in_a_run_is_a_part_of_it(drive: Any) -> None:
    """Without an id."""
    saver, calls = InMemorySaver(), Notes()

    @task(executor="inline")
    def square(n: int) -> int:
        calls.append(n)
        return n * n

    @entrypoint(checkpointer=saver)
    def flow(n: int) -> int:
        return square.run(n) + 1

    assert 10 == run(drive, flow, 3, id="a")
    assert 10 == run(drive, flow, 3, id="a")
    assert [3] == [*calls]


def test_a_question_is_answered_by_the_workflow_of_the_task() -> None:
    """`as_flow` has the methods of a workflow."""
    saver = InMemorySaver()
    with pytest.raises(UnansweredError, match=r"sure.*ask\.as_flow\(\.\.\.\)\.answer"):
        ask.run(3, id="a", store=saver)

    answered = ask.as_flow(saver).invoke(Command(resume="yes"), thread_id="a")

    assert (3, "yes") == answered == ask.run(3, id="a", store=saver)


def test_the_workflow_of_a_task_starts_it_without_waiting() -> None:
    """And gives its handle."""
    handle = placed.as_flow(InMemorySaver()).start(1, 2, id="a")

    assert (1, 2, 2) == handle.result(60)


def test_the_default_store_is_used_with_an_id_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that nobody can name keeps nothing."""
    monkeypatch.chdir(tmp_path)

    placed.run(1)
    assert [] == [*tmp_path.iterdir()]

    placed.run(1, id="a")
    assert [".flowpregel"] == os.listdir(tmp_path)
    assert "*\n" == (tmp_path / ".flowpregel/.gitignore").read_text("utf-8")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: placed.run(1, id="a", store=None),
            ConfigurationError,
            r"placed.run\(store=None, id='a'\): nothing is stored",
        ),
        (lambda: placed.run(1, id=""), ConfigurationError, "the id is empty"),
        (lambda: placed.run(), TypeError, "missing a required argument: 'a'"),
        (lambda: placed.run(1, idd="a"), TypeError, "Did you mean 'id'"),
        (lambda: double(1), RuntimeError, r"double\.run\(\.\.\.\)"),
        (lambda: double(1), RuntimeError, r"double\.func\(\.\.\.\)"),
        (lambda: double(1), RuntimeError, r"flowpregel\.map\(double, items\)"),
        (lambda: double.invoke(1), AttributeError, r"double\.run\(\.\.\.\)"),
    ],
)
def test_mistakes_are_refused_with_what_to_write(
    call: Any,
    error: type[Exception],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the words of the task."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        call()


def test_help_shows_the_arguments_and_the_options() -> None:
    """In one signature."""
    parameters = inspect.signature(placed.run).parameters

    assert ["a", "b", "c"] == [*parameters][:3]
    assert {"id", "store", "again", "adopt"} <= parameters.keys()
    assert "Make one call" in str(placed.run.__doc__)


def test_commands_find_the_task_of_a_run() -> None:
    """By the name that its run records."""
    flow: Any = load_flow(f"{__name__}:placed")

    assert flow.once == placed.as_flow(None).once
    assert (1, 5, 2) == flow.invoke({"a": 1, "b": 5})
    assert (4, 1, 2) == flow.invoke(4)


PROGRAM = """
import os, sys
from pathlib import Path
import flowpregel

@flowpregel.task(executor="inline")
def work(n):
    Path("began").open("a").write("x")
    if not Path("go").exists():
        Path("go").touch()
        os.kill(os.getpid(), 9)
    return 2 * n

if __name__ == "__main__":
    print(work.run(21, id="a"))
"""


@pytest.mark.slow
def test_a_killed_program_resumes_the_call(tmp_path: Path) -> None:
    """Killed by -9, run again, and run once more."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM, "utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
    }

    def execute() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script)],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=120,
        )

    killed, resumed, repeated = execute(), execute(), execute()

    assert -9 == killed.returncode
    assert ["42\n", "42\n"] == [resumed.stdout, repeated.stdout], resumed.stderr
    assert "xx" == (tmp_path / "began").read_text("utf-8")
