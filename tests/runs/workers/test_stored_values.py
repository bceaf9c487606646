"""Results that stay in a folder: only their handles pass the program with the flow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import flowpregel
from flowpregel import Stored, stored
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.cli.app import app
from flowpregel.errors import ConfigurationError, StoredValueError
from flowpregel.executors import delete_stored, store_result
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task
from tests.runs.crashes import Once

LARGE = 50_000
EXECUTORS = pytest.mark.parametrize(
    "executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]
)
SAVERS = pytest.mark.parametrize(
    "saver", [None, InMemorySaver], ids=["volatile", "durable"]
)


@task
def ones(size: int, folder: str) -> Stored[np.ndarray]:
    return stored(np.ones(size), folder=folder)


@task
def total(array: np.ndarray) -> float:
    return float(array.sum())


@task
def overwrite(array: np.ndarray) -> float:
    array += 1
    return float(array.sum())


@task
def nested(given: dict[str, list[Stored[np.ndarray]]]) -> list[float]:
    handle: Any = given["arrays"][0]
    handle.value[:] = 7
    return [float(handle.value.sum()), total(handle).result(), total.func(handle.value)]


@EXECUTORS
@SAVERS
def test_tasks_receive_the_value_of_a_stored_result(
    executor: str, saver: Any, tmp_path: Path, drive: Any
) -> None:
    """By position, by name, as a future, and in a map."""

    @entrypoint(executor=executor, checkpointer=saver and saver())
    def flow(size: int) -> list[float]:
        future: Any = ones(size, str(tmp_path))
        handle = future.result()
        calls = [total(future), total(handle), total(array=handle)]
        calls += total.map([handle] * 3, chunksize=2)
        return [call.result() for call in calls]

    assert [float(LARGE)] * 6 == drive.invoke(flow, LARGE, thread_id="1")


@EXECUTORS
def test_each_task_may_write_to_a_stored_result(
    executor: str, tmp_path: Path, drive: Any
) -> None:
    """No other task sees that, nor does the handle."""

    @entrypoint(executor=executor)
    def flow(size: int) -> list[float]:
        handle: Any = ones(size, str(tmp_path)).result()
        sums = [call.result() for call in [overwrite(handle) for _ in range(2)]]
        return [*sums, float(handle.value.sum())]

    assert [2.0 * LARGE] * 2 + [LARGE] == drive.invoke(flow, LARGE)


@EXECUTORS
def test_a_stored_result_inside_of_an_argument_stays_a_handle(
    executor: str, tmp_path: Path, drive: Any
) -> None:
    """Its value is read on demand; a task can pass it on to tasks that it calls."""

    @entrypoint(executor=executor)
    def flow(size: int) -> list[float]:
        return nested({"arrays": [ones(size, str(tmp_path)).result()]}).result()

    assert [float(LARGE)] * 3 == drive.invoke(flow, LARGE)


@pytest.mark.slow
def test_functions_of_a_pool_receive_the_value_of_a_handle(tmp_path: Path) -> None:
    """By `submit` and by `map`."""
    handle = stored(np.ones(LARGE), folder=tmp_path)
    with ProcessExecutor(1) as pool:
        sums = [pool.submit(np.sum, handle).result(), *pool.map(np.sum, [handle])]

    assert [float(LARGE)] * 2 == sums


def test_values_lie_in_the_folder_of_their_thread(tmp_path: Path) -> None:
    """They can be deleted with it; a task that gets one then names the file."""

    @entrypoint(executor="inline", checkpointer=InMemorySaver())
    def flow(size: int) -> Stored[np.ndarray]:
        return ones(size, str(tmp_path)).result()

    @entrypoint(executor="inline")
    def sum_of(handle: Any) -> float:
        return total(handle["handle"]).result()

    handles = [flow.run(LARGE, id=name) for name in ("a/1", "a/2")]
    delete_stored("a/1", folder=tmp_path)

    assert [tmp_path / "a%2F2"] == [*tmp_path.iterdir()]
    assert LARGE == sum_of.run({"handle": handles[1]})
    with pytest.raises(StoredValueError, match=r"a%2F1/\w+ does not exist"):
        sum_of.run({"handle": handles[0]})


def test_a_resumed_run_finds_the_calls_of_a_handle(tmp_path: Path, drive: Any) -> None:
    """Neither the result nor what was made of it is computed again."""
    fail_once = Once(RuntimeError("once"))
    calls: list[str] = []

    @task
    def make(size: int) -> Stored[np.ndarray]:
        calls.append("make")
        return stored(np.ones(size), folder=tmp_path / "values")

    @task
    def use(array: np.ndarray) -> float:
        calls.append("use")
        return float(array.sum())

    @entrypoint(executor="inline", checkpointer=LMDBSaver(tmp_path / "store"))
    def flow(size: int) -> float:
        result = use(make(size).result()).result()  # type: ignore[arg-type]
        fail_once()
        return result

    with pytest.raises(RuntimeError, match="once"):
        drive.invoke(flow, LARGE, thread_id="1")

    assert LARGE == drive.invoke(flow, None, thread_id="1")
    assert ["make", "use"] == calls


def test_show_has_the_type_and_the_size_of_a_value(tmp_path: Path) -> None:
    """Without reading the file, which is gone; --full has the file, too."""
    path = str(tmp_path / "store")
    with LMDBSaver(path) as saver:

        @entrypoint(executor="inline", checkpointer=saver)
        def flow(size: int) -> None:
            ones(size, str(tmp_path / "values")).result().delete()

        flow.run(LARGE, id="1")

    shown, full = (
        CliRunner().invoke(app, ["show", "1", "--store", path, *options]).output
        for options in ([], ["--full"])
    )

    assert "Stored(type_name='ndarray', nbytes=400" in shown
    assert f"location='{tmp_path}/values/1/" in full


def test_calls_whose_stored_values_are_gone_are_taken_back(tmp_path: Path) -> None:
    """Also if the handle is inside of the result; other calls stay."""
    made: list[int] = []
    folder = str(tmp_path / "values")

    @task(executor="inline")
    def ones_in_list(size: int) -> list[Stored[np.ndarray]]:
        made.append(size)
        return [stored(np.ones(size), folder=folder)]

    @entrypoint(executor="inline", checkpointer=str(tmp_path / "runs.lmdb"))
    def flow(sizes: list[int]) -> float:
        results = [ones_in_list(size).result() for size in sizes]
        return float(sum(handle.value.sum() for (handle,) in results))

    def redo_gone() -> str:
        words = ["redo", "1", "--gone", "--store", str(tmp_path / "runs.lmdb")]
        return CliRunner().invoke(app, words).stdout

    assert 3.0 == flow.run([1, 2], id="1")
    nothing = redo_gone()
    lost = stored(np.ones(2), folder=folder).location.replace("no-thread", "1")
    os.unlink(lost)
    taken = redo_gone()
    made.clear()

    assert nothing.startswith("no call of the outermost graph has lost an output file")
    assert "taken back: ones_in_list(2)\n" == taken
    assert 3.0 == flow.run([1, 2], id="1")
    assert [2] == made
    assert os.path.exists(lost)


def test_each_stored_value_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although a task has passed on the handle that another one returned."""
    places: list[str] = []

    def noted(location: str) -> bool:
        places.append(location)
        return False

    @task(executor="inline")
    def pass_on(handle: Any) -> Any:
        return [handle]

    @entrypoint(executor="inline", checkpointer=str(tmp_path / "runs.lmdb"))
    def flow(size: int) -> int:
        handle = ones(size, str(tmp_path / "values")).result()
        return len(pass_on({"kept": handle}).result())

    flow.run(1, id="1")
    monkeypatch.setattr("flowpregel.executors.value_files.value_exists", noted)
    words = ["redo", "1", "--gone", "--store", str(tmp_path / "runs.lmdb")]
    taken = CliRunner().invoke(app, words).stdout

    assert 1 == len(places)
    assert 2 == taken.count("taken back: ")


