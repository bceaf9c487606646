"""A disk of which one call fails, each in its turn: what was acknowledged is there.

Beside `test_store_failing_disk`, which does the same to some calls with strace: here it
is every call, and more kinds of failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.disk import workloads
from tests.disk.nursery import EIO, ENOSPC, SHORT, Nursery

pytestmark = pytest.mark.slow

STEPS = 4
EVERY = 1 if os.environ.get("FLOWPREGEL_CRASH_ALL") else 3
"""Every so many-th call fails: of each commit one."""


@pytest.mark.parametrize("act", [EIO, ENOSPC, SHORT], ids=["EIO", "ENOSPC", "short"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_call_that_fails_costs_no_acknowledged_commit(
    nursery: Nursery, tmp_path: Path, act: int, times: int
) -> None:
    """An error says what is so: nothing of that commit is there, and it can be tried
    again.
    """
    log = tmp_path / "log"
    LMDBSaver(tmp_path / "clean").close()
    clean = str(tmp_path / "clean")
    calls = nursery.ok(workloads.go_on, clean, str(log), STEPS, folder=clean).calls
    failures = 0
    for number in range(1, calls + 1, EVERY):
        path = tmp_path / str(number)
        LMDBSaver(path).close()
        disk = {"act": act, "first": number, "last": number + times - 1}

        ended = nursery.ok(
            workloads.go_on, str(path), str(log), STEPS, folder=str(path), **disk
        )

        failures += ended.result
        assert STEPS - 1 == workloads.acknowledged(log)
        assert STEPS - 1 == workloads.newest(str(path))
    print(
        f"{calls} calls to the disk, {failures} commits that failed and were tried "
        "again"
    )
    # A write that was cut short is only gone on with.
    assert failures > 0 or act == SHORT
