"""Cache policies: results that runs share, and those they must not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flowpregel.cache.memory import InMemoryCache
from flowpregel.channels import LastValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from flowpregel.policies import CachePolicy
from flowpregel.pregel import NodeBuilder, Pregel
from tests.runs.crashes import Once
from tests.runs.notes import Notes


def flow_of(called: Any, cache: Any, executor: str, **options: Any) -> Any:
    """Return a workflow that calls one task for each item of its input."""

    @entrypoint(cache=cache, executor=executor, **options)
    def flow(items: list[Any]) -> list[Any]:
        return [future.result() for future in called.map(items)]

    return flow


def shared(func: Any, **policy: Any) -> Any:
    return task(cache_policy=CachePolicy(**policy))(func)


@pytest.fixture
def measure() -> Any:
    """Return a function that notes what it was called with in its ``seen``."""
    seen = Notes()

    def measure(n: Any) -> Any:
        seen.append(n)
        return [n]

    vars(measure)["seen"] = seen
    return measure


def test_a_result_is_shared_between_runs(
    drive: Any, executor: str, measure: Any
) -> None:
    """The second run calls nothing."""
    flow = flow_of(shared(measure), InMemoryCache(), executor)

    assert [[[1], [2]], [[1], [2]]] == [drive.invoke(flow, [1, 2]) for _ in range(2)]
    assert [1, 2] == sorted(measure.seen)


def test_a_shared_result_is_streamed_as_such(
    drive: Any, executor: str, measure: Any
) -> None:
    """LangGraph's mark is on it."""
    flow = flow_of(shared(measure), InMemoryCache(), executor)
    drive.invoke(flow, [1])

    first = drive.stream(flow, [1], stream_mode="updates")[0]

    assert {"measure": [1], "__metadata__": {"cached": True}} == first


def test_a_shared_result_is_recorded_like_any_other(
    drive: Any, executor: str, measure: Any
) -> None:
    """A resume does not depend on the cache still having it."""
    cache, crashes = InMemoryCache(), [1]
    called = shared(measure)
    drive.invoke(flow_of(called, cache, executor), [1])

    @entrypoint(cache=cache, executor=executor, checkpointer=InMemorySaver())
    def flow(items: list[int]) -> Any:
        result = called(items[0]).result()
        if crashes:
            raise OSError(crashes.pop())
        return result

    with pytest.raises(OSError, match="1"):
        drive.invoke(flow, [1], thread_id="1")
    cache.clear()

    assert [1] == drive.invoke(flow, None, thread_id="1")
    assert [1] == measure.seen


def test_equal_content_is_one_key(drive: Any, executor: str, measure: Any) -> None:
    """Whatever the order of a dict or a set, and whichever parts are one object."""
    part = [1]
    twins = [[part, part], [[1], [1]]]
    flow = flow_of(shared(measure), InMemoryCache(), executor)

    for item in (
        *twins,
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
        {"x", "y", "z"},
        {"z", "y", "x"},
    ):
        drive.invoke(flow, [item])

    assert 3 == len(measure.seen)


def test_different_content_is_another_key(
    drive: Any, executor: str, measure: Any
) -> None:
    """Types count: 1, 1.0 and True are equal and are not the same."""
    flow = flow_of(shared(measure), InMemoryCache(), executor)

    for item in (1, 1.0, True, "1", b"1", (1,), [1], {1}, None):
        drive.invoke(flow, [item])

    assert 9 == len(measure.seen)


def test_closures_of_one_factory_do_not_share(drive: Any, executor: str) -> None:
    """They have the same name and the same code, and close over different values."""

    def adder(k: int) -> Any:
        return shared(lambda n: n + k)

    cache = InMemoryCache()
    results = [drive.invoke(flow_of(adder(k), cache, executor), [1]) for k in (1, 2, 1)]

    assert [[2], [3], [2]] == results


def test_two_lambdas_of_one_module_do_not_share(drive: Any, executor: str) -> None:
    """Their code tells them apart."""
    cache = InMemoryCache()
    called = [shared(lambda n: n + 1), shared(lambda n: n - 1)]

    assert [[2], [0]] == [
        drive.invoke(flow_of(one, cache, executor), [1]) for one in called
    ]


def test_a_version_stands_for_the_code(drive: Any, executor: str, measure: Any) -> None:
    """Another version is another function; the same one vouches for changed code."""

    def versioned(version: str) -> Any:
        return task(cache_policy=CachePolicy(), version=version)(measure)

    cache = InMemoryCache()
    for version in ("v1", "v2", "v1"):
        drive.invoke(flow_of(versioned(version), cache, executor), [1])

    assert [1, 1] == measure.seen


def test_a_key_func_makes_the_key(drive: Any, executor: str, measure: Any) -> None:
    """It is given the arguments of the call."""
    flow = flow_of(
        shared(measure, key_func=lambda n: str(n % 2)), InMemoryCache(), executor
    )

    drive.invoke(flow, [1])
    assert [[1], [2], [1]] == [drive.invoke(flow, [n])[0] for n in (3, 2, 5)]


