"""Many runs on one event loop: their commits go together, and each hears of its own
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint, task
from flowpregel._core.records import Batch
from flowpregel.checkpoint.lmdb import LMDBSaver

RUNS = 20


class Counting(LMDBSaver):
    """Notes of whom each commit is, and refuses one thread on demand."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.groups: list[list[str]] = []
        self.refused: str | None = None
        self.committed: Callable[[], object] = lambda: None

    def commit(self, batches: Sequence[Batch]) -> None:
        """Commit *batches*."""
        threads = [batch.address.thread_id for batch in batches]
        if self.refused in threads:
            raise OSError(f"{self.refused} is refused")
        super().commit(batches)
        self.groups.append(threads)
        self.committed()


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Counting]:
    """A saver that counts."""
    with closing(Counting(tmp_path / "runs.lmdb")) as opened:
        yield opened


@task(executor="inline")
def double(value: int) -> int:
    """Do a little."""
    return 2 * value


def flow_on(saver: Any) -> Any:
    """Return a flow of three supersteps' worth of commits."""

    @entrypoint(checkpointer=saver)
    async def flow(value: int) -> int:
        return int(await double(await double(value)))

    return flow


def run_all(flow: Any) -> list[Any]:
    """Run the flow for many threads at once."""

    async def main() -> list[Any]:
        runs = [
            flow.ainvoke(number, thread_id=str(number), durability="sync")
            for number in range(RUNS)
        ]
        return await asyncio.gather(*runs, return_exceptions=True)

    return asyncio.run(main())


def test_what_many_runs_want_kept_is_committed_together(saver: Counting) -> None:
    assert run_all(flow_on(saver)) == [4 * number for number in range(RUNS)]

    batches = sum(map(len, saver.groups))
    assert batches >= 3 * RUNS
    assert len(saver.groups) <= batches / 4


def test_a_commit_that_fails_fails_its_own_run_alone(saver: Counting) -> None:
    saver.refused = "7"

    results = run_all(flow_on(saver))

    assert isinstance(results[7], OSError)
    assert results[:7] + results[8:] == [
        4 * number for number in range(RUNS) if number != 7
    ]
    assert [flow_on(saver).get_state(thread_id=str(n)).values for n in (6, 8)] == [
        24,
        32,
    ]


def test_a_run_that_is_cancelled_leaves_the_others_alone(saver: Counting) -> None:
    flow = flow_on(saver)

    async def main() -> list[Any]:
        runs = [
            asyncio.ensure_future(
                flow.ainvoke(number, thread_id=str(number), durability="sync")
            )
            for number in range(RUNS)
        ]
        loop = asyncio.get_running_loop()

        def cancel_one() -> None:
            saver.committed = lambda: None
            loop.call_soon_threadsafe(runs[7].cancel)

        saver.committed = cancel_one
        return await asyncio.gather(*runs, return_exceptions=True)

    results = asyncio.run(main())

    assert isinstance(results[7], asyncio.CancelledError)
    assert results[:7] + results[8:] == [
        4 * number for number in range(RUNS) if number != 7
    ]
    assert flow.invoke(None, thread_id="7") == 28


def test_runs_of_one_loop_after_another_share_a_saver(saver: Counting) -> None:
    flow = flow_on(saver)

    for number in range(3):
        run = flow.ainvoke(number, thread_id=str(number), durability="sync")
        assert asyncio.run(run) == 4 * number
