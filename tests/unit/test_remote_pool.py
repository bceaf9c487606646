"""What the coordinator of a cluster asks of its machines."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import cloudpickle
import pytest

from flowpregel._loggers import worker_log
from flowpregel.errors import ExecutorUnavailableError, RunNotice
from flowpregel.executors.cluster.cluster_executor import ClusterExecutor
from flowpregel.executors.cluster.engine_watch import AwakeClock
from flowpregel.executors.cluster.handshake import own_versions
from flowpregel.executors.cluster.machine import RemotePoolHost
from flowpregel.executors.cluster.remote_hosts import Buffers
from flowpregel.executors.cluster.remote_pool import RemotePool
from flowpregel.executors.processes.wire import serialization
from tests.slot_books import SlotBooks


class RecordedPool(SlotBooks, RemotePool):
    """Two machines that answer nothing but the handshake.

    Args:
        versions: What machines report, by address, if that is not what we have.
    """

    packages: Mapping[str, str] | None = None
    """The versions of packages that machines report; None: no answer."""

    def __init__(self, **versions: Mapping[str, str]) -> None:
        self.versions = versions
        self.asked: set[str] = set()
        self.released: Future[str] = Future()
        """The machine that was asked to release a slot."""
        self.got: Future[str] = Future()
        """The machine that got the first batch."""
        super().__init__("test", 60.0)

    def machines(self) -> Mapping[str, int]:
        return {"first": 1, "second": 1}

    def put_buffer(self, address: str, data: memoryview) -> Any:
        raise NotImplementedError

    def run_batch(
        self, address: str, packed: bytes, buffers: Mapping[int, Any]
    ) -> Future[Any]:
        self.got.set_result(address)
        return Future()

    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        self.asked.add(address)
        answer = Future[Any]()
        if method == "handshake":
            versions = self.versions.get(address, own_versions())
            answer.set_result([pickle.dumps(versions)])
        if method == "poll":
            commands = args[0]
            if any(verb == "release" for verb, *_ in commands):
                self.released.set_result(address)
                answer.set_result(None)
        if method == "inspect" and self.packages is not None:
            answer.set_result([pickle.dumps((self.packages, [], 0.0))])
        return answer

    def release_machines(self) -> None:
        self.asked.add("release")


def test_nothing_is_asked_of_a_machine_that_was_never_used() -> None:
    """Not even to end what the executor has there: it would make a pool for that."""
    pool = RecordedPool()
    with ClusterExecutor(pool) as executor:
        executor.submit(len, ())
        used = pool.got.result(60)
        executor.close()

    assert {used, "release"} == pool.asked


def test_an_engine_releases_its_machines_beside_the_resources_of_the_pool() -> None:
    """A plug-in that releases something of its own leaves no OS thread of the pool."""
    pool = RecordedPool()
    thread: Future[threading.Thread] = Future()
    with ClusterExecutor(pool) as executor:
        executor.submit(len, ())
        pool.got.result(60)
        pool.callbacks.call(lambda: thread.set_result(threading.current_thread()))
        thread.result(60)
        executor.close()

    assert "release" in pool.asked
    assert not thread.result().is_alive()


@pytest.mark.parametrize("address", ["first", "second"])
def test_a_machine_with_other_versions_gets_no_batch(address: str) -> None:
    """Another machine gets the tasks."""
    pool = RecordedPool(**{address: {"flowpregel": "0.0.1"}})
    with ClusterExecutor(pool) as executor:
        executor.submit(len, ())

        assert address != pool.got.result(60)
        executor.close()


def test_a_machine_with_other_versions_keeps_no_slot() -> None:
    """Its CPU is free for the programs of others at once."""
    pool = RecordedPool(first={"flowpregel": "0.0.1"})
    with ClusterExecutor(pool) as executor:
        executor.submit(len, ())

        assert "first" == pool.released.result(60)
        pool.got.result(60)
        executor.close()


def test_tasks_fail_at_once_if_all_machines_have_other_versions() -> None:
    """The error names the machines and both versions."""
    old = {**own_versions(), "flowpregel": "0.0.1"}
    with ClusterExecutor(RecordedPool(first=old, second=old)) as executor:
        failed = executor.submit(len, ())

        with pytest.raises(ExecutorUnavailableError, match=r"second: it has .*0\.1"):
            failed.result(60)


class FirstWarning(logging.Handler):
    """Keeps the first warning that it gets."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text: Future[str] = Future()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of a warning, if it is the first."""
        if not self.text.done():
            self.text.set_result(record.getMessage())


