"""Cached results with handles of stored values, whose files may be lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import stored
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.executors import delete_stored
from flowpregel.func import entrypoint, task

made: list[int] = []
"""The sizes for which `cached_zeros` has run."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own folder, in which the store and the folder of values are."""
    monkeypatch.chdir(tmp_path)
    made.clear()


@task(cache=True, executor="inline")
def cached_zeros(size: int) -> dict[str, Any]:
    made.append(size)
    return {"values": [stored(bytes(size), folder="values")]}


def run_with_cache(thread: str) -> bytes:
    """Run a workflow whose call shares a result with a handle; return the value."""
    with LMDBSaver("runs.lmdb") as saver:

        @entrypoint(checkpointer=saver)
        def flow(size: int) -> Any:
            return cached_zeros(size).result()

        value: bytes = flow.run(3, id=thread)["values"][0].value
        return value


def test_a_cached_result_is_computed_again_if_a_stored_value_is_gone() -> None:
    """The new result replaces the cached one."""
    run_with_cache("1")
    assert bytes(3) == run_with_cache("2")
    assert [3] == made
    delete_stored("1", folder="values")

    assert bytes(3) == run_with_cache("3")
    assert bytes(3) == run_with_cache("4")
    assert [3, 3] == made


def test_a_call_with_a_cached_result_is_taken_back_for_good() -> None:
    """The next run does not get the same handle from the cache again."""
    run_with_cache("1")
    delete_stored("1", folder="values")

    words = ["redo", "1", "--gone", "--store", "runs.lmdb"]
    CliRunner().invoke(app, words)

    assert bytes(3) == run_with_cache("1")
    assert [3, 3] == made


def test_a_cached_result_counts_if_its_folder_is_not_on_this_machine() -> None:
    """A task may run on a machine that has the folder."""

    def sizes(thread: str) -> int:
        with LMDBSaver("runs.lmdb") as saver:

            @entrypoint(checkpointer=saver)
            def flow(size: int) -> int:
                (handle,) = cached_zeros(size).result()["values"]
                return int(handle.nbytes)

            return flow.run(3, id=thread)

    first = sizes("1")
    shutil.move("values", "elsewhere")

    assert first == sizes("2")
    assert [3] == made
