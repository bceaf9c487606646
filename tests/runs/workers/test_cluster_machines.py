"""A cluster of one machine, this process: a slow engine, and one that loses values."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.executors.cluster import ClusterExecutor, RemotePool, pool_host
from flowpregel.executors.cluster.engine_watch import AwakeClock
from flowpregel.func import entrypoint, task
from tests.slot_books import SlotBooks

pytestmark = pytest.mark.slow


class SteppingClock(AwakeClock):
    """A clock that goes on by some seconds at each check."""

    def __init__(self) -> None:
        super().__init__()
        self.is_late = threading.Event()
        """Set when a silent machine would have been abandoned twice."""

    def tick(self) -> float:
        """Go on by less than the time after which a machine is abandoned."""
        self.now += 4.0
        if self.now > 24:
            self.is_late.set()
        return self.now


class ThisMachine(SlotBooks, RemotePool):
    """An engine whose only machine is this process, and notes what is asked of it."""

    def __init__(self, clock: AwakeClock | None = None) -> None:
        self.puts = 0
        self.batches = 0
        self.answers: list[int] = []
        """The sizes of the answers to polls."""
        super().__init__("this machine", 60.0, clock)

    def machines(self) -> Mapping[str, int]:
        return {"here": 2}

    def put_buffer(self, address: str, data: memoryview) -> Any:
        self.puts += 1
        return bytes(data)

    def run_batch(
        self, address: str, packed: bytes, buffers: Mapping[int, Any]
    ) -> Future[Any]:
        self.batches += 1
        host = pool_host(2, self.name)
        return host.run(self.name, packed, list(buffers), *buffers.values())

    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        answer: Future[Any] = getattr(pool_host(2, self.name), method)(self.name, *args)
        if method == "poll":
            answer.add_done_callback(self.note_size)
        return answer

    def note_size(self, answer: Future[Any]) -> None:
        """Note the size of an answer."""
        self.answers.append(sum(memoryview(part).nbytes for part in answer.result()))


class SlowLink(ThisMachine):
    """Answers to polls wait until the link is free."""

    def __init__(self, clock: AwakeClock) -> None:
        self.waiting: list[tuple[Future[Any], Any]] = []
        self.is_free = False
        super().__init__(clock)

    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        if method != "poll" or self.is_free:
            return super().call(address, method, *args)
        answer = Future[Any]()
        self.waiting.append((answer, (address, method, *args)))
        return answer

    def free(self) -> None:
        """Let all answers through."""
        self.is_free = True
        for answer, call in self.waiting:
            arrived = self.call(*call)
            arrived.add_done_callback(
                lambda done, to=answer: to.set_result(done.result())
            )


def pass_on(answer: Future[Any], arrived: Future[Any]) -> None:
    """Let an answer arrive."""
    answer.set_result(arrived.result())


class FailingEngine(ThisMachine):
    """The first batch and the first large value are lost."""

    def __init__(self) -> None:
        self.is_lost = {"run", "fetch"}
        super().__init__()

    def run_batch(self, *args: Any) -> Future[Any]:
        if "run" in self.is_lost:
            self.is_lost.remove("run")
            raise OSError("the machine with the value is gone")
        return super().run_batch(*args)

    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        if method in self.is_lost:
            self.is_lost.remove(method)
            raise OSError("the connection was cut")
        return super().call(address, method, *args)


class LosingEngine(ThisMachine):
    """Its machine can be lost, and another one comes then."""

    is_lost = False

    def machines(self) -> Mapping[str, int]:
        return {"there": 2} if self.is_lost else super().machines()

    def lose(self) -> None:
        """Lose the machine."""
        host = pool_host(2, self.name)
        host.poll(self.name, [("end", 0, 0)], 0, 0, False, 0).result(60)
        self.is_lost = True


@task
def child(folder: str, number: int) -> int:
    with (Path(folder) / "calls").open("a") as calls:
        calls.write("called\n")
    return 2 * number


@task
def parent(folder: str, number: int) -> int:
    """Call a task; the first time, report that and wait for the end."""
    doubled = child(folder, number).result()
    path = Path(folder) / "called"
    if path.exists():
        with path.open("w") as pipe:
            pipe.write("called")
        threading.Event().wait()
    return doubled


def test_a_task_whose_machine_is_lost_after_its_calls_is_replayed(
    tmp_path: Path,
) -> None:
    """Its calls are answered from the record, and not made again."""
    pool = LosingEngine()
    pipe = tmp_path / "called"
    os.mkfifo(pipe)

    def lose() -> None:
        pipe.read_text()
        pipe.unlink()
        pool.lose()

    with ClusterExecutor(pool) as executor:

        @entrypoint(executor=executor, checkpointer=InMemorySaver())
        def flow(number: int) -> int:
            return parent(str(tmp_path), number).result()

        thread = threading.Thread(target=lose)
        thread.start()
        assert 10 == flow.run(5, id="1")
        thread.join()
    assert "called\n" == (tmp_path / "calls").read_text()


def test_a_machine_whose_answer_is_long_on_the_wire_keeps_its_tasks() -> None:
    """It shows that it is alive apart from that."""
    clock = SteppingClock()
    pool = SlowLink(clock)
    with ClusterExecutor(pool) as executor:
        future = executor.submit(abs, -3)
        assert clock.is_late.wait(60)
        pool.free()

        assert 3 == future.result(60)
    assert 1 == pool.batches


def test_a_large_result_holds_up_no_answer_to_a_poll() -> None:
    """It is fetched by itself."""
    pool = ThisMachine()
    with ClusterExecutor(pool) as executor:
        assert bytes(8 << 20) == executor.submit(bytes, 8 << 20).result(60)

    assert max(pool.answers) < 1 << 20


@task
def large(number: int) -> bytearray:
    return bytearray([number]) * (2 << 20)


@task
def first_of(value: bytearray, increment: int, _: Any) -> int:
    value[0] += increment
    return value[0]


def test_an_engine_gets_a_result_once_for_all_its_calls() -> None:
    """Each of which may change what it has got."""
    pool = ThisMachine()
    are_made = threading.Event()
    wait = task(executor="threads")(lambda: are_made.wait(60))
    with ClusterExecutor(pool) as executor:

        @entrypoint(executor=executor, check_mutations=False)
        def flow(count: int) -> list[int]:
            value, waiting = large(100), wait()
            calls = [first_of(value, number, waiting) for number in range(count)]
            are_made.set()
            return [call.result() for call in calls]

        assert [100, 101, 102, 103] == flow.invoke(4)
    assert 1 == pool.puts


def test_a_large_value_that_an_engine_has_lost_is_sent_again() -> None:
    """An argument with its task, a result from its machine."""
    pool = FailingEngine()
    with ClusterExecutor(pool) as executor:
        value = bytes(range(256)) * (1 << 14)

        assert value == executor.submit(bytes, value).result(60)

    assert 2 == pool.puts
    assert set() == pool.is_lost
