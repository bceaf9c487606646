"""Equal spellings are equal calls: what was recorded of one answers the others."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel.cache.memory import InMemoryCache
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from flowpregel.policies import CachePolicy
from flowpregel.runtime import Runtime
from tests.runs.functional.flows import run
from tests.runs.notes import Notes


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_body_may_spell_its_calls_in_another_way(drive: Any, counted: Any) -> None:
    """By position or by name, with a default or without it; beside what the run fills
    in.
    """
    calls = []

    @task(executor="inline")
    def work(x: int, deep: bool = False, *, runtime: Runtime[Any]) -> int:
        assert runtime.execution_info is not None
        calls.append((x, deep))
        return x

    def flow_of(spell: Any, *, fails: bool) -> Any:
        @entrypoint(checkpointer=saver, executor="inline")
        def flow(_: int) -> list[int]:
            found = [future.result() for future in spell()]
            if fails:
                raise OSError("the power went out")
            return found

        return flow

    saver = InMemorySaver()
    with pytest.raises(OSError, match="power"):
        drive.invoke(
            flow_of(lambda: [work(0), work(1, True), work(2)], fails=True),
            1,
            thread_id="1",
        )

    again = flow_of(
        lambda: [work(x=0), work(deep=True, x=1), work(2, deep=False)], fails=False
    )

    assert [0, 1, 2] == drive.invoke(again, None, thread_id="1")
    assert [(0, False), (1, True), (2, False)] == calls


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_result_is_shared_by_equal_spellings(executor: str) -> None:
    """A key of the cache is made of the same spelling, for calls that tasks make
    too.
    """
    cache, runs = InMemoryCache(), Notes()

    @task(cache=True)
    def work(x: int, deep: bool = False) -> int:
        runs.append(x)
        return len(runs)

    @task
    def caller() -> list[int]:
        return [
            work(x=0).result(),
            work(0, deep=False).result(),
            work(0, True).result(),
        ]

    @entrypoint(cache=cache, executor=executor)
    def flow(_: int) -> list[int]:
        return [work(0).result(), work(0, False).result(), *caller().result()]

    assert [1, 1, 1, 1, 2] == flow.run(1)


def test_a_key_function_is_given_the_call_as_it_was_written() -> None:
    """It may name what it wants, and have no defaults."""
    given = []

    def key(x: int, deep: bool) -> str:
        given.append((x, deep))
        return str(x)

    @task(cache_policy=CachePolicy(key_func=key))
    def work(x: int, deep: bool = False) -> int:
        return x

    @entrypoint(cache=InMemoryCache(), executor="inline")
    def flow(_: int) -> int:
        return work(0, False).result()

    assert 0 == flow.run(1)
    assert [(0, False)] == given


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_call_of_a_method_has_one_spelling_too(drive: Any) -> None:
    """Its object is the first argument."""
    calls = []

    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @task(executor="inline")
        def work(self, x: int, deep: bool = False) -> int:
            calls.append(x)
            return self.factor * x

    saver = InMemorySaver()

    def flow_of(spell: Any, *, fails: bool) -> Any:
        @entrypoint(checkpointer=saver, executor="inline")
        def flow(_: int) -> int:
            found: int = spell(Model(3)).result()
            if fails:
                raise OSError("the power went out")
            return found

        return flow

    with pytest.raises(OSError, match="power"):
        run(drive, flow_of(lambda model: model.work(2), fails=True), 1, id="1")
    again = flow_of(lambda model: model.work(deep=False, x=2), fails=False)

    assert 6 == run(drive, again, 1, id="1")
    assert [2] == calls
