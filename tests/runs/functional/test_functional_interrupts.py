"""Bodies and tasks that ask: together, by id, and without losing what finished."""

from __future__ import annotations

import time
from typing import Any

import pytest

from flowpregel._core.commands import Command
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import interrupt
from flowpregel.errors import UnknownInterruptError
from flowpregel.func import entrypoint, task


def test_a_body_asks_and_goes_on_with_the_answer(
    drive: Any, executor: str, counted: Any
) -> None:
    """The body runs again from its start; its tasks do not."""
    work = counted()

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        draft = task(work)(n).result()
        return draft, interrupt({"draft": draft}), interrupt("sure?")

    first = drive.invoke(flow, 3, thread_id="1")
    second = drive.invoke(flow, Command(resume="good"), thread_id="1")

    assert [{"draft": 3}] == [asked.value for asked in first["__interrupt__"]]
    assert ["sure?"] == [asked.value for asked in second["__interrupt__"]]
    assert (3, "good", "yes") == drive.invoke(
        flow, Command(resume="yes"), thread_id="1"
    )
    assert [3] == work.seen


def test_a_task_asks_through_its_future(
    drive: Any, executor: str, counted: Any
) -> None:
    """The question passes an ``except Exception``; what finished is not done again."""
    work = counted()

    @task
    def approve(n: int) -> str:
        return f"{n}: {interrupt(n)}"

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        try:
            return task(work)(n).result(), approve(n).result()
        except Exception:  # noqa: BLE001 - what a user may write
            return "swallowed"

    asked = drive.invoke(flow, 3, thread_id="1")["__interrupt__"]

    assert [3] == [item.value for item in asked]
    assert (3, "3: ok") == drive.invoke(flow, Command(resume="ok"), thread_id="1")
    assert [3] == work.seen


def asking(executor: str) -> Any:
    """Return a workflow of which three tasks ask at once."""

    @task
    def approve(n: int) -> str:
        return f"{n}: {interrupt(f'{n}?')}"

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> list[str]:
        return [future.result() for future in approve.map(range(n))]

    return flow


def test_all_open_questions_are_reported_together(drive: Any, executor: str) -> None:
    """In the result, in the stream and in the state."""
    flow = asking(executor)

    asked = drive.invoke(flow, 3, thread_id="1")["__interrupt__"]

    assert ["0?", "1?", "2?"] == sorted(item.value for item in asked)
    assert 3 == len(flow.get_state(thread_id="1").interrupts)


def test_one_command_answers_them_all(drive: Any, executor: str) -> None:
    """By id, whatever the order in which they were asked."""
    flow = asking(executor)
    asked = drive.invoke(flow, 3, thread_id="1")["__interrupt__"]
    answers = {item.id: f"yes {item.value}" for item in asked}

    result = drive.invoke(flow, Command(resume=answers), thread_id="1")

    assert ["0: yes 0?", "1: yes 1?", "2: yes 2?"] == result


def test_some_may_be_answered_before_the_others(drive: Any, executor: str) -> None:
    """Those left are asked again, under the same ids."""
    flow = asking(executor)
    asked = {
        item.value: item.id
        for item in drive.invoke(flow, 3, thread_id="1")["__interrupt__"]
    }

    left = drive.invoke(flow, Command(resume={asked["1?"]: "b"}), thread_id="1")[
        "__interrupt__"
    ]

    assert {asked["0?"], asked["2?"]} == {item.id for item in left}
    answers = {asked["0?"]: "a", asked["2?"]: "c"}
    assert ["0: a", "1: b", "2: c"] == drive.invoke(
        flow, Command(resume=answers), thread_id="1"
    )


