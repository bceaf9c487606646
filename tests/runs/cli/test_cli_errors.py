"""`show` explains a run: its errors by kind, and where its time went; `retry` tries the
calls of one kind again.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from tests.runs.sweep_flow import sweep

Cli = Callable[..., Any]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run the command on a store with a sweep of which eleven calls failed."""
    store = str(tmp_path / "store")
    with LMDBSaver(store) as saver:
        flow = sweep.copy({"checkpointer": saver})
        assert 49 == flow.run(60, str(tmp_path / "flag"), id="s")
    return lambda *words: CliRunner().invoke(app, [*words, "--store", store])


def test_errors_are_shown_by_kind_with_the_parameters_that_only_they_have(
    cli: Cli,
) -> None:
    shown = cli("show", "s").stdout
    record = json.loads(cli("show", "s", "--json").stdout)

    assert "10 x train: FloatingPointError: loss is nan at epoch #, only where" in shown
    assert "1 x train: MemoryError: could not allocate 12 GiB\n" in shown
    assert [10, 1] == [kind["count"] for kind in record["errors"]]
    assert {"params.lr": 0.1, "params.depth": 12} == record["errors"][0]["shared"]
    assert "Traceback" not in shown


def test_a_full_view_has_a_traceback_of_each_kind_without_our_frames(cli: Cli) -> None:
    shown = cli("show", "s", "--full").stdout

    tracebacks = shown.split("Traceback (most recent call last):\n")[1:]
    assert 2 == len(tracebacks)
    for text in tracebacks:
        assert "sweep_flow.py" in text
        assert "flowpregel/" not in text.replace("tests/", "")
        assert "During task" not in text


def test_the_command_that_is_shown_tries_one_kind_again(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "flag").touch()
    lines = cli("show", "s").stdout.splitlines()
    command = next(line for line in lines if line.startswith("  try again: "))

    words = shlex.split(command.removeprefix("  try again: flowpregel "))
    retried = CliRunner().invoke(app, [*words, "--quiet"])

    assert (Code.OK, "59\n") == (retried.exit_code, retried.stdout)
    errors = json.loads(cli("show", "s", "--json").stdout)["errors"]
    assert ["MemoryError: could not allocate 12 GiB"] == [
        one["error"] for one in errors
    ]


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (("--error", "MemoryError"), 50),
        (("--error", "FloatingPointError: loss is nan at epoch 999"), 59),
        (("--task", "train"), 60),
        (("--failed",), 60),
    ],
)
def test_failures_are_selected_by_task_and_error(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], result: int
) -> None:
    (tmp_path / "flag").touch()

    assert f"{result}\n" == cli("retry", "s", *words, "--quiet").stdout


@pytest.mark.parametrize("words", [("--error", "KeyError"), ("--task", "other")])
def test_an_error_that_no_call_had_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    retried = cli("retry", "s", *words, "--quiet")

    assert Code.USAGE == retried.exit_code
    assert "no failed call has this task and error" in retried.stderr


def test_the_time_is_shown_by_task(cli: Cli) -> None:
    shown = cli("show", "s", "--time").stdout
    time = json.loads(cli("show", "s", "--time", "--json").stdout)["time"]

    assert "from the first call to the last" in shown
    assert "the 10 slowest calls:" in shown
    assert [("train", 60)] == [(task["name"], task["calls"]) for task in time["tasks"]]
    assert 10 == len(time["slowest"])
    assert 1 <= time["path"]["calls"] <= 60
    parts = time["busy"] + time["waiting"] + time["body"]
    assert time["total"] == pytest.approx(parts)
