"""`flowpregel doctor EXECUTOR`: the executor of another package, and of a cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import _entry_points
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.executors.local import ThreadExecutor
from flowpregel.plugins import ExecutorCheck

STUCK = threading.Event()


class MineExecutor(ThreadExecutor):
    """The executor of another package."""

    def __init__(self, location: str) -> None:
        super().__init__(1)
        self.location = location

    def checks(self, modules: Sequence[str], timeout: float) -> Iterable[ExecutorCheck]:
        yield ExecutorCheck("depth", "deep" not in self.location, "12 m")
        for module in modules:
            yield ExecutorCheck(f"module {module}", True, f"{timeout:g} s")


def connect(location: str) -> MineExecutor:
    """Return an executor, unless the location is one of a mine that is closed."""
    if location == "closed":
        raise OSError("the mine is closed")
    if location == "stuck":
        STUCK.wait()
    return MineExecutor(location)


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package whose executor is `MineExecutor`."""
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    line = f"mine = {__name__}:connect"
    (info / "entry_points.txt").write_text(f"[flowpregel.executors]\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    _entry_points._entry_points.cache_clear()  # noqa: SLF001 - as in a new program
    yield
    _entry_points._entry_points.cache_clear()  # noqa: SLF001 - as in a new program


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `doctor`, and its lines by name."""
    result = CliRunner().invoke(app, ["doctor", *arguments, "--json"])
    return result.exit_code, {line["check"]: line for line in json.loads(result.stdout)}


def test_the_executor_of_another_package_adds_its_checks() -> None:
    """It has a method for them. A task and a large value travel in any case."""
    code, lines = doctor(
        "mine://east", "--flow", "tests.runs.cli_flows:steps", "--timeout", "50"
    )

    assert "12 m" == lines["depth"]["found"]
    assert "50 s" == lines["module tests"]["found"]
    trips = [lines[name] for name in ("connection", "first task", "next task", "10 MB")]
    assert all(trip["ok"] for trip in trips)
    assert Code.OK == code


def test_the_exit_code_shows_that_a_run_would_fail() -> None:
    code, lines = doctor("mine://deep")

    assert not lines["depth"]["ok"]
    assert Code.FAILED == code


def test_a_connection_that_fails_is_a_line() -> None:
    """The other lines are printed, too."""
    code, lines = doctor("mine://closed")

    assert "the mine is closed" in lines["connection"]["found"]
    assert {"python", "connection"} <= lines.keys()
    assert "first task" not in lines
    assert Code.FAILED == code


def test_a_connection_that_takes_too_long_is_a_line() -> None:
    """The line says how long the command has waited, and what to do."""
    STUCK.clear()
    code, lines = doctor("mine://stuck", "--timeout", "0.05")
    STUCK.set()

    assert "no answer within 0.05 s" in lines["connection"]["found"]
    assert "--timeout waits longer" in lines["connection"]["found"]
    assert Code.FAILED == code


def test_an_unknown_executor_is_refused() -> None:
    result = CliRunner().invoke(app, ["doctor", "yours://east"])

    assert Code.USAGE == result.exit_code
    assert "yours://east" in result.stderr


def test_a_flow_needs_an_executor() -> None:
    result = CliRunner().invoke(app, ["doctor", "--flow", "tests.runs.cli_flows:steps"])

    assert Code.USAGE == result.exit_code
    assert "--flow needs an executor" in result.stderr


def test_a_store_that_other_machines_cannot_use_is_named(tmp_path: Path) -> None:
    """It is enough for a run that ends here."""
    code, lines = doctor("inline", "--store", str(tmp_path / "runs.lmdb"))

    assert "only this machine can use it" in lines["store's reach"]["found"]
    assert lines["10 MB"]["ok"]
    assert Code.OK == code
