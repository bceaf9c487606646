"""Cached results with handles of stored values, whose files may be lost."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import Stored, stored
from flowpregel.cache.lmdb import LMDBCache
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


@dataclass
class Result:
    """A result with a handle for which the cache does not search."""

    handle: Stored[bytes]


@task(cache=True, executor="inline")
def zeros_in_object(size: int) -> Result:
    made.append(size)
    return Result(stored(bytes(size), folder="values"))


@entrypoint(executor="inline")
def cached_flow(size: int) -> int:
    return len([cached_zeros(size).result(), zeros_in_object(size).result()])


@pytest.mark.parametrize("cache", [None, "results.lmdb"])
def test_why_agrees_with_the_next_run(cache: str | None) -> None:
    """It does not promise a result that the next run computes again."""
    options = {"cache": LMDBCache(cache)} if cache else {}
    flow = cached_flow.copy(options)
    with LMDBSaver("runs.lmdb") as saver:
        flow.copy({"checkpointer": saver}).run(3, id="1")
    before = why(flow, "cached_zeros(3)")
    delete_stored("1", folder="values")
    lost = why(flow, "cached_zeros(3)")
    in_object = why(flow, "zeros_in_object(3)")
    made.clear()
    with LMDBSaver("runs.lmdb") as saver:
        flow.copy({"checkpointer": saver}).run(3, id="2")

    assert "cache: a new run uses the result in the cache" in before
    assert "refers to a stored value that is gone; a new run computes it again" in lost
    assert "cache: a new run uses the result in the cache" in in_object
    assert [3] == made


def why(flow: Any, call: str) -> str:
    """Return what the command `why` prints about a call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "cached_flow", flow)
        words = ["why", "1", call, "--flow", f"{__name__}:cached_flow"]
        result = CliRunner().invoke(app, [*words, "--store", "runs.lmdb"])
    assert 0 == result.exit_code, result.output
    return result.stdout


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
