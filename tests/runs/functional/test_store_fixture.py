"""The pytest fixture ``flowpregel_store``, and workflows on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.func import entrypoint, task
from flowpregel.testing import plugin

FIXTURE = plugin.flowpregel_store.__wrapped__  # type: ignore[attr-defined]


@task
async def fetch(page: int) -> str:
    """Return a page."""
    return f"page {page}"


@entrypoint()
async def crawl(pages: int) -> list[str]:
    """Fetch pages at once."""
    return [*await asyncio.gather(*(fetch(page) for page in range(pages)))]


def test_the_fixture_is_a_new_store_in_the_folder_of_the_test(
    flowpregel_store: LMDBSaver, tmp_path: Path
) -> None:
    """It is empty, and another process can open it."""
    assert Path(flowpregel_store.path) == tmp_path / "flowpregel_store"
    assert list(flowpregel_store.threads()) == []


def test_a_run_is_stored_in_the_fixture(flowpregel_store: LMDBSaver) -> None:
    """The workflow needs no store of its own."""
    flow = crawl.copy({"checkpointer": flowpregel_store})

    assert flow.run(2, id="1") == ["page 0", "page 1"]

    info = flowpregel_store.thread("1")
    assert info is not None
    assert info.status == "done"


def test_event_loops_of_several_tests_may_share_a_store(
    flowpregel_store: LMDBSaver,
) -> None:
    """The store belongs to no loop."""
    flow = crawl.copy({"checkpointer": flowpregel_store})

    first, second = (asyncio.run(flow.arun(2, id=str(number))) for number in range(2))

    assert first == second == ["page 0", "page 1"]


def test_the_fixture_closes_the_store(tmp_path: Path) -> None:
    """Also if the test has failed."""
    fixture = FIXTURE(tmp_path)
    saver = next(fixture)
    with pytest.raises(StopIteration):
        next(fixture)

    with pytest.raises(Exception, match="closed"):
        list(saver.threads())
