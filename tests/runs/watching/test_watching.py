"""Runs watched from outside: what is read of them, each time only what changed, and
live.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from flowpregel import entrypoint, task
from flowpregel._core.records import Address
from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.reader import StoreReader
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.graph import StateGraph
from flowpregel.types import Command, RetryPolicy, interrupt
from tests.runs.watched import reading, until


def by_text(rows: tuple[CallRow, ...]) -> dict[str, CallRow]:
    return {row.text or row.name: row for row in rows}


# ---------------------------------------------------------------- what is kept


def test_a_call_tells_when_and_where_it_ran_and_what_it_took(store: LMDBSaver) -> None:
    """Of one in a worker: CPU seconds and peak memory too."""

    @task
    def work(n: int) -> int:
        return sum(range(n))

    @entrypoint(checkpointer=store)
    def flow(n: int) -> int:
        return work(n).result()

    flow.invoke(1_000_000, thread_id="1")
    with reading(store) as reader:
        row = by_text(reader.calls("1").rows)["work(1000000)"]

    assert "done" == row.state
    assert row.planned <= row.began
    assert row.cpu > 0
    assert row.peak > 1_000_000
    assert os.getpid() != row.pid > 0
    assert os.uname().nodename == row.host
    assert "~__pregel_pull, flow" == row.caller


def test_each_attempt_that_failed_is_kept_with_its_traceback(store: LMDBSaver) -> None:
    """Also of a call that succeeded in the end."""
    policy = RetryPolicy(max_attempts=3, initial_interval=0.0, jitter=False)

    @task(retry_policy=policy, executor="inline")
    def work(n: int) -> int:
        tries.append(n)
        if len(tries) < 3:
            raise ConnectionError(f"try {len(tries)}")
        return n

    @entrypoint(checkpointer=store)
    def flow(n: int) -> int:
        return work(n).result()

    tries: list[int] = []
    flow.invoke(7, thread_id="1")
    with reading(store) as reader:
        (row,) = (each for each in reader.calls("1").rows if each.text)
        detail = reader.call("1", row.id)

    assert detail is not None
    assert ("done", 3) == (row.state, row.attempts)
    assert ["ConnectionError: try 1", "ConnectionError: try 2"] == [
        each["error"] for each in detail["attempts"]
    ]
    assert all(
        'raise ConnectionError(f"try' in each["traceback"]
        for each in detail["attempts"]
    )
    assert 7 == detail["result"]


def test_a_failed_call_has_its_arguments_error_and_traceback(store: LMDBSaver) -> None:
    """The traceback is the worker's own."""

    @task
    def work(n: int, *, deep: bool) -> int:
        raise ValueError("no \x1b[2J")

    @entrypoint(checkpointer=store)
    def flow(n: int) -> int:
        return work(n, deep=True).result()

    with pytest.raises(ValueError, match="no"):
        flow.invoke(7, thread_id="1")
    with reading(store) as reader:
        (run,) = reader.runs()
        row = by_text(reader.calls("1").rows)["work(7, deep=True)"]
        detail = reader.call("1", row.id)

    assert detail is not None
    assert ("failed", "ValueError: no \x1b[2J") == (row.state, row.error)
    assert ("failed", {"failed": 2}) == (run.status, run.states)
    assert {"0": 7, "deep": True} == detail["arguments"]
    assert "ValueError: no \x1b[2J" == detail["error"]
    assert "in work\n" in detail["attempts"][-1]["traceback"]


def test_a_question_is_shown_until_it_is_answered(store: LMDBSaver) -> None:
    """With its id, by which it is answered."""

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"answer": interrupt("which?")}

    graph = StateGraph(dict).add_node("ask", ask).add_edge("__start__", "ask")
    app = graph.compile(checkpointer=store, executor="inline")
    app.invoke({"n": 1}, thread_id="1")
    with reading(store) as reader:
        (row,) = (asked := reader.calls("1")).rows
        detail = reader.call("1", row.id)
        waiting = reader.run("1")
        app.invoke(Command(resume="this"), thread_id="1")
        answered, done = reader.calls("1", asked.mark), reader.run("1")

    assert detail is not None
    assert ("waiting", 1) == (row.state, row.questions)
    assert "which?" == detail["questions"][0]["value"]
    assert waiting is not None
    assert done is not None
    assert ("waiting", "done") == (waiting.status, done.status)
    assert not answered.is_whole
    assert ["done"] == [each.state for each in answered.rows]


def test_a_question_is_shown_to_its_end_with_the_schema_of_its_answers(
    store: LMDBSaver,
) -> None:
    text = "which? " * 1_000
    schema = {"enum": ["this", {"that": [1, None]}]}

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"answer": interrupt(text, response_schema=schema)}

    graph = StateGraph(dict).add_node("ask", ask).add_edge("__start__", "ask")
    graph.compile(checkpointer=store, executor="inline").invoke({}, thread_id="1")
    with reading(store) as reader:
        (row,) = reader.calls("1").rows
        detail = reader.call("1", row.id)

    assert detail is not None
    (question,) = detail["questions"]
    assert (text, schema) == (question["value"], question["response_schema"])


