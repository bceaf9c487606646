"""The calls that a node makes: run once, kept, and handed back when the node runs
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from flowpregel._core.commands import Command, call_target_of
from flowpregel._core.effects import Commit, Ended
from flowpregel._core.ids import CallKey, Span
from flowpregel._core.program import Options
from flowpregel._core.records import (
    MADE_BY,
    RETURN,
    Address,
    Arguments,
    Durability,
    MadeBy,
    Node,
)
from flowpregel.channels import LastValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import current_scope, interrupt
from flowpregel.errors import ReplayMismatchError, RunNotice
from flowpregel.graph import StateGraph
from flowpregel.policies import RetryPolicy
from tests.crash_driver import CrashDriver
from tests.strategies import call
from tests.unit.core.programs import node, program

AT_ONCE = RetryPolicy(retry_on=Exception, initial_interval=0, jitter=False)


class World:
    """What called functions see: it counts them, and lets some fail."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.down: set[str] = set()

    def one(self, given: Any) -> Any:
        """Return what was given."""
        return self.note("one", given)

    def two(self, given: Any) -> Any:
        """Return what was given."""
        return self.note("two", given)

    def note(self, name: str, given: Any) -> Any:
        """Count a run of *name*, and fail while it is down."""
        self.runs.append(name)
        if name in self.down:
            raise ValueError(name)
        return given


def driver_of(
    body: Callable[[Any], Any], saver: Any = None, **fields: Any
) -> CrashDriver:
    """Return a driver of one node that makes calls."""
    return CrashDriver(program(node("n", body, **fields)), saver or InMemorySaver())


def test_a_body_that_is_tried_again_does_not_run_again_what_it_called() -> None:
    """The next attempt is handed the results."""
    world = World()

    def body(given: Any) -> Any:
        result = call(world.one, given).result()
        return world.note("body", result)

    world.down.add("body")
    driver = driver_of(body, retry=(AT_ONCE,))
    with pytest.raises(ValueError, match="body"):
        driver.run(1)

    assert ["one", "body", "body", "body"] == world.runs
    assert [] == driver.seen.run_again()


def test_a_call_whose_failure_brought_its_body_down_is_tried_again_with_it() -> None:
    """And one whose failure was caught is not."""
    world = World()
    world.down = {"one", "two"}

    def body(given: Any) -> Any:
        try:
            call(world.one, given).result()
        except ValueError:
            if world.runs.count("two") == 2:
                world.down.clear()
        return call(world.two, given).result()

    assert [1] == driver_of(body, retry=(AT_ONCE,)).run(1).values
    assert ["one", "two", "two", "two"] == world.runs


def test_a_failure_that_was_kept_while_a_sibling_asked_is_tried_again_in_the_end() -> (
    None
):
    """It brings the body down when the question is answered, and not for ever."""
    world = World()
    world.down.add("one")

    def body(given: Any) -> Any:
        first = call(world.one, given)
        second = call(interrupt, given).result()
        return first.result(), second

    driver = driver_of(body)
    driver.run("q")
    with pytest.raises(ValueError, match="one"):
        driver.run(Command(resume="yes"))
    world.down.clear()

    assert [("q", "yes")] == driver.run(None).values
    assert ["one", "one"] == world.runs


def test_a_call_that_is_made_again_has_the_answer_it_was_given() -> None:
    """It does not ask a second time."""
    world = World()
    world.down.add("asks")

    def asks(given: Any) -> Any:
        answer = interrupt(given)
        if world.runs:
            world.down.clear()
        return world.note("asks", answer)

    driver = driver_of(lambda given: call(asks, given).result(), retry=(AT_ONCE,))
    driver.run("q")

    assert ["yes"] == driver.run(Command(resume="yes")).values
    assert ["asks", "asks"] == world.runs


def test_a_body_that_asks_for_something_else_by_chance_is_told() -> None:
    """Its code and its input are the same, so that it cannot be meant."""
    world = World()
    functions = [world.one]

    def body(given: Any) -> Any:
        result = call(functions[-1], given).result()
        return result, interrupt(given)

    driver = driver_of(body)
    driver.run("q")
    functions.append(world.two)

    with pytest.raises(ReplayMismatchError, match="one"):
        driver.run(Command(resume="yes"))
    assert ["one"] == world.runs


def test_a_call_that_nobody_waits_for_is_run_and_its_failure_fails_the_body() -> None:
    """It is not lost."""
    world = World()
    world.down.add("two")

    def body(given: Any) -> Any:
        call(world.one, given)
        call(world.two, given)
        return given

    with pytest.raises(ValueError, match="two"):
        driver_of(body).run(1)

    assert ["one", "two"] == world.runs