@pytest.fixture
def warning() -> Iterator[Future[str]]:
    """The first warning about workers."""
    handler = FirstWarning()
    worker_log.addHandler(handler)
    yield handler.text
    worker_log.removeHandler(handler)


def test_a_machine_that_gets_no_tasks_is_named(warning: Future[str]) -> None:
    """Although another machine gets them: a user would wonder why it idles."""
    other = {**own_versions(), "Python": "3.8", "host": "node7"}
    pool = RecordedPool(first=other)
    with ClusterExecutor(pool) as executor:
        for _ in range(2):
            executor.submit(len, ())
        text = warning.result(60)
        executor.close()

    assert "the machine node7 first gets no tasks: it has Python 3.8" in text
    assert f"this program Python {own_versions()['Python']}" in text
    assert "run the program and the machines with the same minor version" in text


def run_beside_a_refused_machine() -> None:
    """Submit tasks while a machine is refused in two handshakes."""
    pool = RecordedPool(
        first={**own_versions(), "Python": "3.8", "host": "node7"},
    )
    with ClusterExecutor(pool) as executor:
        for _ in range(2):
            executor.submit(len, ())
            pool.loop.call(lambda: pool.hosts["first"].distrust())
        assert "first" == pool.released.result(60)
        executor.close()


def test_a_program_without_logging_gets_a_notice_of_a_refused_machine() -> None:
    """Once, although the machine answers another handshake."""
    with pytest.warns(RunNotice) as notices:
        run_beside_a_refused_machine()

    (notice,) = notices
    expected = "the machine node7 first gets no tasks: it has Python 3.8"
    assert str(notice.message).startswith(expected)


def test_a_machine_with_another_version_of_a_package_is_named(
    warning: Future[str],
) -> None:
    """It gets tasks, because not every difference does harm."""
    pool = RecordedPool()
    pool.packages = {"cloudpickle": "0.1"}
    with ClusterExecutor(pool) as executor:
        executor.submit(len, ())
        text = warning.result(60)
        executor.close()

    assert f"the machine {pool.got.result()} has other versions" in text
    assert f"cloudpickle 0.1 (here {cloudpickle.__version__})" in text


def test_a_program_that_was_stopped_asks_once_more() -> None:
    """A pause of any length counts as one second of silence."""
    times = iter([0.0, 0.0, 9.0, 9.5, 29.5, 30.0])
    clock = AwakeClock(lambda: next(times))

    assert [0.0, 1.0, 1.5, 2.5, 3.0] == [clock.tick() for _ in range(5)]


def test_a_batch_for_a_coordinator_that_is_gone_keeps_no_memory() -> None:
    """It was on its way when the machine gave its coordinator up."""
    buffers = Buffers()
    data = bytes(1 << 20)
    body, (ref,) = serialization.pack(data, buffers.share)
    order = (0, "task", 0, None, None, (), (), b"digest", body)
    packed = pickle.dumps((1, 1, {b"digest": b"code"}, [order]))
    with RemotePoolHost(1) as machine:
        machine.client("gone").is_closed = True

        arrival = machine.run("gone", packed, [ref.segment], data)

        assert isinstance(arrival.exception(60), ExecutorUnavailableError)
        assert 0 == len(machine._pool.arena)  # noqa: SLF001 - what nobody will read


def test_a_machine_frees_a_buffer_that_no_later_task_gets() -> None:
    """The memory is used for the next one."""
    buffers = Buffers()
    data = bytes(1 << 20)
    body, (ref,) = serialization.pack(data, buffers.share)
    order = (0, "task", 0, None, None, (), (), b"digest", body)
    packed = pickle.dumps((1, 1, {b"digest": b"code"}, [order]))
    with RemotePoolHost(1) as machine:
        machine.client("gone").is_closed = True
        machine.run("gone", packed, [ref.segment], data).exception(60)

        buffers.release([ref.id])
        commands = [("forget", 0, 0, key) for key in buffers.take_unused()]
        machine.poll("gone", commands, 0, 0, False, 1).result(60)

        assert [("forget", 0, 0, ref.segment)] == commands
        assert {} == machine._buffers  # noqa: SLF001 - its cache