# ------------------------------------------------ the decorator


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_decorated_function_returns_a_handle(is_async: bool, tmp_path: Path) -> None:
    """Its code does not change."""

    def zeros(size: int) -> bytes:
        return bytes(size)

    async def zeros_async(size: int) -> bytes:
        return bytes(size)

    make: Any = task(store_result(tmp_path)(zeros_async if is_async else zeros))

    @entrypoint(executor="inline")
    async def flow(size: int) -> Any:
        return await make(size)

    handle = flow.invoke(3)

    assert (bytes(3), "bytes") == (handle.value, handle.type_name)


def test_a_decorator_above_a_task_is_refused(tmp_path: Path) -> None:
    """It would get a future."""
    with pytest.raises(ConfigurationError, match="write it below @task"):
        store_result(tmp_path)(ones)


def test_the_handle_of_a_stored_value_is_public() -> None:
    """Under both of its names."""
    assert flowpregel.stored is stored
    assert flowpregel.Stored is Stored


# ------------------------------------------------ real kills

PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from flowpregel import entrypoint, stored, task

folder = Path(sys.argv[1])

@task
def make(number):
    with (folder / "made").open("a") as file:
        file.write(f"{number}\\n")
    return stored(np.full(100_000, float(number)), folder=folder / "values")

@task
def total(array):
    return float(array.sum())

@task
def hold(handles, pipe):
    if os.path.exists(pipe):
        Path(pipe).write_text("reached")
        Path(pipe + ".never").read_text()
    return len(handles)

@entrypoint(checkpointer=folder / "store", durability="sync")
def flow(count):
    handles = [call.result() for call in [make(number) for number in range(count)]]
    sums = [total(handle).result() for handle in handles]
    return [*sums, hold(handles, str(folder / "pipe")).result()]

if __name__ == "__main__":
    print(flow.run(3, id="1"))
"""


@pytest.mark.slow
def test_a_killed_run_resumes_with_its_stored_values(tmp_path: Path) -> None:
    """The values are made once, and read by the workers of the second program."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for name in ("pipe", "pipe.never"):
        os.mkfifo(tmp_path / name)
    command = [sys.executable, str(program), str(tmp_path)]
    with subprocess.Popen(command) as first:
        assert "reached" == (tmp_path / "pipe").read_text()
        first.send_signal(signal.SIGKILL)
    os.unlink(tmp_path / "pipe")

    second = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "[0.0, 100000.0, 200000.0, 3]\n" == second.stdout
    assert ["0", "1", "2"] == sorted((tmp_path / "made").read_text().split())
