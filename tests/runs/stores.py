"""What the tests of the durable store have in common."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from flowpregel._core.records import Address, Batch, Checkpoint, TaskWrites
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.plugins.sqlite import SQLiteSaver
from flowpregel.storage.lmdb.store import open_store
from flowpregel.storage.options import StoreOptions

KEY = "the tests' key"
ROOT = Path(__file__).parents[2]


def id_of(number):
    """Return the checkpoint id of a superstep."""
    return f"{number:08x}-0000-6000-8000-000000000000"


def step(number, values=None, *, parent=True, also=(), **more):
    """Return the checkpoint of a superstep that writes *values*; *also* are other
    versions.
    """
    values = {"n": number} if values is None else values
    version = number + 1
    return Checkpoint(
        id=id_of(number),
        parent_id=id_of(number - 1) if number and parent else None,
        at=1_000_000_000 * version,
        step=number,
        source="loop",
        channel_versions={**dict.fromkeys(values, version), **dict(also)},
        versions_seen={"node": dict.fromkeys(values, version)},
        changed=(*values, *more.get("deltas", ())),
        updated_channels=tuple(values),
        values=values,
        metadata={"run_id": "r"},
        **more,
    )


def commit(saver, number, values=None, *, thread="t", fence=None):
    """Commit a superstep, with a pending write on the one before."""
    writes = ()
    if number:
        writes = (TaskWrites(id_of(number - 1), "task", "path", (("n", number),)),)
    checkpoint = step(number, values)
    saver.commit(
        [
            Batch(
                address=Address(thread),
                checkpoint=checkpoint,
                writes=writes,
                fence=fence,
            )
        ]
    )


def saver_at(path, **options):
    """Return the saver of the store at *path*: a database of SQLite if it ends with
    ``.db``, else a folder of LMDB.
    """
    make = SQLiteSaver if str(path).endswith(".db") else LMDBSaver
    return make(path, **options)


def environment_of(path):
    """Return the environment that a store's savers in this process share; close it."""
    return open_store(path, options=StoreOptions()).environment


def newest(path, thread="t"):
    """Return the number of a thread's newest superstep as a fresh process would see
    it.
    """
    with saver_at(path) as saver:
        found = saver.load(Address(thread))
        return None if found is None else found.checkpoint.step


PRELUDE = """
import os, sys, time
from flowpregel._core.records import Address, Batch
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import *
from tests.runs.stores import commit, environment_of, id_of, saver_at, step
path = sys.argv[1]
"""


KEEP_OPEN = """
saver = saver_at(path)
print("open", flush=True)
sys.stdin.readline()
commit(saver, 1)
saver.close()
"""
"""For `start`: has the store open until it is told to go on, and commits once more."""


def start(code, *arguments, key=KEY, fault="", **options):
    """Start *code* in a process of its own, its stdout a pipe.

    Args:
        code: The program, which begins with `PRELUDE`.
        arguments: The arguments of the program.
        key: The key of stores.
        fault: A fault point and an action, for ``FLOWPREGEL_FAULT``.
        options: Arguments of ``Popen``.
    """
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FLOWPREGEL_STORE_KEY": key,
            "FLOWPREGEL_FAULT": fault,
        },
        **options,
    )


def finish(process, timeout=60):
    """Wait until a process has ended well; return what it printed."""
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, out
    return out


def until(condition, timeout=20):
    """Look again and again until *condition* holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()
