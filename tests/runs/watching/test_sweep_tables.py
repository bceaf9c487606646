"""The calls of runs as one table: flow.table, and the command."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import entrypoint, task
from flowpregel._inspection.sweep_table import write_parquet
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import ConfigurationError

Cli = Callable[..., Any]


@dataclass
class Params:
    """The arguments of a training."""

    depth: int
    run: str = "a"


@task(executor="inline")
def train(params: Params) -> dict[str, float]:
    """Return a loss, or fail at depth 0."""
    return {"loss": 1 / params.depth}


@pytest.fixture
def flow(tmp_path: Path) -> Any:
    """Yield a workflow with two runs in the test's store."""
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def sweep(depths: list[int]) -> int:
            futures = [train(Params(depth)) for depth in depths]
            return sum(future.exception() is None for future in futures)

        sweep.run([4, 0], id="one")
        sweep.run([2], id="two")
        yield sweep


@pytest.fixture
def cli(flow: Any, tmp_path: Path) -> Cli:
    """Run the command on the test's store."""
    store = str(tmp_path / "store")
    return lambda *words: CliRunner().invoke(app, ["table", *words, "--store", store])


def test_a_row_is_a_call_with_its_arguments_and_its_result(flow: Any) -> None:
    """In the order of the runs, and of the calls in a run."""
    rows = flow.table(["two", "one"])

    cells = [(r["run"], r["depth"], r.get("loss"), r["state"]) for r in rows]
    assert [
        ("two", 2, 0.5, "done"),
        ("one", 4, 0.25, "done"),
        ("one", 0, None, "failed"),
    ] == cells
    assert ["train"] * 3 == [row["task"] for row in rows]
    assert [1] * 3 == [row["tries"] for row in rows]
    assert all(row["took"] >= 0 and row["memory"] >= 0 for row in rows)
    assert "ZeroDivisionError" in rows[2]["error"]


def test_an_argument_with_the_name_of_a_column_keeps_its_own(flow: Any) -> None:
    (row,) = flow.table(["two"])

    assert ("two", "a") == (row["run"], row["call.run"])


def test_a_run_without_calls_has_a_row_for_its_body(tmp_path: Path) -> None:
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def double(number: int) -> int:
            return 2 * number

        double.run(2, id="1")
        (row,) = double.table(["1"])

    assert ("1", "double", "done") == (row["run"], row["task"], row["state"])


def test_a_table_of_a_run_that_is_not_there_is_an_error(flow: Any) -> None:
    with pytest.raises(ConfigurationError, match="has no thread 'three'"):
        flow.table(["one", "three"])


def test_a_workflow_without_a_store_has_no_table() -> None:
    @entrypoint()
    def double(number: int) -> int:
        return 2 * number

    with pytest.raises(ConfigurationError, match=r"double\.table"):
        double.table(["1"])


def test_the_command_prints_csv_json_and_a_table(cli: Cli, flow: Any) -> None:
    expected = flow.table(["one", "two"])

    parsed = [*csv.DictReader(io.StringIO(cli("one", "two", "--csv").stdout))]
    records = json.loads(cli("one", "two", "--json").stdout)
    text = cli("one", "two").stdout

    assert expected == records
    assert ["4", "0", "2"] == [row["depth"] for row in parsed]
    assert ["0.25", "", "0.5"] == [row["loss"] for row in parsed]
    assert text.startswith("RUN ")
    assert "LOSS" in text.splitlines()[0]
    assert 4 == len(text.splitlines())


def test_csv_and_parquet_exclude_each_other(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "sweep.parquet"

    answer = cli("one", "--csv", "--parquet", str(file))

    assert Code.USAGE == answer.exit_code
    assert not file.exists()


def test_parquet_without_a_package_that_writes_it_is_an_error(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("pyarrow", "polars", "pandas"):
        monkeypatch.setitem(sys.modules, package, None)

    answer = cli("one", "--parquet", str(tmp_path / "sweep.parquet"))

    assert Code.USAGE == answer.exit_code
    assert "pip install pyarrow" in answer.stderr


def test_parquet_is_written_by_polars_where_there_is_no_pyarrow(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column with numbers of two types has floats."""
    written: list[Any] = []

    class Frame:
        """Stands for a frame of polars."""

        def __init__(self, columns: Any) -> None:
            self.columns = columns

        def write_parquet(self, path: str) -> None:
            """Keep the columns and the path."""
            written.append((self.columns, path))

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=Frame))
    file = str(tmp_path / "sweep.parquet")

    answer = cli("one", "two", "--parquet", file)

    ((columns, path),) = written
    assert (file, [4, 0, 2]) == (path, columns["depth"])
    assert [0.25, None, 0.5] == columns["loss"]
    assert f"{file}: 3 rows" in answer.stdout


def test_a_column_of_different_types_is_written_with_one() -> None:
    """With floats if all are numbers, and else with texts."""
    columns: dict[str, Any] = {}

    def write(given: Any, _: str) -> None:
        columns.update(given)

    rows = [{"n": 1, "m": True}, {"n": 0.5, "m": 2}, {"m": "x"}]
    arrow = SimpleNamespace(table=dict)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", arrow)
        patch.setitem(
            sys.modules, "pyarrow.parquet", SimpleNamespace(write_table=write)
        )
        write_parquet(rows, "file")

    assert {"n": [1.0, 0.5, None], "m": ["True", "2", "x"]} == columns


def test_parquet_has_the_rows_and_their_types(
    cli: Cli, flow: Any, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    file = tmp_path / "sweep.parquet"

    assert Code.OK == cli("one", "two", "--parquet", str(file)).exit_code

    columns = parquet.read_table(file).to_pydict()
    assert [4, 0, 2] == columns["depth"]
    assert [0.25, None, 0.5] == columns["loss"]
