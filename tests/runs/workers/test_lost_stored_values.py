"""Stored values whose files are lost: `check` names them, and `redo --gone` takes back
the calls.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import fsspec
import pytest
from click.testing import CliRunner, Result

from flowpregel import Stored, stored
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import ConfigurationError
from flowpregel.executors import delete_stored
from flowpregel.func import entrypoint, task
from flowpregel.graph import START, StateGraph
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


def run_flow(thread: str = "1", *, fails: bool = False) -> None:
    """Run a workflow that stores two values, and perhaps fails afterwards."""
    with LMDBSaver("runs.lmdb") as saver:

        @entrypoint(checkpointer=saver)
        def flow(sizes: list[int]) -> int:
            total = sum(zeros(size).result()[0].nbytes for size in sizes)
            if fails:
                raise ValueError("after the calls")
            return total

        with suppress(ValueError):
            flow.run([1, 2], id=thread)


def file_of(size: int) -> Path:
    """Return the path of the value that `zeros` has stored for *size*."""
    name = stored(bytes(size), folder="other").digest
    return Path("values", "1", name)


def command(*words: str) -> Result:
    return CliRunner().invoke(app, words)


# ---------------------------------------------------------------- check


def test_check_names_the_calls_whose_stored_values_are_gone(folder: Path) -> None:
    """It names the file, and the command that takes the calls back."""
    run_flow(fails=True)
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
    run_flow("1", fails=True)
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


def test_values_that_a_finished_run_has_lost_are_listed_without_a_failure(
    folder: Path,
) -> None:
    """They may have been deleted on purpose, as the documentation advises."""
    run_flow("1")
    run_flow("2")
    delete_stored("1", folder="values")

    checked = command("check", "runs.lmdb")
    records = json.loads(command("check", "runs.lmdb", "--json").stdout)
    shutil.rmtree("values")
    without_folder = command("check", "runs.lmdb")

    assert Code.OK == checked.exit_code
    assert f"  zeros(2): stored value {folder / file_of(2)}, gone\n" in checked.stdout
    assert "if you need it, make again what is gone: flowpregel redo 1" in (
        checked.stdout
    )
    assert "stored values: 2 found, 2 gone\n" in checked.stdout
    assert ["1"] == [record["thread_id"] for record in records]
    assert Code.OK == without_folder.exit_code
    assert "stored values that were not found: 4; " in without_folder.stdout


class Passed(TypedDict, total=False):
    """The state of a graph of which one node passes the other's handle on."""

    first: Any
    second: Any


def test_check_names_the_nodes_whose_stored_values_are_gone(folder: Path) -> None:
    """A node that only passes the handle on is not named."""
    with LMDBSaver("runs.lmdb") as saver:
        builder = StateGraph(Passed)
        builder.add_node("make", lambda _: {"first": [stored(b"0", folder="values")]})
        builder.add_node("copy", lambda state: {"second": state["first"]})
        builder.add_edge(START, "make")
        builder.add_edge("make", "copy")
        graph = builder.compile(checkpointer=saver, executor="inline")
        graph.invoke({}, {"configurable": {"thread_id": "1"}})
    (file,) = Path("values", "1").iterdir()
    delete_stored("1", folder="values")

    checked = command("check", "runs.lmdb")
    redone = command("redo", "1", "--gone", "--store", "runs.lmdb")

    assert f"  make: stored value {folder / file}, gone\n" in checked.stdout
    assert "  run the node again: flowpregel fork 1 NEW --at " in checked.stdout
    assert "redo" not in checked.stdout
    assert "stored values: 0 found, 1 gone\n" in checked.stdout
    assert "no call of the outermost graph has lost" in redone.stdout
    assert "nodes" in redone.stdout


# ---------------------------------------------------------------- buckets

SEARCHES_AT_ONCE = 3


class WatchedFiles(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
    """Files in memory whose search runs a function first."""

    protocol = "watched"
    before_search: Callable[[], object] = staticmethod(lambda: None)

    def info(self, path: str, **options: Any) -> Any:
        """Return the facts about a file."""
        type(self).before_search()
        return super().info(path, **options)


@pytest.fixture
def bucket() -> Iterator[str]:
    """The URL of a bucket with the values of a run that has failed."""
    fsspec.register_implementation("watched", WatchedFiles, clobber=True)
    with LMDBSaver("runs.lmdb") as saver:

        @entrypoint(checkpointer=saver)
        def flow(sizes: list[int]) -> None:
            for size in sizes:
                zeros_in_bucket(size).result()
            raise ValueError("after the calls")

        with pytest.raises(ValueError, match="after the calls"):
            flow.run([*range(SEARCHES_AT_ONCE)], id="1")
    yield "watched://bucket/values"
    WatchedFiles.before_search = staticmethod(lambda: None)
    fsspec.filesystem("memory").store.clear()


@task(executor="inline")
def zeros_in_bucket(size: int) -> Stored[bytes]:
    return stored(bytes(size), folder="watched://bucket/values")


def lose_network() -> None:
    """Raise the error of a machine without network."""
    raise OSError("no route to host")


def no_package() -> None:
    """Raise the error of a machine without the extra."""
    raise ConfigurationError("the URL needs the package fsspec")


@pytest.mark.parametrize(
    ("before_search", "reason"),
    [(lose_network, "no route to host"), (no_package, "needs the package fsspec")],
)
def test_check_names_a_bucket_that_it_cannot_reach(
    bucket: str, before_search: Callable[[], None], reason: str
) -> None:
    """The values in the bucket are not lost, and the report has the rest."""
    run_flow("2")
    WatchedFiles.before_search = staticmethod(before_search)

    checked = command("check", "runs.lmdb", "--run", "1")
    both = command("check", "runs.lmdb")
    records = json.loads(command("check", "runs.lmdb", "--run", "1", "--json").stdout)
    refused = command("redo", "1", "--gone", "--store", "runs.lmdb")

    (line,) = [line for line in checked.stdout.splitlines() if reason in line]
    assert line.startswith("stored values that were not searched for: 3; ")
    assert "unfinished runs: " in checked.stdout
    assert "gone" not in checked.stdout
    assert "stored values: 2 found, 0 gone\n" in both.stdout
    ((folder, error),) = [
        (record["folder"], record["error"])
        for record in records[0]["unreachable_folders"]
    ]
    assert bucket == folder
    assert reason in error
    assert refused.exit_code in (Code.USAGE, Code.STORE)
    assert reason in refused.stderr


def test_an_unreachable_bucket_is_no_failure_of_check(bucket: str) -> None:
    WatchedFiles.before_search = staticmethod(lose_network)

    checked = command("check", "runs.lmdb")
    WatchedFiles.before_search = staticmethod(lambda: None)
    without_values = command("check", "runs.lmdb")

    assert without_values.exit_code == checked.exit_code


def test_several_values_in_a_bucket_are_searched_for_at_once(bucket: str) -> None:
    """Each search waits until all have begun."""
    barrier = threading.Barrier(SEARCHES_AT_ONCE)
    WatchedFiles.before_search = staticmethod(lambda: barrier.wait(timeout=60))

    checked = command("check", "runs.lmdb")

    assert not barrier.broken
    assert "stored values: 3 found, 0 gone\n" in checked.stdout


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
