"""A SQLite store under kills, failing calls and power cuts: acknowledged commits hold.

The process whose disk is watched runs under the library that `nursery` preloads; SQLite
calls the disk through it as LMDB does.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.disk import sqlite_workloads as workloads
from tests.disk.images import MARK, UNLINK, WRITE, Disk, Image, calls_of
from tests.disk.nursery import EIO, ENOSPC, KILL, SHORT, TEAR, Nursery
from tests.disk.workloads import acknowledged

pytestmark = pytest.mark.slow

ALL = bool(os.environ.get("FLOWPREGEL_CRASH_ALL"))
SAMPLES = 40 if ALL else 4
STEPS = 12 if ALL else 5
EVERY = 1 if ALL else 7
"""Every so many-th call is the one at which something happens."""
AT_ONCE = 40
NAME = "store.db"
KEPT = (NAME, f"{NAME}-wal")
"""The files that a store is made of, while it is open."""


@pytest.fixture
def store(nursery: Nursery, tmp_path: Path) -> Path:
    """Return an empty store, in a folder of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    nursery.ok(workloads.make, str(folder / NAME))
    return folder / NAME


# ---------------------------------------------------------------- kills and failures


@pytest.mark.parametrize("act", [KILL, TEAR], ids=["kill", "torn write"])
def test_a_kill_at_any_call_costs_no_acknowledged_commit(
    nursery: Nursery, store: Path, tmp_path: Path, act: int
) -> None:
    log = tmp_path / "log"
    arguments = (str(store), str(log), 3)
    watched = {"folder": str(store.parent)}
    calls = nursery.ok(workloads.commit_and_log, *arguments, **watched).calls
    assert calls > 10
    killed = 0
    before = nursery.ok(workloads.newest, str(store)).result
    for position in range(1, calls + 1, EVERY):
        ended = nursery.run(
            workloads.commit_and_log,
            *arguments,
            **watched,
            act=act,
            first=position,
            last=position,
        )

        killed += ended.killed
        newest = nursery.ok(workloads.newest, str(store)).result
        # A commit that was killed before it was acknowledged may be there. Nothing that
        # was there before is lost, acknowledged or not.
        known = max(before, acknowledged(log))
        assert known <= newest <= known + 1
        before = newest
    assert killed


@pytest.mark.parametrize("act", [EIO, ENOSPC, SHORT], ids=["EIO", "ENOSPC", "short"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_call_that_fails_costs_no_acknowledged_commit(
    nursery: Nursery, tmp_path: Path, act: int, times: int
) -> None:
    failures = 0
    position = 1
    while True:
        folder = tmp_path / str(position)
        folder.mkdir()
        path = str(folder / NAME)
        nursery.ok(workloads.make, path)
        ended = nursery.ok(
            workloads.go_on,
            path,
            str(tmp_path / f"log{position}"),
            STEPS,
            folder=str(folder),
            act=act,
            first=position,
            last=position + times - 1,
        )
        failures += ended.result

        assert STEPS - 1 == nursery.ok(workloads.newest, path).result
        if position > ended.calls:
            break
        position += EVERY
    if act != SHORT:  # SQLite itself repeats a write that was too short
        assert failures


# ---------------------------------------------------------------- power cuts


def recorded(
    nursery: Nursery, folder: Path, work: Callable[..., Any], *arguments: Any
) -> Iterator[Image]:
    """Run *work*, and yield what a power cut may leave of *folder*."""
    log = folder.parent / "calls"
    before = {
        file.stat().st_ino: (str(file), file.read_bytes())
        for file in folder.rglob("*")
        if file.name in KEPT
    }
    nursery.ok(work, *arguments, folder=str(folder), log=str(log))
    calls = [
        call
        for call in calls_of(log)
        if call.op not in (WRITE, UNLINK) or os.path.basename(call.path) in KEPT
    ]
    assert any(call.op == MARK for call in calls)
    return Disk(random.Random(7), SAMPLES, before).images(iter(calls))


def judged(nursery: Nursery, images: Iterator[Image], folder: Path) -> Counter[str]:
    """Count what became of the images."""
    copies = folder.parent / "images"
    counts: Counter[str] = Counter()
    while batch := [*islice(images, AT_ONCE)]:
        paths = []
        for index, image in enumerate(batch):
            (copies / f"{index}").mkdir(parents=True)
            image.write(copies / f"{index}", str(folder))
            paths.append(str(copies / f"{index}" / NAME))
            for kept in (copies / f"{index}").rglob(f"{NAME}*"):
                kept.chmod(0o600)
        outcomes = nursery.ok(workloads.newest_of_each, paths).result
        for image, newest in zip(batch, outcomes, strict=True):
            if not isinstance(newest, int):
                counts["broken"] += 1
                counts[f"  {newest}"[:200]] += 1
            else:
                counts["lost" if newest < image.acknowledged else "held"] += 1
        shutil.rmtree(copies)
    print(dict(counts))
    return counts


def test_every_acknowledged_commit_survives_a_power_cut(
    nursery: Nursery, store: Path
) -> None:
    work = workloads.commit_and_mark
    images = recorded(nursery, store.parent, work, str(store), STEPS)

    counts = judged(nursery, images, store.parent)

    assert {"held"} == set(counts), counts
    assert counts["held"] > 5 * STEPS


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_with_a_weaker_setting_commits_are_lost(
    nursery: Nursery, store: Path, synchronous: str
) -> None:
    """What the test above is worth: it sees what weaker settings lose."""
    work = workloads.commit_and_mark
    images = recorded(nursery, store.parent, work, str(store), STEPS, synchronous)

    counts = judged(nursery, images, store.parent)

    assert counts["lost"] + counts["broken"] > STEPS


@pytest.mark.parametrize("work", [workloads.create_and_mark])
def test_a_store_that_is_made_survives_a_power_cut(
    nursery: Nursery, tmp_path: Path, work: Callable[[str], None]
) -> None:
    """There is none, or it is whole; what was acknowledged in it is there."""
    folder = tmp_path / "disk"
    folder.mkdir()
    images = recorded(nursery, folder, work, str(folder / NAME))

    counts = judged(nursery, images, folder)

    assert {"held"} == set(counts), counts


def test_a_store_that_is_compacted_survives_a_power_cut(
    nursery: Nursery, store: Path
) -> None:
    work = workloads.compact_and_mark
    images = recorded(nursery, store.parent, work, str(store))

    counts = judged(nursery, images, store.parent)

    assert {"held"} == set(counts), counts
