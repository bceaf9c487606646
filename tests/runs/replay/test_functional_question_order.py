"""The questions of several calls are listed in the order of the calls."""

from __future__ import annotations

import threading
from typing import Any

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from flowpregel.types import interrupt


def test_questions_stand_in_the_order_of_the_calls(drive: Any) -> None:
    """Although the first call is the last to ask."""
    first_may_ask, arrived = threading.Event(), list[str]()

    @task
    def ask(number: int) -> Any:
        if number == 0:
            assert first_may_ask.wait(20)
        return interrupt(f"question {number}")

    @entrypoint(checkpointer=InMemorySaver(), executor="threads")
    def flow(count: int) -> list[Any]:
        return [future.result() for future in ask.map(range(count))]

    def read(item: Any) -> bool:
        """Let the first call ask when the questions of the others are in the stream."""
        mode, payload = item
        if mode == "tasks" and payload["name"] == "ask":
            arrived.extend(each["value"] for each in payload.get("interrupts", ()))
        if len(arrived) == 2:
            first_may_ask.set()
        return False

    modes = ["tasks", "updates"]
    stream = drive.stream_until(read, flow, 3, thread_id="1", stream_mode=modes)
    (asked,) = [
        payload["__interrupt__"] for _, payload in stream if "__interrupt__" in payload
    ]

    assert "question 0" == arrived[-1]
    assert [f"question {number}" for number in range(3)] == [
        question.value for question in asked
    ]
