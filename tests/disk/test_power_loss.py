"""Power cuts: whatever of the unsynced is lost, what was acknowledged in `sync` is
there.

LMDB's calls are recorded while a process commits, and the file is rebuilt as it could
be after a power cut at every sync and every acknowledgement, with any (sampled) subset
of unsynced pages and sectors. Each such file is opened and read.
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

from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.disk import workloads
from tests.disk.images import MARK, SYNC, WRITE, Disk, Image, calls_of
from tests.disk.nursery import Nursery

pytestmark = pytest.mark.slow

ALL = bool(os.environ.get("FLOWPREGEL_CRASH_ALL"))
SAMPLES = 60 if ALL else 5
"""Subsets at each moment."""
STEPS = 24 if ALL else 6
THINNED = 1 if ALL else 4
"""Of the images of a store that is being made, every so many-th: most have to make it
anew.
"""
KEPT = ("data.mdb",)
"""The file that a store is made of."""
AT_ONCE = 40
"""Images that one process looks at."""


def recorded(
    nursery: Nursery, folder: Path, work: Callable[..., Any], *arguments: Any
) -> Iterator[Image]:
    """Run *work* on the store in *folder*, and yield what a power cut may leave of
    it.
    """
    log = folder.parent / "calls"
    log.unlink(missing_ok=True)
    before = {
        file.stat().st_ino: (str(file), file.read_bytes())
        for file in folder.rglob("*")
        if file.name in KEPT
    }
    nursery.ok(work, *arguments, folder=str(folder), log=str(log))
    # Locks and the like are made anew by whoever opens the store.
    calls = [
        c for c in calls_of(log) if c.op != WRITE or os.path.basename(c.path) in KEPT
    ]
    assert any(call.op == MARK for call in calls)
    return Disk(random.Random(7), SAMPLES, before).images(iter(calls))


def outcomes(
    nursery: Nursery, images: Iterator[Image], folder: Path, look: Callable[..., Any]
) -> Iterator[tuple[Image, Any]]:
    """Yield what *look* says of each image: a number, or how it failed."""
    was = str(folder)
    place = folder.parent / "images"
    while batch := [*islice(images, AT_ONCE)]:
        for index, image in enumerate(batch):
            (place / f"{index}").mkdir(parents=True)
            image.write(place / f"{index}", was)
        paths = [str(place / f"{index}" / "store") for index in range(len(batch))]
        ended = nursery.run(workloads.look_at_all, paths, look.__name__)
        # One that ends the interpreter is told by itself.
        found = ended.result if ended.status == 0 else one_by_one(nursery, paths, look)
        yield from zip(batch, found, strict=True)
        shutil.rmtree(place)


def one_by_one(
    nursery: Nursery, paths: list[str], look: Callable[..., Any]
) -> Iterator[Any]:
    """Yield what each image comes to, in a process of its own."""
    for path in paths:
        ended = nursery.run(workloads.look_at_all, [path], look.__name__)
        yield (
            ended.result[0]
            if ended.status == 0
            else f"the process ended with {ended.status}"
        )


def judged(found: Iterator[tuple[Image, Any]]) -> Counter[str]:
    """Count what became of the images."""
    counts: Counter[str] = Counter()
    for image, newest in found:
        if not isinstance(newest, int):
            counts["broken"] += 1
            counts[f"  {newest}"[:200]] += 1
        else:
            counts["lost" if newest < image.acknowledged else "held"] += 1
    print(dict(counts))
    return counts


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with an empty store in it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    LMDBSaver(folder / "store").close()
    return folder


def test_every_acknowledged_commit_survives_a_power_cut(
    nursery: Nursery, place: Path
) -> None:
    """In LMDB's file with its own flags, which `sync` means."""
    images = recorded(nursery, place, workloads.tell, str(place / "store"), STEPS)

    counts = judged(outcomes(nursery, images, place, workloads.newest))

    assert {"held"} == set(counts), counts
    assert counts["held"] > 10 * STEPS


@pytest.mark.parametrize("weakness", ["metasync", "sync"])
def test_without_a_sync_commits_are_lost(
    nursery: Nursery, place: Path, weakness: str
) -> None:
    """What the test above is worth: it sees what weaker flags lose."""
    path = str(place / "store")
    images = recorded(nursery, place, workloads.tell, path, STEPS, weakness)

    counts = judged(outcomes(nursery, images, place, workloads.newest))

    assert counts["lost"] + counts["broken"] > STEPS


def test_a_store_that_is_made_survives_a_power_cut(
    nursery: Nursery, tmp_path: Path
) -> None:
    """There is none, or it is whole; what was acknowledged in it is there."""
    folder = tmp_path / "disk"
    folder.mkdir()
    work = workloads.create
    images = recorded(
        nursery, folder, work, str(folder / "store"), str(tmp_path / "log")
    )

    counts = judged(
        outcomes(nursery, islice(images, 0, None, THINNED), folder, workloads.newest)
    )

    assert {"held"} == set(counts), counts


def test_a_store_made_in_its_place_may_be_broken(
    nursery: Nursery, tmp_path: Path
) -> None:
    """What the draft and its rename are worth."""
    folder = tmp_path / "disk"
    folder.mkdir()
    images = recorded(nursery, folder, workloads.create_in_place, str(folder / "store"))

    counts = judged(
        outcomes(nursery, islice(images, 0, None, THINNED), folder, workloads.newest)
    )

    assert counts["broken"] > 0


@pytest.mark.parametrize("work", [workloads.compacted, workloads.sealed_anew])
def test_a_store_written_anew_survives_a_power_cut(
    nursery: Nursery, place: Path, work: Callable[[str], None]
) -> None:
    """The old file or the new one."""
    images = recorded(nursery, place, work, str(place / "store"))

    counts = judged(outcomes(nursery, images, place, workloads.newest))

    assert {"held"} == set(counts), counts


def test_the_record_has_the_syncs_of_every_commit(
    nursery: Nursery, place: Path
) -> None:
    """LMDB's two: the data, and the meta page, written through."""
    log = place.parent / "calls"
    path = str(place / "store")
    nursery.ok(workloads.tell, path, 3, folder=str(place), log=str(log))

    calls = [*calls_of(log)]

    assert 3 == sum(call.op == MARK for call in calls)
    assert sum(call.op == SYNC for call in calls) >= 3
    assert 3 == sum(call.synced for call in calls)
