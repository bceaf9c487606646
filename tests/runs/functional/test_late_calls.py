"""Calls of an OS thread that outlives the body whose context it has are cancelled."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowpregel.errors import TaskCancelled
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy

SOON = 20
"""Seconds after which a call that nobody answers fails the test."""


@task(executor="inline")
def double(n: int) -> int:
    return n * 2


def late_call(context: contextvars.Context) -> int:
    """Call a task as another OS thread with this context does, and wait for it."""
    result: int = context.run(double, 4).result(SOON)
    return result


def in_thread(context: contextvars.Context) -> int:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(late_call, context).result()


@pytest.mark.parametrize("saved", [True, False])
def test_a_call_after_the_end_of_its_run_is_cancelled(
    tmp_path: Any, saved: bool
) -> None:
    contexts = []

    @entrypoint(checkpointer=tmp_path / "store" if saved else None)
    def flow(_: str) -> int:
        contexts.append(contextvars.copy_context())
        return double(1).result()

    assert 2 == flow.run("go")

    with pytest.raises(TaskCancelled, match="withdrawn"):
        in_thread(contexts[0])


def test_a_call_after_the_end_of_an_async_run_is_cancelled() -> None:
    contexts = []

    @entrypoint()
    async def flow(_: str) -> int:
        contexts.append(contextvars.copy_context())
        return await double(1)

    assert 2 == asyncio.run(flow.arun("go"))

    with pytest.raises(TaskCancelled, match="withdrawn"):
        in_thread(contexts[0])


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_call_after_the_end_of_its_task_is_cancelled(executor: str) -> None:
    """The run goes on, and has no body any more that could get the result."""
    contexts = []

    @task(executor=executor)
    def leave() -> None:
        contexts.append(contextvars.copy_context())

    @entrypoint(executor="threads")
    def flow(_: str) -> str:
        leave().result()
        with pytest.raises(TaskCancelled, match="withdrawn"):
            in_thread(contexts[0])
        return "went on"

    assert "went on" == flow.run("go")


def test_a_call_of_an_earlier_attempt_is_cancelled() -> None:
    """The next attempt has calls of its own."""
    contexts = []

    @task(
        executor="threads",
        retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.0),
    )
    def retried() -> str:
        contexts.append(contextvars.copy_context())
        if len(contexts) == 1:
            raise ConnectionError
        with pytest.raises(TaskCancelled, match="withdrawn"):
            in_thread(contexts[0])
        return "second"

    @entrypoint()
    def flow(_: str) -> str:
        return retried().result()

    assert "second" == flow.run("go")
