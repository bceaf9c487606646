"""The pipe with the start permissions (tokens) of tasks: the test plays the worker."""

from __future__ import annotations

import mmap
import os
import sys

import pytest

from flowpregel._core.records import Returned
from flowpregel.executors.processes.wire import protocol
from tests.unit.executors.quick_pools import Events, PoolMaker, job_of


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe is Linux's")
def test_many_tasks_are_sent_though_the_pipe_for_tokens_is_small(
    pool_of: PoolMaker,
) -> None:
    """The system gives a user who has many pipes no more than a page for each."""
    pool, events = pool_of(1), Events()
    pool.pool.worker_class.token_bytes = mmap.PAGESIZE
    pool.start([first := job_of()], events)
    worker = pool.worker().ready()
    worker.run()
    events.value(first)
    jobs = [job_of() for _ in range(3_000)]

    pool.start(jobs, events)
    for _ in jobs:
        while not worker.orders:
            worker.read(wait=True)
        if worker.orders[0].has_token:
            os.read(worker.tokens, protocol.TOKEN.size)
        worker.run()
        if len(worker.orders) == 1:
            # The pool may send further tasks before the worker reads the last token.
            pool.settle()

    assert [Returned] * len(jobs) == [type(events.outcome(job)) for job in jobs]
