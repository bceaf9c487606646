"""Calls that run out of memory, and end nevertheless."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import flowpregel
from flowpregel import RetryPolicy, _linux
from flowpregel.errors import RunNotice, WorkerDiedError
from flowpregel.executors.processes import ProcessExecutor
from tests.runs import jobs
from tests.runs.cgroups import memory_cgroup

MIB = 1 << 20
SMALL, LARGE, ALL = 50 * MIB, 300 * MIB, 400 * MIB
NEVER = RetryPolicy(max_attempts=1, on_memory="alone")


@pytest.fixture
def pool() -> Iterator[ProcessExecutor]:
    """A pool whose five workers have 400 MiB together."""
    with (
        memory_cgroup(ALL) as cgroup,
        ProcessExecutor(5, initializer=jobs.join, initargs=(cgroup,)) as pool,
    ):
        yield pool


def sizes_in(folder: Path) -> list[tuple[int, Path]]:
    """Return the arguments of one large call and eight small ones."""
    return [(LARGE, folder), *[(SMALL, folder)] * 8]


@pytest.mark.slow
def test_a_call_that_needs_the_memory_of_all_ends_without_a_person(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """It is killed beside four others, and succeeds alone; a notice says so."""
    with pytest.warns(
        RunNotice, match=r"ran out of memory .*: it is tried again alone"
    ):
        sizes = flowpregel.map(
            jobs.fill_beside_others, sizes_in(tmp_path), store=None, executor=pool
        )

    assert [LARGE, *[SMALL] * 8] == sizes
    assert (tmp_path / "large").exists()


@pytest.mark.slow
def test_a_call_that_may_not_be_tried_again_fails_for_its_memory(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """The same calls, with a policy that allows a single attempt."""
    with pytest.raises(WorkerDiedError) as caught:
        flowpregel.map(
            jobs.fill_beside_others,
            sizes_in(tmp_path),
            store=None,
            executor=pool,
            retry_policy=NEVER,
        )

    assert caught.value.is_out_of_memory


def refuse_once(folder: Path) -> int:
    """Raise a MemoryError at the first attempt; return the worker's pid at the next."""
    attempt = len(list(folder.iterdir()))
    (folder / str(attempt)).touch()
    if attempt == 0:
        raise MemoryError("Unable to allocate 3.00 GiB")
    return os.getpid()


@pytest.mark.parametrize("chunksize", [1, 2])
def test_a_refused_allocation_is_tried_again(tmp_path: Path, chunksize: int) -> None:
    """As a worker that was killed is, also as an item of a chunk."""
    with (
        ProcessExecutor(1) as pool,
        pytest.warns(RunNotice, match="ran out of memory"),
    ):
        pids = flowpregel.map(
            refuse_once, [tmp_path], store=None, executor=pool, chunksize=chunksize
        )

    assert 1 == len(pids)
    assert 2 == len(list(tmp_path.iterdir()))


def oom_score() -> int:
    """Return what the kernel adds to the size of this process when it must kill one."""
    return int(Path("/proc/self/oom_score_adj").read_text())


@pytest.mark.skipif(not _linux.IS_USED, reason="only Linux has such scores")
def test_the_kernel_prefers_a_worker_to_the_program() -> None:
    """The program has the results of all calls."""
    with ProcessExecutor(1) as pool:
        assert min(oom_score() + 300, 1000) == pool.submit(oom_score).result()
