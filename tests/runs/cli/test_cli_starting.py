"""The commands that prepare a run: `signature`, `enqueue`, and `run --arguments`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from flowpregel import LMDBSaver, entrypoint
from flowpregel._core.records import Address
from flowpregel.cli.app import app
from flowpregel.cli.form_fields import form_field, parameters_of_flow
from flowpregel.cli.targets import load_flow
from flowpregel.cli.typed_arguments import input_from_arguments
from flowpregel.errors import ConfigurationError
from tests.page.start_flows import Params, counting, train

Command = Callable[..., Result]
SWEEP = "tests.page.start_flows:sweep"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run a command on the test's store."""
    LMDBSaver(tmp_path / "store").close()
    return lambda *words: CliRunner().invoke(
        app, [*words, "--store", str(tmp_path / "store")]
    )


def test_arguments_are_converted_to_the_annotations(
    command: Command, tmp_path: Path
) -> None:
    values = {"params": {"rate": 2, "tags": ["a"]}, "optimizer": "sgd", "sizes": [5]}

    result = command(
        "run", SWEEP, "--arguments", json.dumps(values), "--id=a", "--quiet"
    )

    assert 0 == result.exit_code, result.stderr
    with LMDBSaver(tmp_path / "store", readonly=True) as saver:
        saved = saver.load(Address("a"))
    assert saved is not None
    assert [6.0, "SGD", "fast", False, None, (5,)] == saved.checkpoint.values["__end__"]


def test_each_wrong_argument_is_told_in_a_line(command: Command) -> None:
    values: dict[str, Any] = {
        "params": {"rate": "fast", "dept": 3},
        "optimizer": "lion",
        "mode": 5,
        "is_long": 1,
        "sizes": [1.5],
    }

    result = command("run", SWEEP, "--arguments", json.dumps(values), "--id=a")

    assert 2 == result.exit_code
    assert [
        "error: --arguments does not fit sweep:",
        "  params.dept: there is no such field. Did you mean 'depth'?",
        "  params.rate: must be a number, not 'fast'",
        "  optimizer: must be one of adam, sgd, not 'lion'",
        "  mode: must be one of fast, exact, not 5",
        "  is_long: must be true or false, not 1",
        "  sizes.0: must be a whole number, not 1.5",
    ] == result.stderr.splitlines()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([SWEEP], "pass --input or --arguments"),
        ([SWEEP, "--input=1", "--arguments={}"], "not both"),
        ([SWEEP, "--arguments=1"], "is not an object"),
        ([SWEEP, "--arguments={}"], "params: a value is needed"),
        (["tests.page.start_flows:counting", "--arguments={}"], "is a graph"),
    ],
)
def test_a_request_without_an_input_is_refused(
    command: Command, words: list[str], told: str
) -> None:
    result = command("run", *words)

    assert 2 == result.exit_code
    assert told in result.stderr


def test_the_signature_has_the_recorded_values_and_a_new_id(command: Command) -> None:
    values = {"params": {"rate": 0.5}, "optimizer": "sgd"}
    command("run", SWEEP, "--arguments", json.dumps(values), "--id=study-7", "--quiet")

    text = command("signature", "--like=study-7").stdout
    record = json.loads(command("signature", "--like=study-7", "--json").stdout)

    assert "Train a model." in text
    assert "study-8" == record["id"]
    assert SWEEP == record["flow"]
    assert {"rate": 0.5, "depth": 3, "tags": []} == record["values"]["params"]
    assert "sgd" == record["values"]["optimizer"]
    kinds = {field["name"]: field["kind"] for field in record["fields"]}
    assert {
        "params": "group",
        "optimizer": "choice",
        "mode": "choice",
        "is_long": "boolean",
        "note": "text",
        "sizes": "json",
    } == kinds


