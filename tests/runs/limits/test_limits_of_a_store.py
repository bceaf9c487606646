"""Limits of all programs of one store, which need no folder."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint, task
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, ResourcesError
from flowpregel.executors import ProcessExecutor
from flowpregel.executors.resources import folder_of_limit, limits_folder_of
from tests.other_programs import OtherProgram, wait_for_a_waiting_run


@pytest.fixture
def pool() -> Iterator[ProcessExecutor]:
    """A pool whose only licence is that of all programs of a run's store."""
    with ProcessExecutor(2, limits={"licence": 1}, limits_scope="store") as made:
        yield made


@task(limit="licence")
def alone(folder: str) -> bool:
    """Return whether this is the only call that runs."""
    mark = Path(folder) / "running"
    try:
        mark.mkdir()
    except FileExistsError:
        return False
    time.sleep(0.01)
    mark.rmdir()
    return True


alone_on_a_thread = alone.with_options(executor="threads")


@task(limit="licence")
def outer(folder: str) -> bool:
    """Call a task that needs the slot of this call."""
    return alone(folder).result()


def flow_of(called: Any, pool: ProcessExecutor, checkpointer: Any = None) -> Any:
    """Return a workflow that makes one call."""

    @entrypoint(checkpointer=checkpointer, executor=pool)
    def flow(folder: str) -> bool:
        return bool(called(folder).result())

    return flow


def slot_of(saver: BaseCheckpointSaver) -> OtherProgram:
    """Return the only licence of a store, as another program sees it."""
    folder = limits_folder_of(saver)
    assert folder
    return OtherProgram(folder_of_limit(folder, "licence"))


@pytest.mark.slow
@pytest.mark.parametrize("called", [alone, alone_on_a_thread], ids=["worker", "thread"])
@pytest.mark.parametrize("scheme", ["", "sqlite:///"], ids=["LMDB", "SQLite"])
def test_a_slot_of_a_killed_program_is_free(
    pool: ProcessExecutor, tmp_path: Path, scheme: str, called: Any
) -> None:
    """And until then the runs of other programs wait for it."""
    store = f"{scheme}{tmp_path}/runs.db"
    words = [sys.executable, "-m", "tests.runs.limit_flows", store, "killed"]
    flow = flow_of(called, pool, store)

    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert "held\n" == program.stdout.readline()
        handle = flow.start(str(tmp_path), id="waits")
        wait_for_a_waiting_run()
        assert "running" == handle.status

        program.kill()

        assert handle.result()


def test_calls_in_workers_and_in_this_process_share_the_slots(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """And give them back when no call needs them."""
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver, executor=pool)
        def flow(folder: str) -> list[bool]:
            calls = [called(folder) for called in (alone, alone_on_a_thread) * 3]
            return [call.result() for call in calls]

        assert [True] * 6 == flow.run(str(tmp_path), id="a")
        theirs = slot_of(saver)
        theirs.take_when_free()
        theirs.close()


def test_each_store_has_slots_of_its_own(pool: ProcessExecutor, tmp_path: Path) -> None:
    """Also for runs of one pool, and for a run without a store."""
    flow = flow_of(alone_on_a_thread, pool)
    with LMDBSaver(tmp_path / "one") as one, LMDBSaver(tmp_path / "two") as two:
        theirs = slot_of(one)
        assert 1 == theirs.available(0, 0.0)

        for saver in (two, InMemorySaver()):
            assert flow.copy({"checkpointer": saver}).run(str(tmp_path), id="a")
        assert flow.run(str(tmp_path))

        theirs.close()
        assert flow.copy({"checkpointer": one}).run(str(tmp_path), id="a")


def test_a_call_that_needs_the_slot_of_its_caller_is_refused(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """With the name that the program gave the limit."""
    flow = flow_of(outer, pool, str(tmp_path / "store"))

    with pytest.raises(ResourcesError) as caught:
        flow.run(str(tmp_path), id="a")

    assert ("licence", 1, 1) == (
        caught.value.resource,
        caught.value.requested,
        caught.value.available,
    )


@pytest.mark.parametrize("called", [alone, alone_on_a_thread], ids=["worker", "thread"])
def test_a_store_without_lock_files_is_refused(
    pool: ProcessExecutor, tmp_path: Path, called: Any
) -> None:
    """As one on a server."""

    class ServerSaver(InMemorySaver):
        path = "postgresql://server/runs"
        locks_folder = ""

    flow = flow_of(called, pool, ServerSaver())

    with pytest.raises(ConfigurationError, match="postgresql://server/runs has no"):
        flow.run(str(tmp_path), id="a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits_scope": "program"}, "limits_scope is 'program'; use 'pool', or"),
        (
            {"limits_scope": "store", "limits_folder": "limits"},
            "limits_scope='store' and limits_folder= are both given",
        ),
    ],
)
def test_a_scope_that_makes_no_sense_is_refused(
    options: dict[str, Any], message: str
) -> None:
    """When the executor is made."""
    with pytest.raises(ConfigurationError, match=message):
        ProcessExecutor(1, limits={"licence": 1}, **options)
