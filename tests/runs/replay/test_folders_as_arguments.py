"""A `File` of a folder counts by the names and contents of everything in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flowpregel import File, InMemorySaver, entrypoint, task
from flowpregel.errors import RunNotice
from flowpregel.func import digest_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files, one of them in a folder inside, and a link."""
    folder = tmp_path / "data"
    (folder / "inside").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "inside" / "b.txt").write_text("b")
    (folder / "around").symlink_to(folder)
    return folder


CHANGES: list[Callable[[Path], object]] = [
    lambda folder: (folder / "inside" / "b.txt").write_text("c"),
    lambda folder: (folder / "a.txt").rename(folder / "c.txt"),
    lambda folder: (folder / "a.txt").unlink(),
    lambda folder: (folder / "new").mkdir(),
    lambda folder: (folder / "gone").symlink_to("nowhere"),
    lambda folder: os.mkfifo(folder / "pipe"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_a_folder_is_another_argument(
    folder: Path, change: Callable[[Path], object]
) -> None:
    """A pipe is not read, which would wait."""
    before = digest_of(File(folder))
    assert before == digest_of(File(f"{folder}/"))

    change(folder)

    assert before != digest_of(File(folder))


def test_a_copy_of_a_folder_is_the_same_argument(tmp_path: Path) -> None:
    """Whatever its name, its place and its times."""
    for name in ("one", "two"):
        (tmp_path / name / "inside").mkdir(parents=True)
        (tmp_path / name / "inside" / "b.txt").write_text("b")

    assert digest_of(File(tmp_path / "one")) == digest_of(File(tmp_path / "two"))


def test_a_finished_run_notices_a_change_in_a_folder(folder: Path) -> None:
    @task(executor="inline")
    def count(data: File) -> int:
        return len(os.listdir(data))

    @entrypoint(checkpointer=InMemorySaver())
    def study(path: str) -> int:
        return count(File(path)).result()

    assert 3 == study.run(str(folder), id="1")
    (folder / "a.txt").write_text("changed")

    with pytest.warns(RunNotice, match=r"data' was 2 bytes \[.*\] and is now 8 bytes"):
        assert 3 == study.run(str(folder), id="1")