def test_calls_that_are_not_asked_for_are_counted_in_every_superstep() -> None:
    """What a later one does not count is not forgotten."""
    world, saver = World(), InMemorySaver()
    world.down.add("first")

    def flow_of(asked: tuple[int, ...]) -> Any:
        def first(state: Any) -> Any:
            for given in asked:
                call(world.one, given).result()
            return {"out": world.note("first", 1)}

        graph = (
            StateGraph(dict)
            .add_node("first", first)
            .add_node("second", lambda _: {"out": 2})
        )
        graph.add_edge("__start__", "first").add_edge("first", "second")
        return graph.compile(executor="inline", checkpointer=saver)

    with pytest.raises(ValueError, match="first"):
        flow_of((1, 2)).invoke({}, thread_id="1")
    world.down.clear()

    with pytest.warns(
        RunNotice, match="1 answered from the record, 0 executed, 1 not made again"
    ):
        flow_of((1,)).invoke(None, thread_id="1")


def test_calls_that_several_attempts_make_again_are_counted_once() -> None:
    """Neither are those counted that the run itself has made in an earlier attempt."""
    world, saver = World(), InMemorySaver()
    world.down.add("body")

    def flow_of(asked: tuple[int, ...], attempts: int) -> Any:
        def body(_: Any) -> Any:
            for given in asked:
                call(world.one, given).result()
            if world.runs.count("body") == attempts - 1:
                world.down.clear()
            return {"out": world.note("body", 1)}

        graph = StateGraph(dict).add_node("body", body, retry_policy=AT_ONCE)
        graph.add_edge("__start__", "body")
        return graph.compile(executor="inline", checkpointer=saver)

    with pytest.raises(ValueError, match="body"):
        flow_of((1, 2, 3), attempts=9).invoke({}, thread_id="1")

    with pytest.warns(RunNotice, match="1 executed, 1 not made again"):
        flow_of((1, 2, 4), attempts=6).invoke(None, thread_id="1")


def test_a_body_whose_input_is_too_deep_to_be_looked_at_goes_on() -> None:
    """Its calls are known by its code alone then."""
    world, deep = World(), list[Any]()
    for _ in range(100_000):
        deep = [deep]

    def body(_: Any) -> Any:
        return call(world.one, 1).result()

    CrashDriver(program(node("n", body)), None).run(deep)

    assert ["one"] == world.runs


def coded_call(function: Callable[[], str], code: str) -> Any:
    """Make a call of *code*, which has the name and the arguments of all others."""
    node = Node(
        name="work",
        steps=(call_target_of(function, takes_input=False),),
        writers=(lambda output, _: [(RETURN, output)],),
        is_task=True,
    )
    key = CallKey("work", "()", code, "work()")
    return current_scope("work").run_client.call(node, Arguments((), {}), key)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("ABA", ["A1", "B1", "A2"]),
        ("BAA", ["B1", "A1", "A2"]),
        ("AAB", ["A1", "A2", "B1"]),
    ],
)
def test_equal_calls_have_the_results_of_their_own_code(
    order: str, expected: list[str]
) -> None:
    """In whichever order they are made again, and each result once."""
    world, orders = World(), ["ABA"]
    world.down.add("body")

    def work(code: str) -> str:
        world.note(code, None)
        return f"{code}{world.runs.count(code)}"

    def body(given: Any) -> Any:
        results = [
            coded_call(partial(work, code), code).result() for code in orders[-1]
        ]
        return world.note("body", tuple(results))

    driver = driver_of(body)
    with pytest.raises(ValueError, match="body"):
        driver.run(1)
    world.down.clear()
    orders.append(order)

    (results,) = driver.run(None).values

    assert expected == [*results]
    assert ["A", "B", "A", "body", "body"] == world.runs


def doubled(number: int) -> int:
    """Return twice the *number*."""
    return 2 * number


def collecting(numbers: Iterator[int], downs: Iterator[bool]) -> Callable[[int], int]:
    """Return a body that fills a list before it makes a call, and may fail then."""
    collected: list[int] = []

    def body(given: int) -> int:
        collected.append(next(numbers))
        result: int = call(doubled, given).result()
        if next(downs):
            raise OSError("down")
        return result

    return body


def test_the_code_of_a_body_is_that_of_before_it_runs() -> None:
    """What it does to the objects that it closes over is no edit."""
    numbers, downs, saver = iter((1, 2)), iter((True, False)), InMemorySaver()
    broken, repaired = (
        driver_of(collecting(numbers, downs), saver, role="body") for _ in range(2)
    )
    with pytest.raises(OSError, match="down"):
        broken.run(3)

    assert [6] == repaired.run(None).values

    assert [] == [text for mode, text in repaired.emitted if mode == "notices"]


