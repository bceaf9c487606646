"""Calls that are spelled alike: each has its own result, under another name as well."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import interrupt
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy
from flowpregel.runtime import get_runtime
from flowpregel.types import Command
from tests.runs.notes import Notes


def flow_of(work: Any, saver: Any, crash: bool) -> Any:
    """Return a workflow that makes one call three times."""

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(n: int) -> list[int]:
        results = [work(n).result() for _ in range(3)]
        if crash:
            raise OSError("crash")
        return results

    return flow


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_equal_calls_of_a_renamed_task_have_their_own_results(drive: Any) -> None:
    """The n-th has that of the n-th."""
    saver, seen = InMemorySaver(), Notes()

    @task(executor="inline")
    def old(n: int) -> int:
        seen.append(n)
        return n + len(seen)

    @task(executor="inline", adopts="old")
    def new(n: int) -> int:
        seen.append(n)
        return 0

    with pytest.raises(OSError, match="crash"):
        drive.invoke(flow_of(old, saver, crash=True), 10, thread_id="1")

    found = drive.invoke(flow_of(new, saver, crash=False), None, thread_id="1")

    assert [11, 12, 13] == found
    assert [10, 10, 10] == seen


def test_a_call_that_saves_keeps_its_answer_for_its_next_attempt(drive: Any) -> None:
    """That of its body, which is tried again in the same run: nobody is asked twice."""
    seen = Notes()

    @task(executor="inline")
    def ask() -> str:
        answer = interrupt("go on?")
        get_runtime().save("asked")
        seen.append(answer)
        if len(seen) == 1:
            raise OSError("crash")
        return str(answer)

    again = RetryPolicy(retry_on=OSError, initial_interval=0, jitter=False)

    @entrypoint(checkpointer=InMemorySaver(), executor="inline", retry_policy=again)
    def flow(_: int) -> str:
        return ask().result()

    drive.invoke(flow, 0, thread_id="1")

    assert "yes" == drive.invoke(flow, Command(resume="yes"), thread_id="1")
    assert ["yes", "yes"] == [*seen]
