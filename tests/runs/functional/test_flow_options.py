"""The options of runs, where they are given: to `Flow.run`, to `entrypoint`, or
misspelled.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from flowpregel.graph import StateGraph
from flowpregel.runtime import Runtime, get_runtime
from tests.runs.functional.flows import run


@task
def context_of_run(_: int) -> Any:
    """Return the context of the run."""
    return get_runtime().context


def test_a_run_takes_a_context(drive: Any) -> None:
    """Its tasks get it, as those of `invoke` do."""

    @entrypoint(executor="inline")
    def flow(n: int) -> Any:
        return context_of_run(n).result()

    assert {"user": "ann"} == run(drive, flow, 1, context={"user": "ann"})


def test_the_context_of_an_entrypoint_is_that_of_runs_without_one(drive: Any) -> None:
    """One that a run is given comes first."""

    @entrypoint(executor="inline", context={"user": "ann"})
    def flow(n: int) -> Any:
        return context_of_run(n).result()

    assert {"user": "ann"} == run(drive, flow, 1)
    assert {"user": "ann"} == drive.invoke(flow, 1)
    assert {"user": "bob"} == run(drive, flow, 1, context={"user": "bob"})
    assert {"user": "bob"} == drive.invoke(flow, 1, context={"user": "bob"})


def test_metadata_and_tags_add_up(drive: Any) -> None:
    """Those of the entrypoint and those of the run."""
    seen = []

    @entrypoint(
        checkpointer=InMemorySaver(),
        executor="inline",
        metadata={"team": "a"},
        tags=["nightly"],
    )
    def flow(n: int, config: Any) -> int:
        seen.append(config["tags"])
        return n

    run(drive, flow, 1, id="1", metadata={"ticket": 7}, tags=["urgent"])

    metadata = flow.get_state(thread_id="1").metadata
    assert ("a", 7) == (metadata["team"], metadata["ticket"])
    assert [["nightly", "urgent"]] == seen


@pytest.mark.parametrize("is_of_the_run", [True, False])
def test_a_run_is_bounded_by_max_concurrency(drive: Any, is_of_the_run: bool) -> None:
    """Though there are threads for more, no two tasks run at once."""
    free, was_alone = threading.Lock(), []

    @task
    def work(_: int) -> None:
        is_alone = free.acquire(blocking=False)
        time.sleep(0)  # lets another OS thread go on
        was_alone.append(is_alone)
        if is_alone:
            free.release()

    options = {"max_concurrency": 1}

    @entrypoint(executor="threads", **({} if is_of_the_run else options))
    def flow(n: int) -> None:
        for future in work.map(range(n)):
            future.result()

    run(drive, flow, 8, **(options if is_of_the_run else {}))

    assert [True] * 8 == was_alone


@pytest.mark.parametrize("is_of_the_run", [True, False])
def test_a_run_keeps_its_results_as_its_durability_says(
    drive: Any, is_of_the_run: bool
) -> None:
    """With ``"exit"`` nothing is kept before the run ends: the task sees no
    checkpoint.
    """
    saver = InMemorySaver()

    @task
    def seen(_: int) -> int:
        return len([*saver.list({"configurable": {"thread_id": "1"}})])

    options: Any = {"durability": "exit"}

    @entrypoint(
        checkpointer=saver, executor="inline", **({} if is_of_the_run else options)
    )
    def flow(n: int) -> int:
        return seen(n).result()

    assert 0 == run(drive, flow, 1, id="1", **(options if is_of_the_run else {}))


def test_a_parameter_comes_before_an_option_of_its_name(drive: Any) -> None:
    """`tags` and `metadata` are usual names; the entrypoint takes the options."""

    @entrypoint(checkpointer=InMemorySaver(), executor="inline", tags=["nightly"])
    def flow(tags: list[str], *, id: int = 1, fail_fast: str = "") -> Any:
        return tags, id, fail_fast

    assert (["x"], 5, "y") == run(drive, flow, tags=["x"], id=5, fail_fast="y")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("durability", "now", "durability='now'; use 'sync', 'async' or 'exit'"),
        ("max_concurrency", 0, "max_concurrency must be at least 1, not 0"),
        ("metadata", 3, "metadata must be a dict, not 3"),
        ("tags", "x", "tags must be a list of texts, not 'x'"),
    ],
)
def test_an_option_that_cannot_be_is_refused(
    drive: Any, option: str, value: Any, message: str
) -> None:
    """Where the workflow is made, and where it is run."""

    @entrypoint
    def flow(n: int) -> int:
        return n

    with pytest.raises(ConfigurationError, match=message):
        entrypoint(**{option: value})
    with pytest.raises(ConfigurationError, match=message):
        run(drive, flow, 1, **{option: value})


def _flow() -> Any:
    @entrypoint
    def flow(seeds: int) -> int:
        return seeds

    return flow


def _graph() -> Any:
    def node(state: Any) -> Any:
        return state

    return StateGraph(dict).add_node("node", node).set_entry_point("node")


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: entrypoint(checkpontr="x"),
            r"@entrypoint has no option.*'checkpointer'\?",
        ),
        (
            lambda: task(timeot=3),
            r"a task has no option 'timeot'; it has name.*'timeout'\?",
        ),
        (
            lambda: _flow().run(1, adoptt=True),
            r"unexpected keyword.*id='...', adopt=.*'adopt'\?",
        ),
        (lambda: _flow().run(seed=1), r"flow\(\) .*it takes \(seeds: .*mean 'seeds'\?"),
        (
            lambda: _flow().invoke(1, tread_id="1"),
            r"a run has no option.*'thread_id'\?",
        ),
        (
            lambda: _flow().get_state(tread_id="1"),
            r"has no option 'tread_id'.*'thread_id'\?",
        ),
        (
            lambda: _graph().compile(checkpontr="x"),
            r"no option 'checkpontr'.*'checkpointer'\?",
        ),
    ],
)
def test_a_misspelled_option_is_told_with_the_right_one(use: Any, message: str) -> None:
    """Whatever takes options; all that there are follow."""
    with pytest.raises(TypeError, match=message):
        use()


def test_an_option_of_a_flow_that_is_a_step_is_refused(drive: Any) -> None:
    """It belongs to the outermost run; to ignore it would hide that."""

    @entrypoint(executor="inline")
    def inner(n: int, runtime: Runtime) -> int:
        return n

    @entrypoint(executor="inline")
    def outer(n: int) -> int:
        return inner.run(n, durability="sync")

    with pytest.raises(
        ConfigurationError, match="durability belongs to the outermost run"
    ):
        run(drive, outer, 1)


# ---------------------------------------------------------------- set before


def _counted(seen: list[int]) -> Any:
    """Return a workflow that notes how often its body runs."""

    @entrypoint(checkpointer=InMemorySaver(), executor="inline")
    def flow(n: int, scale: int = 1) -> int:
        seen.append(n)
        return n * scale

    return flow


def test_options_can_be_set_before_the_arguments(drive: Any) -> None:
    """An ``id`` too, with the arguments by name; the workflow itself stays as it is."""
    seen: list[int] = []
    flow = _counted(seen)
    named = flow.with_options(id="a")

    assert 6 == run(drive, named, n=2, scale=3)
    assert 6 == run(drive, flow, 2, 3, id="a")
    assert [2] == seen
    assert named.plan(n=2, scale=3).is_done
    assert 6 == named.start(n=2, scale=3).result(30)
    assert [2] == seen
    assert 6 == run(drive, flow, 2, 3)
    assert [2, 2] == seen


def test_an_option_of_the_call_comes_before_one_that_was_set(drive: Any) -> None:
    """And one that is set later before one that was set earlier."""
    seen: list[int] = []
    named = _counted(seen).with_options(id="a", again=True)

    assert [1, 1] == [run(drive, named, 1), run(drive, named, 1)]
    assert 1 == run(drive, named.with_options(again=False), 1)
    assert [1, 1] == seen
    assert 2 == run(drive, named, 2, id="b")


def test_an_option_can_be_set_that_a_parameter_is_named_like(drive: Any) -> None:
    seen: list[str] = []

    @entrypoint(checkpointer=InMemorySaver(), executor="inline")
    def flow(id: str) -> str:
        seen.append(id)
        return id

    named = flow.with_options(id="a")
    assert ["b", "b"] == [run(drive, named, id="b"), run(drive, named, id="b")]
    assert ["b"] == seen
    assert "b" == flow.get_state(thread_id="a").values


def test_a_step_with_an_id_that_was_set_is_a_run_of_its_own(drive: Any) -> None:
    """As with an ``id`` in the call."""
    seen: list[int] = []
    inner = _counted(seen)

    @entrypoint(executor="inline")
    def outer(n: int) -> int:
        return inner.with_options(id="inner").run(n)

    assert [4, 4] == [run(drive, outer, 4), run(drive, outer, 4)]
    assert [4] == seen


def test_an_option_that_cannot_be_set_is_refused() -> None:
    with pytest.raises(TypeError, match="Did you mean 'adopt'"):
        _flow().with_options(adoptt=True)
    with pytest.raises(ConfigurationError, match="durability='now'"):
        _flow().with_options(durability="now")