class MeasuringDriver(CrashDriver):
    """A driver that knows when each attempt began, so that attempts are stored."""

    def post(self, *events: Any) -> None:
        """Let the next wake-up bring *events*, the ends with a span."""
        span = Span(5, 1.0, "inline", 7)
        super().post(
            *(
                replace(event, span=span) if isinstance(event, Ended) else event
                for event in events
            )
        )


def test_the_record_of_a_body_counts_the_results_that_it_used() -> None:
    """By the names and the code of the tasks, over all attempts once."""
    world = World()
    world.down.add("body")

    def body(given: Any) -> Any:
        results = [call(world.one, given + index).result() for index in range(2)]
        results.append(call(world.two, given).result())
        if len(world.runs) > 3:
            world.down.clear()
        return world.note("body", sum(results))

    driver = MeasuringDriver(
        program(node("n", body, retry=(AT_ONCE,))), InMemorySaver()
    )
    assert [4] == driver.run(1).values

    records = [
        task.ran
        for effect in driver.effects
        if isinstance(effect, Commit)
        for task in effect.batch.writes
        if task.ran is not None
    ]
    assert [("one", 1), ("one", 1), ("two", 1), ("n", 2)] == [
        (record.name, record.attempts) for record in records
    ]
    assert [(), (), (), (("one", "one", 2), ("two", "two", 1))] == [
        record.used for record in records
    ]
    assert all(driver.clock >= record.planned > record.began for record in records)
    assert {(5, 1.0, "inline", 7)} == {record[1:3] + record[4:6] for record in records}


def test_a_checkpoint_of_the_exit_has_the_code_of_all_nodes_of_its_run() -> None:
    """The attempts themselves are not stored, because their writes are not."""
    first = node("first", writers=(lambda out, _: [("b", out)],))
    second = node("second", triggers=("b",), channels="b")
    driver = MeasuringDriver(
        program(first, second, b=LastValue(str)),
        InMemorySaver(),
        Options(durability=Durability.EXIT),
    )

    driver.run(1)

    assert driver.saver is not None
    stored = driver.saver.load(Address("t"))
    assert stored is not None
    made_by = MadeBy(*stored.checkpoint.metadata[MADE_BY])
    assert (True, True) == made_by[:2]
    assert ["first", "second"] == [name for name, _, _ in made_by.nodes]
    assert all(code for _, code, _ in made_by.nodes)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_new_input_names_the_calls_of_the_run_that_it_leaves_behind(count: int) -> None:
    """If any has finished; `run` would go on with them."""
    world = World()
    world.down.add("body")

    def body(given: Any) -> Any:
        for number in range(count):
            call(world.one, number).result()
        return world.note("body", given)

    driver = driver_of(body, role="body")
    with pytest.raises(ValueError, match="body"):
        driver.run(1)
    world.down.clear()

    driver.run(2)

    notices = [text for mode, text in driver.emitted if mode == "notices"]
    plural = "call" if count == 1 else "calls"
    assert [f"an unfinished run with {count} finished {plural} "] * bool(count) == [
        text.partition("is left behind")[0] for text in notices
    ]


def key_of(name: str, arguments: str, code: str, text: str) -> CallKey:
    """Return the key of a call, with digests of twelve equal digits."""
    return CallKey(name, arguments * 12, code * 12, text)


@pytest.mark.parametrize(
    ("first", "second", "texts"),
    [
        (
            key_of("one", "a", "c", "one(1)"),
            key_of("two", "b", "d", "two(2)"),
            (
                "one(1)   [code cccccccc, arguments aaaaaaaa]",
                "two(2)   [code dddddddd, arguments bbbbbbbb]",
            ),
        ),
        (
            key_of("one", "a", "c", "one(x)"),
            key_of("one", "b", "c", "one(x)"),
            ("arguments bbbbbbbb] (they differ in a part that is not shown)",),
        ),
        (
            key_of("one", "a", "c", "one(<Big>, <List>)"),
            key_of("one", "b", "c", "one(<Big>, <List>)"),
            ("(they differ in the content of <Big>, <List>)",),
        ),
    ],
    ids=["another task", "same text", "types alone"],
)
def test_a_call_that_differs_by_chance_is_shown_beside_the_recorded_one(
    first: CallKey, second: CallKey, texts: tuple[str, ...]
) -> None:
    """With the beginnings of both digests, and what the texts do not show."""
    keys = [first]

    def body(given: Any) -> Any:
        target = Node(name="work", steps=(call_target_of(len),), is_task=True)
        scope = current_scope("work")
        result = scope.run_client.call(target, Arguments(("",), {}), keys[-1]).result()
        return result, interrupt(given)

    driver = driver_of(body)
    driver.run("q")
    keys.append(second)

    with pytest.raises(ReplayMismatchError) as caught:
        driver.run(Command(resume="yes"))

    for text in texts:
        assert text in str(caught.value)
    has_same_text = first.text == second.text
    assert has_same_text is ("they differ" in str(caught.value))
