"""What a call is given: what its caller had at the call, or the value of a handle."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowpregel
from flowpregel import Shared, shared
from flowpregel._core.records import Arguments
from flowpregel._pickling.crossing import dumps
from flowpregel._pickling.sent_modules import send_by_value
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.executors.shared import PackedResult, captured, write_parts
from flowpregel.func import entrypoint, task

SMALL, LARGE = 128, 1_250_000
EXECUTORS = pytest.mark.parametrize(
    "executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]
)
SAVERS = pytest.mark.parametrize(
    "saver", [None, InMemorySaver], ids=["volatile", "durable"]
)
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["1 kB", "10 MB"])


# ------------------------------------------------ without a handle


@task
def listed(value: Any) -> list[Any]:
    return [
        float(each) for each in (value.values() if isinstance(value, dict) else value)
    ][-3:]


def changed(value: Any) -> None:
    """Make every item of *value* a 9."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        value[key] = 9


VALUES = {
    "list": lambda: [0, 0, 0],
    "dict": lambda: {"a": 0, "b": 0, "c": 0},
    "bytearray": lambda: bytearray(3),
    "small array": lambda: np.zeros(SMALL),
    "large array": lambda: np.zeros(LARGE // 50),
}


@SAVERS
@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
def test_a_worker_gets_what_its_caller_had_at_the_call(
    kind: str, saver: Any, drive: Any
) -> None:
    """Though the caller changes it before the call is sent, and calls again."""

    @entrypoint(executor="processes", checkpointer=saver and saver())
    def flow(_: int) -> list[list[float]]:
        value: Any = VALUES[kind]()
        before = [listed(value) for _ in range(20)]
        changed(value)
        after = listed(value)
        return [each.result() for each in (*before, after)]

    found = drive.invoke(flow, 0, thread_id="1")

    assert [[0.0] * 3] * 20 + [[9.0] * 3] == found


# ------------------------------------------------ the future of a large result


class Large:
    """A value that counts how often this process has pickled it."""

    nbytes = 1 << 20
    pickled = 0

    def __reduce__(self) -> Any:
        Large.pickled += 1
        return Large, ()


@task
def large() -> Large:
    return Large()


@task
def kind_of(value: Any, _: Any) -> str:
    return type(value).__name__


@pytest.mark.slow
def test_a_result_is_pickled_once_for_all_calls_that_get_its_future() -> None:
    """The body has not read it."""
    are_made = threading.Event()
    wait = task(executor="threads")(lambda: are_made.wait(60))

    @entrypoint(executor="processes")
    def flow(count: int) -> list[str]:
        value, waiting = large(), wait()
        calls = [kind_of(value, waiting) for _ in range(count)]
        are_made.set()
        return [call.result() for call in calls]

    Large.pickled = 0
    assert ["Large"] * 5 == flow.invoke(5)
    assert 1 == Large.pickled


def test_arguments_of_which_one_cannot_be_pickled_have_no_packed_result() -> None:
    """The error of their call, and its record, show the result."""
    packed = PackedResult(write_parts([1, 2], lambda size: None))
    lock = threading.Lock()

    arguments = captured(Arguments((packed, lock), {"more": packed}))

    assert ([1, 2], lock) == arguments.args
    assert {"more": [1, 2]} == arguments.kwargs


WITHOUT_TESTS = """
import pickle, sys
sys.modules["tests"] = None
(value,) = pickle.load(sys.stdin.buffer).args
print(type(value).__name__, value.nbytes)
"""


@pytest.mark.slow
def test_a_packed_result_takes_the_code_along_that_the_other_process_lacks() -> None:
    """As arguments that are not packed do."""
    packed = PackedResult(write_parts(Large(), lambda size: None))
    with send_by_value(frozenset({"tests"})):
        data = dumps(Arguments((packed,), {}))

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TESTS],
        input=data,
        capture_output=True,
        check=False,
    )

    assert (b"Large 1048576\n", b"") == (done.stdout, done.stderr)


