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
from tests.disk.nursery import EIO, ENOSPC, FOREVER, KILL, SHORT, TEAR, Nursery
from tests.disk.workloads import acknowledged

pytestmark = pytest.mark.slow

ALL = bool(os.environ.get("FLOWPREGEL_CRASH_ALL"))
SAMPLES = 40 if ALL else 4
STEPS = 12 if ALL else 5
FEW = 2
"""The supersteps of a store whose keys are changed at each call."""
EVERY = 1 if ALL else 11
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


# ---------------------------------------------------------------- other keys


@pytest.fixture
def plain(nursery: Nursery, tmp_path: Path) -> Path:
    """Return a store that is not encrypted, which every run of a test copies."""
    pytest.importorskip("cryptography")
    folder = tmp_path / "plain"
    folder.mkdir()
    nursery.ok(workloads.fill, str(folder / NAME), FEW)
    return folder / NAME


@pytest.mark.parametrize("act", [KILL, TEAR], ids=["kill", "torn write"])
def test_a_kill_while_keys_are_changed_leaves_one_whole_store(
    nursery: Nursery, plain: Path, tmp_path: Path, act: int
) -> None:
    """The old one or the new one; the next change succeeds, and removes the draft."""
    whole: Counter[bool] = Counter()
    position = 1
    while True:
        folder = tmp_path / str(position)
        shutil.copytree(plain.parent, folder)
        path = str(folder / NAME)
        disk = {"folder": str(folder), "act": act, "first": position, "last": position}
        ended = nursery.run(workloads.encrypt, path, **disk)

        whole[nursery.ok(workloads.is_encrypted, path, FEW).result] += 1
        if ended.status == 0 and position > ended.calls:
            break
        if whole[True] == 0:
            assert "" == nursery.ok(workloads.encrypt, path).result
            assert nursery.ok(workloads.is_encrypted, path, FEW).result
            assert {NAME, f"{NAME}-locks"} == {*os.listdir(folder)}
        position += EVERY
    assert whole[False] > 1
    assert whole[True] > 1, "no kill was after the commit"


@pytest.mark.parametrize("act", [EIO, ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("times", [1, FOREVER], ids=["once", "from then on"])
def test_a_failure_while_keys_are_changed_is_reported_as_it_is(
    nursery: Nursery, plain: Path, tmp_path: Path, act: int, times: int
) -> None:
    """The error specifies whether the store has its new keys, or that this is
    unknown.
    """
    outcomes: Counter[str] = Counter()
    position = 1
    while True:
        folder = tmp_path / str(position)
        shutil.copytree(plain.parent, folder)
        path = str(folder / NAME)
        last = position + times - 1
        disk = {"folder": str(folder), "act": act, "first": position, "last": last}
        ended = nursery.ok(workloads.encrypt, path, **disk)

        encrypted = nursery.ok(workloads.is_encrypted, path, FEW).result
        changed = not ended.result or "has its new keys" in ended.result
        is_unknown = ended.result.startswith("CommitUnknownError")
        assert changed is encrypted or is_unknown, (position, ended.result)
        outcomes[ended.result.replace(path, "the store")[:60]] += 1
        if position > ended.calls:
            break
        position += EVERY
    assert any("the store has its new keys" in text for text in outcomes), outcomes
    assert len(outcomes) > 2, outcomes


def test_pages_whose_sync_failed_are_not_found_in_the_log(
    nursery: Nursery, plain: Path, tmp_path: Path
) -> None:
    """Even if the process dies before it can close, and so delete, the log."""
    whole = tmp_path / "whole"
    shutil.copytree(plain.parent, whole)
    encrypt = workloads.encrypt
    calls = nursery.ok(encrypt, str(whole / NAME), folder=str(whole)).calls
    deaths = 0
    # The last calls of the copy are those of its commit.
    for position in range(calls, 0, -1):
        folder = tmp_path / str(position)
        shutil.copytree(plain.parent, folder)
        path = str(folder / NAME)
        disk = {"folder": str(folder), "act": EIO, "first": position, "last": position}
        ended = nursery.run(workloads.encrypt_or_die, path, **disk)

        if ended.status == workloads.DEAD:
            deaths += 1
            assert not nursery.ok(workloads.is_encrypted, path, FEW).result
        if deaths == 3:
            break
    assert 3 == deaths


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


@pytest.mark.parametrize(
    "work", [workloads.compact_and_mark, workloads.change_keys_and_mark]
)
def test_a_store_that_is_written_again_survives_a_power_cut(
    nursery: Nursery, store: Path, work: Callable[[str], None]
) -> None:
    images = recorded(nursery, store.parent, work, str(store))

    counts = judged(nursery, images, store.parent)

    assert {"held"} == set(counts), counts
