"""Calls of an OS thread that outlives the body whose context it has are cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import TaskCancelled
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy
from tests.runs.pooling import wait_until

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


# in a worker ---------------------------------------------------------------

LEFT: list[Any] = []
"""What a task in a worker leaves behind for the next task there."""


@task
def leave_context(_: Path) -> None:
    LEFT.append(contextvars.copy_context())


@task
def call_in_left_context(_: Path) -> str:
    with pytest.raises(TaskCancelled, match="withdrawn") as caught:
        in_thread(LEFT.pop())
    return str(caught.value)


@task(executor="threads")
def wait_for(file: Path) -> None:
    wait_until(file.exists)


@task
def leave_thread_that_waits(file: Path) -> None:
    """Return while another OS thread waits for a call, which ends after the wait."""
    context = contextvars.copy_context()
    called, errors = threading.Event(), []

    def wait() -> None:
        call = context.run(wait_for, file)
        called.set()
        try:
            call.result(SOON)
        except TaskCancelled as error:
            errors.append(str(error))
        finally:
            file.touch()

    thread = threading.Thread(target=wait)
    thread.start()
    called.wait(SOON)
    LEFT.append((thread, errors))


@task
def join_left_thread(_: Path) -> str:
    thread, errors = LEFT.pop()
    thread.join(SOON)
    (error,) = errors
    return error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leave", "find"),
    [
        (leave_context, call_in_left_context),
        (leave_thread_that_waits, join_left_thread),
    ],
)
def test_a_call_of_a_thread_that_was_left_in_a_worker_is_cancelled(
    leave: Any, find: Any, tmp_path: Path
) -> None:
    """The next task in that worker sees it, and the workers go on."""
    with ProcessExecutor(1) as workers:

        @entrypoint(executor=workers)
        def flow(file: Path) -> str:
            leave(file).result()
            return find(file).result()

        assert "withdrawn" in flow.run(tmp_path / "go")