@task
def zeros() -> Any:
    return np.zeros(LARGE // 50)


@task(executor="inline")
def changed_here(value: Any) -> None:
    changed(value)


CHANGES = {
    "result": lambda future: changed(future.result()),
    "value": lambda future: changed(future.value()),
    "a task in this process": lambda future: changed_here(future).result(),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_result_that_was_changed_is_not_what_earlier_calls_got(change: str) -> None:
    """By what the body has got, or by a task that got the object itself."""

    @entrypoint(executor="processes", check_mutations=False)
    def flow(_: int) -> list[list[float]]:
        future = zeros()
        before = [listed(future), listed(future)]
        # The calls have what they get from here on.
        for call in before:
            call.result()
        earlier = listed(future)
        CHANGES[change](future)
        return [call.result() for call in (*before, earlier, listed(future))]

    assert [[0.0] * 3] * 3 + [[9.0] * 3] == flow.invoke(0)


@pytest.mark.slow
def test_an_async_body_may_change_what_it_has_passed(drive: Any) -> None:
    """It is captured without blocking the loop."""

    @entrypoint(executor="processes")
    async def flow(_: int) -> list[list[float]]:
        array, calls = np.zeros(LARGE), []
        for number in range(4):
            array[-3:] = number
            calls.append(listed(array))
        return list(await asyncio.gather(*calls))

    assert [[float(n)] * 3 for n in range(4)] == drive.invoke(flow, 0)


@pytest.mark.slow
def test_a_function_of_a_pool_gets_what_its_caller_had(tmp_path: Path) -> None:
    """`submit` captures as a call does."""
    with ProcessExecutor(1) as pool:
        array = np.zeros(LARGE)
        blocked = pool.submit(_wait_for, str(tmp_path / "go"))
        future = pool.submit(np.sum, array)
        array[:] = 1
        (tmp_path / "go").touch()

        assert 0.0 == future.result()
        blocked.result()


def _wait_for(path: str) -> None:
    while not os.path.exists(path):
        os.sched_yield()


@pytest.mark.slow
def test_what_is_captured_of_many_large_arrays_is_bounded(drive: Any) -> None:
    """The caller waits until workers are done with earlier ones."""

    @entrypoint(executor="processes")
    def flow(_: int) -> float:
        array = np.zeros(8 * LARGE)
        return sum(
            sum(each.result()) for each in [listed(array[-9:]) for _ in range(3)]
        ) + sum(sum(each.result()) for each in [tail(array) for _ in range(6)])

    assert 0.0 == drive.invoke(flow, 0)


@task
def tail(array: np.ndarray) -> list[float]:
    return [float(each) for each in array[-3:]]


@task
def identity(value: Any) -> int:
    return id(value)


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_task_in_this_process_gets_the_object_itself(
    executor: str, drive: Any
) -> None:
    """As any function does: nothing is copied."""

    @entrypoint(executor=executor)
    def flow(_: int) -> bool:
        value = [threading.Lock()]
        return identity(value).result() == id(value)

    assert drive.invoke(flow, 0)


def anonymous_bytes() -> int:
    """Return the memory of this process that it shares with nobody: what a copy would
    take.
    """
    with open("/proc/self/status") as file:
        (size,) = [line.split()[1] for line in file if line.startswith("RssAnon:")]
    return int(size) << 10


def read_all(array: Any) -> tuple[float, int]:
    return float(array.sum()), anonymous_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("as_handle", [False, True], ids=["array", "handle"])
def test_a_large_array_is_not_copied_by_the_worker_that_reads_it(
    as_handle: bool,
) -> None:
    """It is mapped there; and its caller has no copy but that in shared memory."""
    array = np.ones(8 * LARGE)
    with ProcessExecutor(1) as pool:
        _, empty = pool.submit(read_all, np.ones(LARGE // 8)).result()
        before = anonymous_bytes()
        handle: Any = shared(array) if as_handle else array
        found = [pool.submit(read_all, handle).result() for _ in range(3)]

    assert [float(array.size)] * 3 == [total for total, _ in found]
    assert max(size for _, size in found) - empty < array.nbytes // 4
    assert anonymous_bytes() - before < array.nbytes // 4


@pytest.mark.slow
def test_a_large_array_is_not_copied_by_the_caller_that_receives_it() -> None:
    """It lies where the worker has written it."""
    with ProcessExecutor(1) as pool:
        assert 8.0 == pool.submit(np.ones, 8).result().sum()
        before = anonymous_bytes()
        array = pool.submit(np.ones, 8 * LARGE).result()

        assert float(array.size) == array.sum()
        assert anonymous_bytes() - before < array.nbytes // 4


# ------------------------------------------------ with a handle


@task
def total(array: np.ndarray) -> float:
    return float(array.sum())


@task
def overwrite(array: np.ndarray) -> float:
    array += 1
    return float(array.sum())


@SIZES
@EXECUTORS
@SAVERS
def test_tasks_receive_the_value_of_a_handle(
    executor: str, saver: Any, size: int, drive: Any
) -> None:
    """As it was when it was shared, by position and by name."""

    @entrypoint(executor=executor, checkpointer=saver and saver())
    def flow(_: int) -> list[float]:
        array = np.ones(size)
        handle: Any = shared(array)
        array[:] = 5
        calls = [total(handle), total(array=handle), *total.map([handle] * 3)]
        return [each.result() for each in calls]

    assert [float(size)] * 5 == drive.invoke(flow, 0, thread_id="1")


@SIZES
@EXECUTORS
def test_each_task_may_write_to_its_own_copy(
    executor: str, size: int, drive: Any
) -> None:
    """No other task sees that, nor does the handle."""

    @entrypoint(executor=executor)
    def flow(_: int) -> list[float]:
        handle: Any = shared(np.zeros(size))
        found = [each.result() for each in [overwrite(handle) for _ in range(4)]]
        return [*found, float(handle.value.sum())]

    assert [float(size)] * 4 + [0.0] == drive.invoke(flow, 0)


@task
def nested(given: dict[str, list[Shared[np.ndarray]]]) -> list[float]:
    handle: Any = given["arrays"][0]
    handle.value[:] = 7
    return [float(handle.value.sum()), total(handle).result(), total.func(handle.value)]


@SIZES
@EXECUTORS
def test_a_handle_inside_of_an_argument_has_a_value(
    executor: str, size: int, drive: Any
) -> None:
    """And a task can pass it on to the tasks that it calls."""

    @entrypoint(executor=executor)
    def flow(_: int) -> list[float]:
        return nested({"arrays": [shared(np.ones(size))]}).result()

    assert [float(size)] * 3 == drive.invoke(flow, 0)


@EXECUTORS
def test_a_handle_goes_through_a_map_in_chunks(executor: str, drive: Any) -> None:
    """Each item receives the value."""

    @entrypoint(executor=executor)
    def flow(_: int) -> list[float]:
        handle = shared(np.ones(LARGE))
        return [each.result() for each in total.map([handle] * 5, chunksize=2)]

    assert [float(LARGE)] * 5 == drive.invoke(flow, 0)


@pytest.mark.slow
def test_plain_functions_of_a_pool_receive_the_value() -> None:
    """By `submit` and by `map`."""
    with ProcessExecutor(2) as pool, shared(np.ones(LARGE)) as handle:
        found = [pool.submit(np.sum, handle).result(), *pool.map(np.sum, [handle] * 3)]

    assert [float(LARGE)] * 4 == found


@task
def note(path: str, array: np.ndarray) -> float:
    with Path(path).open("a") as file:
        file.write("ran\n")
    return float(array.sum())


@EXECUTORS
def test_a_resumed_run_finds_calls_by_the_value_of_their_handle(
    executor: str, tmp_path: Path, drive: Any
) -> None:
    """The program shares its value again; another value is another call."""
    fails = [False, True]
    ran = tmp_path / "ran"

    @entrypoint(executor=executor, checkpointer=LMDBSaver(tmp_path / "store"))
    def flow(size: int) -> float:
        found = note(str(ran), shared(np.ones(size))).result()  # type: ignore[arg-type]
        if fails.pop():
            raise RuntimeError("once")
        return found

    with pytest.raises(RuntimeError, match="once"):
        drive.invoke(flow, LARGE, thread_id="1")

    assert float(LARGE) == drive.invoke(flow, None, thread_id="1")
    assert "ran\n" == ran.read_text()


def test_a_closed_handle_is_refused() -> None:
    """It says what to do."""
    with shared([1]) as handle:
        assert [1] == handle.value

    with pytest.raises(ValueError, match="make a new one"):
        _ = handle.value
    with pytest.raises(ValueError, match="make a new one"):
        pickle.dumps(handle, 5)


def test_memory_goes_with_the_handle() -> None:
    """But a task's or a caller's own view of the value keeps it."""
    size = 80_000_000

    def shared_bytes() -> int:
        with open("/proc/self/smaps_rollup") as file:
            lines = [line.split() for line in file]
        return sum(int(line[1]) for line in lines if line[0] == "Pss_Shmem:") << 10

    before = shared_bytes()
    handle = shared(np.ones(size // 8))
    assert shared_bytes() >= before + size - (1 << 20)
    kept = handle.value
    del handle

    assert 1.0 == kept[77]
    del kept
    assert shared_bytes() <= before + (1 << 20)


def test_a_handle_survives_other_processes_and_records() -> None:
    """Here it comes back as itself; elsewhere it has the value."""
    handle = shared(np.arange(LARGE))
    assert pickle.loads(pickle.dumps(handle, 5)) is handle

    data = pickle.dumps(handle, 5)
    del handle

    assert LARGE - 1 == pickle.loads(data).value[-1]
    assert LARGE - 1 == pickle.loads(pickle.dumps(pickle.loads(data), 5)).value[-1]


def share_here(value: float) -> Shared[Any]:
    return shared(np.full(LARGE, value))


@pytest.mark.slow
def test_a_handle_from_a_worker_outlives_it(tmp_path: Path) -> None:
    """Whatever gets the numbers of the descriptors that were closed."""
    with ProcessExecutor(1) as pool:
        handle = pool.submit(share_here, 7.0).result()
    other = tmp_path / "other"
    other.write_bytes(bytes(9 * LARGE))
    files = [other.open("rb") for _ in range(50)]

    values = [handle.value, handle.value]

    assert [7.0, 7.0] == [float(each[-1]) for each in values]
    for file in files:
        file.close()


def test_what_cannot_be_pickled_cannot_be_shared() -> None:
    """The error says where it is."""
    with pytest.raises(ConfigurationError, match=r"value\['lock'\]: _thread.lock"):
        shared({"lock": threading.Lock()})


def test_the_handle_is_public() -> None:
    """Under both of its names."""
    assert isinstance(flowpregel.shared(1), flowpregel.Shared)
    assert "<shared int>" == repr(shared(1))


class Loaded:
    """Notes in which process it was unpickled."""

    pid = 0

    def __setstate__(self, state: object) -> None:
        self.pid = os.getpid()

    def __getstate__(self) -> object:
        return {"not": "empty"}


@task
def pids(loaded: Loaded) -> tuple[int, int]:
    return loaded.pid, os.getpid()


@pytest.mark.slow
def test_an_argument_is_unpickled_by_its_worker_alone(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever that does, it is not done where the call was made."""
    here: list[object] = []
    monkeypatch.setattr(Loaded, "__setstate__", lambda self, state: here.append(state))

    @entrypoint(executor="processes")
    def flow(_: int) -> tuple[int, int]:
        return pids(Loaded()).result()

    loaded, worker = drive.invoke(flow, 0)

    assert loaded == worker
    assert [] == here
