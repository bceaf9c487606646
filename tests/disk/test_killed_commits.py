"""A run that is killed inside a commit, while another process has the store open.

LMDB shows a commit to readers only once its writer has noted its number in the lock
file. If the writer has written everything else, and dies before that, no reader sees
the commit until the next write, which notes the number first.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowpregel._core.records import Address
from tests.disk import workloads
from tests.disk.nursery import AFTER, KILL, TEAR, Nursery

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("act", [KILL, TEAR, AFTER], ids=["before", "in", "after"])
def test_the_next_owner_sees_what_a_killed_one_has_committed(
    nursery: Nursery, tmp_path: Path, act: int
) -> None:
    """Otherwise it would continue from an older checkpoint, and repeat the newest."""
    store, done = tmp_path / "store", tmp_path / "done"
    nursery.ok(workloads.fill, str(store))
    shutil.copytree(store, done)
    calls = nursery.ok(workloads.continue_run, str(done), folder=str(done)).calls
    kills = 0
    for number in range(1, calls + 1):
        path = tmp_path / str(number)
        shutil.copytree(store, path)
        disk = {"folder": str(path), "act": act, "first": number, "last": number}
        with workloads.opened(str(path)) as saver:
            kills += nursery.run(workloads.continue_run, str(path), **disk).killed
            with saver.lease("a"):
                seen = saver.load(Address("a"))
                saver.delete_thread("b")

                newest = saver.load(Address("a"))

        assert seen is not None
        assert newest is not None
        assert seen.checkpoint.step == newest.checkpoint.step, number
    assert kills > 0