def test_a_run_is_enqueued_and_worked_on(command: Command, tmp_path: Path) -> None:
    values = '{"params": {"rate": 1}, "optimizer": "adam"}'

    for _ in range(2):
        result = command(
            "enqueue",
            "tests.page.start_flows:train",
            "--arguments",
            values,
            "--id=a",
            "--priority=3",
        )
        assert "enqueued: a" == result.stdout.splitlines()[0]
    assert 0 == command("work", "--until-empty").exit_code
    with LMDBSaver(tmp_path / "store", readonly=True) as saver:
        saved = saver.load(Address("a"))
    assert saved is not None
    assert 3.0 == saved.checkpoint.values["__end__"]


def test_a_graph_is_not_enqueued(command: Command) -> None:
    result = command(
        "enqueue", "tests.page.start_flows:counting", '--input={"count": 1}'
    )

    assert 2 == result.exit_code
    assert "only workflows are enqueued" in result.stderr


def test_the_module_is_imported_from_a_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "far_jobs.py").write_text(
        "from flowpregel import entrypoint\n"
        "@entrypoint(executor='inline')\n"
        "def far(n: int = 4): return n\n"
    )

    result = command(
        "run",
        "far_jobs:far",
        "--arguments={}",
        f"--folder={tmp_path}",
        "--id=a",
        "--quiet",
    )

    assert "4\n" == result.stdout


class Pair(NamedTuple):
    first: date
    second: Path = Path("a")


@entrypoint()
def pairs(pair: Pair, /, by_name: dict[str, Pair], *, either: int | str = 1) -> object:
    return pair, by_name, either


def test_named_tuples_dates_and_paths_are_made_from_text() -> None:
    values = {
        "pair": {"first": "2026-11-29"},
        "by_name": {"x": {"first": "2026-01-01", "second": "b"}},
    }

    made = input_from_arguments(pairs, values)

    pair = Pair(date(2026, 11, 29))
    others = {"x": Pair(date(2026, 1, 1), Path("b"))}
    assert {"pair": pair, "by_name": others, "either": 1} == made
    with pytest.raises(ConfigurationError, match="a date such as 2026-11-29, not 5"):
        input_from_arguments(pairs, {"pair": {"first": 5}, "by_name": {}})


def test_a_task_and_a_graph_have_fields() -> None:
    fields = [
        form_field(each) for each in parameters_of_flow(train.as_flow(store=None))
    ]
    (count,) = map(form_field, parameters_of_flow(counting))

    assert ["params", "optimizer"] == [field.name for field in fields]
    assert ["rate", "depth", "tags"] == [part.name for part in fields[0].fields]
    assert (("adam", "adam"), ("sgd", "sgd")) == fields[1].choices
    assert ("count", "integer", True) == (count.name, count.kind, count.is_required)


def test_what_a_class_refuses_is_told(tmp_path: Path) -> None:
    pytest.importorskip("pydantic")
    (tmp_path / "checked_jobs.py").write_text(
        "from pydantic import BaseModel, Field\n"
        "from flowpregel import entrypoint\n"
        "class Model(BaseModel):\n"
        "    depth: int = Field(gt=0)\n"
        "@entrypoint()\n"
        "def fit(model: Model): return model\n"
    )
    fit = load_flow("checked_jobs:fit", str(tmp_path))

    (field,) = map(form_field, parameters_of_flow(fit))
    assert ["depth"] == [part.name for part in field.fields]
    assert 3 == input_from_arguments(fit, {"model": {"depth": 3}}).depth
    with pytest.raises(ConfigurationError, match=r"model: .*greater than 0"):
        input_from_arguments(fit, {"model": {"depth": -3}})


HALF = Params(0.5)
SEED = object()


def test_defaults_of_other_classes_are_left_out() -> None:
    @entrypoint()
    def fit(params: Params = HALF, seed: object = SEED) -> object:
        return params, seed

    params, seed = map(form_field, parameters_of_flow(fit))
    assert {"rate": 0.5, "depth": 3, "tags": []} == params.default
    assert (None, False) == (seed.default, seed.is_required)
