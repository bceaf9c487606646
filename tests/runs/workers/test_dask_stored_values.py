"""Large results on a Dask cluster: how much of them passes the program with the
flow.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowpregel import stored
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from tests.dask_cluster import local_cluster

pytestmark = pytest.mark.slow

SIZE = 4_000_000
"""The bytes of a result."""
COUNT = 20
COUNTED = """
import json, socket, sys

passed = {"sent": 0, "received": 0}

class CountingSocket(socket.socket):
    def counted(self, name, size):
        passed[name] += size
        return size

    def send(self, *args):
        return self.counted("sent", super().send(*args))

    def sendmsg(self, *args):
        return self.counted("sent", super().sendmsg(*args))

    def recv_into(self, *args):
        return self.counted("received", super().recv_into(*args))

    def recv(self, *args):
        data = super().recv(*args)
        self.counted("received", len(data))
        return data

socket.socket = CountingSocket
from tests.runs.workers.test_dask_stored_values import run_on

print(json.dumps([*run_on(sys.argv[1], sys.argv[2], passed)]))
"""
"""A program of its own, because it counts what all of its connections pass: a client of
Dask connects to the workers, too.
"""


@task
def ones(number: int, folder: str) -> Any:
    array = np.full(SIZE // 8, float(number))
    return stored(array, folder=folder) if folder else array


@task
def total(array: Any) -> float:
    return float(array.sum())


def run_on(
    address: str, folder: str, passed: dict[str, int]
) -> Iterator[dict[str, int]]:
    """Run three flows on a cluster, and yield the bytes that each of them has passed.

    In the first one, 20 tasks get the same stored result, in the second one, each gets
    another one, and in the third one, they get the same result, which is not stored.
    """
    from flowpregel.plugins.cluster.dask import DaskExecutor

    with DaskExecutor.connect(address) as executor:

        @entrypoint(executor=executor, checkpointer=InMemorySaver())
        def flow(folder: str, results: int) -> float:
            made = [ones(1, folder) for _ in range(results)]
            calls = [total(made[number % results]) for number in range(COUNT)]
            return sum(call.result() for call in calls)

        for kind, results in ((folder, 1), (folder, COUNT), ("", 1)):
            passed.update(sent=0, received=0)
            assert COUNT * SIZE / 8 == flow.run(kind, results, id=f"{kind} {results}")
            yield dict(passed)


def test_a_stored_result_does_not_pass_the_program(tmp_path: Path) -> None:
    """Neither when it is made nor when tasks get it; another one passes it."""
    with local_cluster() as client:
        address = client.scheduler.address
        command = [sys.executable, "-c", COUNTED, address, str(tmp_path)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)

    one_for_all, one_for_each, not_stored = json.loads(ended.stdout)

    assert max(*one_for_all.values(), *one_for_each.values()) < 1_000_000
    assert not_stored["received"] > SIZE
    assert not_stored["sent"] > SIZE