def test_a_body_and_its_tasks_ask_together(drive: Any, executor: str) -> None:
    """All their questions are open at once, and any of them may be answered first."""

    @task
    def approve(n: int) -> str:
        return f"{n}: {interrupt(f'{n}?')}"

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        futures = approve.map(range(n))
        own = interrupt("own?")
        return own, [future.result() for future in futures]

    asked = {
        item.value: item.id
        for item in drive.invoke(flow, 2, thread_id="1")["__interrupt__"]
    }
    assert {"0?", "1?", "own?"} == asked.keys()

    answer = Command(resume={asked["own?"]: "yes"})
    left = drive.invoke(flow, answer, thread_id="1")["__interrupt__"]
    assert {asked["0?"], asked["1?"]} == {item.id for item in left}
    answers = {asked["0?"]: "a", asked["1?"]: "b"}
    assert ("yes", ["0: a", "1: b"]) == drive.invoke(
        flow, Command(resume=answers), thread_id="1"
    )


def test_a_wrong_id_among_right_ones_answers_nothing(drive: Any, executor: str) -> None:
    """The right ones still wait after it."""
    flow = asking(executor)
    asked = drive.invoke(flow, 2, thread_id="1")["__interrupt__"]

    with pytest.raises(UnknownInterruptError, match="0" * 32):
        drive.invoke(
            flow, Command(resume={asked[0].id: "yes", "0" * 32: "no"}), thread_id="1"
        )

    answers = {item.id: "yes" for item in asked}
    assert ["0: yes", "1: yes"] == drive.invoke(
        flow, Command(resume=answers), thread_id="1"
    )


def test_a_second_answer_to_one_of_several_is_an_error(
    drive: Any, executor: str
) -> None:
    """The others are still open; this one is not."""
    flow = asking(executor)
    asked = drive.invoke(flow, 2, thread_id="1")["__interrupt__"]
    drive.invoke(flow, Command(resume={asked[0].id: "yes"}), thread_id="1")

    with pytest.raises(UnknownInterruptError, match=asked[0].id):
        drive.invoke(flow, Command(resume={asked[0].id: "no"}), thread_id="1")


def test_one_answer_for_several_questions_is_refused(drive: Any, executor: str) -> None:
    """Nobody guesses which is meant."""
    flow = asking(executor)
    drive.invoke(flow, 3, thread_id="1")

    with pytest.raises(
        UnknownInterruptError, match=r"3 interrupts are waiting.*choose one"
    ):
        drive.invoke(flow, Command(resume="yes"), thread_id="1")


def test_a_late_answer_is_an_error(drive: Any, executor: str) -> None:
    """A question that was answered, or never asked, cannot be answered."""
    flow = asking(executor)
    asked = drive.invoke(flow, 1, thread_id="1")["__interrupt__"]
    answer = Command(resume={asked[0].id: "yes"})
    assert ["0: yes"] == drive.invoke(flow, answer, thread_id="1")

    with pytest.raises(UnknownInterruptError, match=asked[0].id):
        drive.invoke(flow, answer, thread_id="1")
    with pytest.raises(UnknownInterruptError, match="nothing to resume"):
        drive.invoke(flow, Command(resume="yes"), thread_id="2")


def test_questions_do_not_lose_the_results_of_tasks_in_flight(
    drive: Any, executor: str, counted: Any
) -> None:
    """The body asks while tasks run; they finish and are recorded."""
    work = counted(lambda n: time.sleep(0.01) or n)

    @entrypoint(checkpointer=InMemorySaver(), executor=executor)
    def flow(n: int) -> Any:
        futures = task(work).map(range(n))
        answer = interrupt("go on?")
        return answer, [future.result() for future in futures]

    drive.invoke(flow, 3, thread_id="1")

    assert [0, 1, 2] == sorted(work.seen)
    assert ("yes", [0, 1, 2]) == drive.invoke(
        flow, Command(resume="yes"), thread_id="1"
    )
    assert 3 == len(work.seen)


def test_an_edit_of_the_state_is_what_the_next_run_finds(drive: Any) -> None:
    """``update_state`` acts as the workflow: it sets what it returned and what it
    saved.
    """

    @entrypoint(checkpointer=InMemorySaver())
    def flow(n: int, previous: int = 0) -> int:
        return previous + n

    drive.invoke(flow, 3, thread_id="1")
    flow.update_state({"configurable": {"thread_id": "1"}}, 10)

    assert 10 == flow.get_state(thread_id="1").values
    assert 15 == drive.invoke(flow, 5, thread_id="1")