def test_the_calls_of_nested_graphs_are_there(store: LMDBSaver) -> None:
    """Under the namespace of their graph."""

    def inner(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    below = (
        StateGraph(dict)
        .add_node("inner", inner)
        .add_edge("__start__", "inner")
        .compile()
    )
    graph = StateGraph(dict).add_node("below", below).add_edge("__start__", "below")
    app = graph.compile(checkpointer=store, executor="inline")
    with reading(store) as reader:
        for n in (1, 2):
            app.invoke({"n": n}, thread_id="1")
            rows = reader.calls("1").rows

            assert {"below": "", "inner": "below"} == {
                row.name: row.namespace.partition(":")[0] for row in rows
            }
            assert all(json.dumps(row._asdict()) for row in rows)


# ---------------------------------------------------------------- only what changed


def test_only_what_changed_since_a_mark_is_read(store: LMDBSaver) -> None:
    """What has been read is not read again; what failed and then succeeded is."""

    @task(executor="inline")
    def work(n: int) -> int:
        if n == 2 and broken:
            raise ValueError("broken")
        return n

    @entrypoint(checkpointer=store)
    def flow(count: int) -> int:
        return sum(work(n).result() for n in range(count))

    broken = [True]
    with reading(store) as reader:
        assert () == reader.calls("1").rows
        with pytest.raises(ValueError, match="broken"):
            flow.invoke(5, thread_id="1")
        first = reader.calls("1")
        again = reader.calls("1", first.mark)
        broken.clear()
        flow.invoke(None, thread_id="1")
        rest = reader.calls("1", first.mark)
        whole = reader.calls("1")

    assert {"work(0)", "work(1)", "work(2)", "flow"} == {*by_text(first.rows)}
    assert (first.mark, ()) == (again.mark, again.rows)
    assert not rest.is_whole
    assert {"work(2)", "work(3)", "work(4)", "flow"} == {*by_text(rest.rows)}
    assert {"done"} == {row.state for row in by_text(whole.rows).values()}
    assert 6 == len(by_text(whole.rows))


def test_very_many_calls_are_told_a_few_at_a_time(store: LMDBSaver) -> None:
    """Each once, and what came meanwhile too."""

    @task(executor="inline")
    def work(n: int) -> int:
        return n

    @entrypoint(checkpointer=store)
    def flow(count: int) -> int:
        return sum(work(n).result() for n in range(count)) + int(interrupt("on?"))

    flow.invoke(10, thread_id="1")
    with reading(store, most=4) as reader:
        first = reader.calls("1")
        flow.invoke(Command(resume=0), thread_id="1")
        rest = [*reader.changes("1", first.mark)]

    assert first.is_whole
    assert not any(each.is_whole for each in rest)
    assert [False, *[True] * len(rest)] == [each.is_more for each in (first, *rest)][
        ::-1
    ]
    assert all(len(each.rows) <= 4 for each in (first, *rest))
    rows = [row for each in (first, *rest) for row in each.rows]
    assert sorted(f"work({n})" for n in range(10)) == sorted(
        row.text for row in rows if row.text
    )
    assert "done" == by_text(tuple(rows))["flow"].state


def test_a_poll_tells_whether_anything_was_committed(store: LMDBSaver) -> None:
    """Nothing has been if it is the same as before."""
    with reading(store) as reader:
        until(lambda: reader.mark() == reader.mark())
        before = [reader.mark(), reader.mark()]
        store.send_signal("1", "go", 1)
        after = reader.mark()

    assert before[0] == before[1] != after


def test_another_run_on_the_thread_is_read_anew(store: LMDBSaver) -> None:
    """And so is one of which something was taken back."""

    @task(executor="inline")
    def work(n: int) -> int:
        return n

    @entrypoint(checkpointer=store)
    def flow(count: int) -> int:
        return sum(work(n).result() for n in range(count))

    flow.invoke(3, thread_id="1")
    with reading(store) as reader:
        first = reader.calls("1")
        flow.invoke(2, thread_id="1")
        second = reader.calls("1", first.mark)
        row = by_text(second.rows)["work(1)"]
        (saved,) = (
            s
            for s in store.history(Address("1"))
            if s.checkpoint.id == row.checkpoint_id
        )
        store.redo(saved.address, [row.id])
        third = until(lambda: _whole(reader, second.mark))

    assert second.is_whole
    assert {"work(0)", "work(1)", "flow"} == {*by_text(second.rows)}
    assert {"work(0)"} == {*by_text(third)}


def _whole(reader: StoreReader, since: int) -> tuple[CallRow, ...] | None:
    changes = reader.calls("1", since)
    return changes.rows if changes.is_whole else None
