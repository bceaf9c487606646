"""The questions of several calls are listed in the order of the calls."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from flowpregel.types import interrupt


@pytest.mark.slow
def test_questions_stand_in_the_order_of_the_calls(drive: Any) -> None:
    """Although the first call is the last to ask."""
    asking = threading.Barrier(3, timeout=20)
    first_may_ask = threading.Event()

    @task
    def ask(number: int) -> Any:
        asking.wait()
        if number == 0:
            assert first_may_ask.wait(20)
        elif number == 2:
            threading.Timer(0.05, first_may_ask.set).start()
        return interrupt(f"question {number}")

    @entrypoint(checkpointer=InMemorySaver(), executor="threads")
    def flow(count: int) -> list[Any]:
        return [future.result() for future in ask.map(range(count))]

    asked = drive.invoke(flow, 3, thread_id="1")["__interrupt__"]

    assert [question.value for question in asked] == [f"question {number}" for number in range(3)]