@pytest.mark.parametrize(
    "key_func", [lambda n: n, lambda n: 1 // 0], ids=["an int", "an error"]
)
def test_a_key_that_cannot_be_fails_the_call_alone(
    drive: Any, executor: str, measure: Any, key_func: Any
) -> None:
    """The body may catch it like any failure of a task."""
    called = shared(measure, key_func=key_func)

    @entrypoint(cache=InMemoryCache(), executor=executor)
    def flow(n: int) -> str:
        try:
            called(n).result()
        except (ConfigurationError, ZeroDivisionError) as error:
            return type(error).__name__
        return "nothing"

    assert drive.invoke(flow, 3) in ("ConfigurationError", "ZeroDivisionError")
    assert [] == measure.seen


def test_an_input_without_content_is_refused(
    drive: Any, executor: str, measure: Any
) -> None:
    """A lock cannot be told from another; the message says what to give instead."""
    flow = flow_of(shared(measure), InMemoryCache(), executor)

    with pytest.raises(ConfigurationError, match=r"because of a lock.*key_func"):
        drive.invoke(flow, [{"lock": threading.Lock()}])


def test_a_result_is_shared_for_as_long_as_its_policy_says(
    drive: Any, executor: str, measure: Any
) -> None:
    """After ``ttl`` seconds it is made again."""
    now = [0.0]
    flow = flow_of(
        shared(measure, ttl=5), InMemoryCache(clock=lambda: now[0]), executor
    )

    for seconds in (0, 4, 6):
        now[0] = seconds
        drive.invoke(flow, [1])

    assert [1, 1] == measure.seen


def test_failures_are_not_shared(drive: Any, executor: str) -> None:
    """The next run tries again."""

    flow = flow_of(shared(Once(OSError("once"))), InMemoryCache(), executor)
    with pytest.raises(OSError, match="once"):
        drive.invoke(flow, [1])

    assert [1] == drive.invoke(flow, [1])


def test_without_a_cache_a_policy_is_an_error(
    drive: Any, executor: str, measure: Any
) -> None:
    """It says where results could be kept."""
    flow = flow_of(shared(measure), None, executor)

    with pytest.raises(
        ConfigurationError, match=r"'measure.*' shares .* cache=\"results.lmdb\""
    ):
        drive.invoke(flow, [1])

    assert [] == measure.seen


def test_the_cache_of_one_task_can_be_cleared(
    drive: Any, executor: str, measure: Any
) -> None:
    """Others keep theirs."""
    cache = InMemoryCache()
    first, second = (
        shared(measure),
        task(name="s", cache_policy=CachePolicy(), version="2")(measure),
    )
    for called in (first, second):
        drive.invoke(flow_of(called, cache, executor), [1])

    first.clear_cache(cache)
    for called in (first, second):
        drive.invoke(flow_of(called, cache, executor), [1])

    assert 3 == len(measure.seen)


def test_the_cache_of_a_task_that_counts_its_calls_can_be_cleared(drive: Any) -> None:
    """What it closes over has changed since it was first called."""
    seen, cache = 0, InMemoryCache()

    def double(n: int) -> int:
        nonlocal seen
        seen += 1
        return 2 * n

    called = shared(double)
    flow = flow_of(called, cache, "inline")
    assert [2, 2] == drive.invoke(flow, [1, 1])
    before = seen

    called.clear_cache(cache)

    assert [2] == drive.invoke(flow, [1])
    assert before + 1 == seen


def test_a_whole_workflow_can_be_shared(drive: Any, executor: str) -> None:
    """The policy of an entrypoint is its body's, not its tasks'."""
    seen = Notes()

    @task
    def count(n: int) -> int:
        seen.append(n)
        return n

    called = [count]
    calls = InMemoryCache()

    @entrypoint(cache=calls, executor=executor, cache_policy=CachePolicy(key_func=str))
    def flow(n: int) -> int:
        return called[0](n).result() + called[0](n).result()

    assert [4, 4] == [drive.invoke(flow, 2) for _ in range(2)]
    assert [2, 2] == seen
    flow.clear_cache()
    assert 4 == drive.invoke(flow, 2)
    assert 4 == len(seen)


def test_nodes_of_any_graph_are_shared_by_the_same_rules(
    drive: Any, executor: str, measure: Any
) -> None:
    """And `clear_cache` forgets them, all or by name."""
    node = NodeBuilder().subscribe_only("a").do(measure).write_to("b")
    app = Pregel(
        nodes={"measure": node.add_cache_policy(CachePolicy())},
        channels={"a": LastValue(object), "b": LastValue(object)},
        input_channels="a",
        output_channels="b",
        cache=InMemoryCache(),
        executor=executor,
    )
    assert [[1], [1], [2]] == [drive.invoke(app, n) for n in (1, 1, 2)]
    assert [1, 2] == measure.seen

    app.clear_cache(["measure"])
    assert [1] == drive.invoke(app, 1)
    assert [1, 2, 1] == measure.seen


def test_a_default_policy_is_for_nodes_without_one(
    drive: Any, executor: str, measure: Any
) -> None:
    """The graph's policy shares every node's results."""
    app = Pregel(
        nodes={"measure": NodeBuilder().subscribe_only("a").do(measure).write_to("b")},
        channels={"a": LastValue(object), "b": LastValue(object)},
        input_channels="a",
        output_channels="b",
        cache=InMemoryCache(),
        cache_policy=CachePolicy(),
        executor=executor,
    )

    assert [[1], [1]] == [drive.invoke(app, 1) for _ in range(2)]
    assert [1] == measure.seen


def test_clearing_names_what_is_missing(measure: Any) -> None:
    """No cache, or no such node."""
    flow = flow_of(shared(measure), None, "inline")
    with pytest.raises(ConfigurationError, match="no cache to clear"):
        flow.clear_cache()
    flow = flow_of(shared(measure), InMemoryCache(), "inline")
    with pytest.raises(ConfigurationError, match="no node 'x'"):
        flow.clear_cache(["x"])
