"""What the coordinator of a cluster asks of its machines."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from flowpregel.errors import ExecutorUnavailableError
from flowpregel.executors.processes.wire import serialization
from flowpregel.plugins.cluster.engine import EngineExecutor, RemotePool
from flowpregel.plugins.cluster.machine import RemotePoolHost
from flowpregel.plugins.cluster.remote_hosts import Buffers


class RecordedPool(RemotePool):
    """Two machines that never answer."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.got: Future[str] = Future()
        """The machine that got the first batch."""
        super().__init__("test", 60.0)

    def _machines(self) -> Mapping[str, int]:
        return {"first": 1, "second": 1}

    def _put(self, address: str, data: memoryview) -> Any:
        raise NotImplementedError

    def _run(
        self, address: str, packed: bytes, buffers: Mapping[int, Any]
    ) -> Future[Any]:
        self.got.set_result(address)
        return Future()

    def call(self, address: str, method: str, *args: Any) -> Future[Any]:
        self.asked.add(address)
        return Future()


def test_nothing_is_asked_of_a_machine_that_was_never_used() -> None:
    """Not even to end what the executor has there: it would make a pool for that."""
    pool = RecordedPool()
    with EngineExecutor(pool) as executor:
        executor.submit(len, ())
        used = pool.got.result(60)
        executor.close()

    assert {used} == pool.asked


def test_a_batch_for_a_coordinator_that_is_gone_keeps_no_memory() -> None:
    """It was on its way when the machine gave its coordinator up."""
    buffers = Buffers()
    data = bytes(1 << 20)
    body, (ref,) = serialization.pack(data, buffers.share)
    order = (0, "task", 0, None, (), b"digest", body)
    packed = pickle.dumps((1, {b"digest": b"code"}, [order]))
    with RemotePoolHost(1) as machine:
        machine.client("gone").is_closed = True

        ended = machine.run("gone", packed, [ref.segment], data)

        assert isinstance(ended.exception(60), ExecutorUnavailableError)
        assert 0 == len(machine._pool.arena)  # noqa: SLF001 - what nobody will read
