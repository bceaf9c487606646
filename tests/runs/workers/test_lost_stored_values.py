"""Stored values whose files are lost: `check` names them, and `redo --gone` takes back
the calls.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel import Stored, stored
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.executors import delete_stored
from flowpregel.func import entrypoint, task
from flowpregel.plugins.sqlite import SQLiteSaver
from flowpregel.storage.options import StoreOptions

made: list[int] = []
"""The sizes for which `zeros` has run."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder, in which the store and the folder of values are."""
    monkeypatch.chdir(tmp_path)
    made.clear()
    return tmp_path


@task(executor="inline")
def zeros(size: int) -> list[Stored[bytes]]:
    made.append(size)
    return [stored(bytes(size), folder="values")]


@task(executor="inline")
def zeros_with_text(size: int) -> list[Any]:
    return ["a text that can be compressed " * 50, stored(bytes(size), folder="values")]


def run_flow(thread: str = "1") -> int:
    """Run a workflow that stores two values, and return their sizes' sum."""
    with LMDBSaver("runs.lmdb") as saver:

        @entrypoint(checkpointer=saver)
        def flow(sizes: list[int]) -> int:
            return sum(zeros(size).result()[0].nbytes for size in sizes)

        return flow.run([1, 2], id=thread)


def file_of(size: int) -> Path:
    """Return the path of the value that `zeros` has stored for *size*."""
    name = stored(bytes(size), folder="other").digest
    return Path("values", "1", name)


def command(*words: str) -> Result:
    return CliRunner().invoke(app, words)


# ---------------------------------------------------------------- check


def test_check_names_the_calls_whose_stored_values_are_gone(folder: Path) -> None:
    """It names the file, and the command that takes the calls back."""
    run_flow()
    file_of(2).unlink()

    checked = command("check", "runs.lmdb")
    records = json.loads(command("check", "runs.lmdb", "--json").stdout)

    address = folder / file_of(2)
    assert Code.FAILED == checked.exit_code
    assert f"  zeros(2): stored value {address}, gone\n" in checked.stdout
    assert "flowpregel redo 1 --gone --store runs.lmdb\n" in checked.stdout
    assert "stored values: 1 found, 1 gone\n" in checked.stdout
    (value,) = records[0]["stored_values"]
    assert ("zeros(2)", str(address)) == (value["call"], value["location"])


@pytest.mark.parametrize("url", ["runs.lmdb", "sqlite:///runs.db"])
@pytest.mark.parametrize("compression", [False, True])
def test_check_finds_handles_in_any_store(url: str, compression: bool) -> None:
    """The name of the handles' class cannot be seen in a compressed result."""
    options = StoreOptions(compression=compression)
    saver_class: Any = LMDBSaver if url == "runs.lmdb" else SQLiteSaver
    with saver_class(url.removeprefix("sqlite:///"), options=options) as saver:

        @entrypoint(checkpointer=saver)
        def flow(size: int) -> int:
            return len(zeros_with_text(size).result())

        assert 2 == flow.run(1, id="1")
    delete_stored("1", folder="values")

    checked = command("check", url)

    assert "stored values: 0 found, 1 gone\n" in checked.stdout


def test_check_is_satisfied_if_no_stored_value_is_gone() -> None:
    run_flow()

    checked = command("check", "runs.lmdb")

    assert Code.OK == checked.exit_code
    assert "stored values: 2 found, 0 gone\n" in checked.stdout
    assert "[]\n" == command("check", "runs.lmdb", "--json").stdout


def test_check_names_a_missing_folder_of_stored_values_once(folder: Path) -> None:
    """None of its values counts as gone, because it may not be mounted."""
    run_flow("1")
    run_flow("2")
    shutil.rmtree("values")

    checked = command("check", "runs.lmdb")
    records = json.loads(command("check", "runs.lmdb", "--json").stdout)

    assert Code.FAILED == checked.exit_code
    assert 1 == checked.stdout.count(f"the folder {folder}/values,")
    assert "stored values that were not found: 4; " in checked.stdout
    assert "mount it" in checked.stdout
    assert "gone" not in checked.stdout
    for record in records:
        assert [f"{folder}/values"] == record["missing_folders"]
        assert [] == record["stored_values"]


# ---------------------------------------------------------------- redo


def test_a_missing_folder_of_stored_values_takes_no_call_back(folder: Path) -> None:
    """It may not be mounted on this machine; the error names it."""
    run_flow()
    shutil.move("values", "elsewhere")

    refused = command("redo", "1", "--gone", "--store", "runs.lmdb")
    shutil.move("elsewhere", "values")
    made.clear()

    assert Code.USAGE == refused.exit_code
    assert f"the folder {folder}/values," in refused.stderr
    assert "mount it" in refused.stderr
    assert "taken back" not in refused.stdout
    run_flow()
    assert [] == made


def test_the_deleted_values_of_a_thread_are_made_again() -> None:
    """Their own folder is missing, but the folder above it exists."""
    run_flow()
    delete_stored("1", folder="values")

    taken = command("redo", "1", "--gone", "--store", "runs.lmdb")
    made.clear()
    run_flow()

    assert "taken back: zeros(1)\ntaken back: zeros(2)\n" == taken.stdout
    assert [1, 2] == made


def test_an_empty_folder_in_place_of_a_lost_one_makes_all_values_again() -> None:
    """So a folder that was lost for good is no dead end."""
    run_flow()
    shutil.rmtree("values")
    os.mkdir("values")

    taken = command("redo", "1", "--gone", "--store", "runs.lmdb")

    assert 2 == taken.stdout.count("taken back: ")
