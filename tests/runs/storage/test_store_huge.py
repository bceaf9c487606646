"""What takes minutes, or gigabytes: done by ``tox -e crash``."""

import hashlib
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.runs.stores import commit, environment_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("FLOWPREGEL_CRASH_ALL"),
        reason=(
            "takes minutes and gigabytes; tox -e crash runs it (FLOWPREGEL_CRASH_ALL=1)"
        ),
    ),
]
SIZE = 3 << 30


def available():
    """Return the bytes of memory that can be had."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) << 10


def test_a_value_of_three_gibibytes_comes_back(tmp_path):
    """More than 32 bits can count, through a map that begins small."""
    if available() < 5 * SIZE or shutil.disk_usage(tmp_path).free < 3 * SIZE:
        pytest.skip(
            f"needs {5 * SIZE >> 30} GiB of memory and {3 * SIZE >> 30} of disk"
        )
    value = os.urandom(1 << 20) * (SIZE >> 20)
    with LMDBSaver(tmp_path / "store", map_size=1) as saver:
        commit(saver, 0, {"n": value})
        expected = hashlib.sha256(value).digest()
        del value
        found = saver.load(Address("t")).checkpoint.values["n"]

        assert len(found) == SIZE
        assert hashlib.sha256(found).digest() == expected
        del found
        saver.delete_thread("t")


def repeat(seconds, work):
    """Do *work* again and again; return how often."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        work(count)
        count += 1
    return count


def test_readers_and_writers_go_on_for_a_minute_while_the_map_grows(tmp_path):
    """Eight OS threads, the map growing every 5 ms: `test_store_threads` for longer."""
    path = tmp_path / "store"
    with LMDBSaver(path, map_size=1) as saver, ThreadPoolExecutor(8) as threads:
        commit(saver, 0, {"n": b"first"}, thread="read")
        environment = environment_of(path)

        def grow(_):
            if environment.sizes()[1] < 1 << 40:
                environment.grow()
            threading.Event().wait(0.005)

        def read(_):
            assert saver.load(Address("read")).checkpoint.values == {"n": b"first"}

        def writer(name):
            return lambda number: commit(
                saver, number, {"n": bytes(2_000)}, thread=name
            )

        names = ["t0", "t1", "t2", "t3"]
        works = [*map(writer, names), grow, read, read, read]
        counts = [*threads.map(partial(repeat, 60), works)]
        environment.close()

        newest = [saver.load(Address(name)).checkpoint.step + 1 for name in names]
        assert newest == counts[:4]
        assert sum(newest) > 100
        assert saver.verify().ok
