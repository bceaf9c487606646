"""A finished run that is asked for again: its kept result, and code that changed
since.
"""

from __future__ import annotations

import asyncio
import operator
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint import memory as langgraph_memory

from flowpregel.channels import DeltaChannel
from flowpregel.context import interrupt
from flowpregel.errors import CodeChangedError, InputMismatchError, RunNotice
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from flowpregel.types import Command
from tests.runs.notes import Notes

pytestmark = pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")

seen = Notes()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


def work_of(factor: int, **options: Any) -> Any:
    """Return the task ``work``, whose code has *factor* in it."""
    if factor == 2:

        @task(executor="inline", **options)
        def work(n: int) -> int:
            seen.append(n)
            return 2 * n
    else:

        @task(executor="inline", **options)
        def work(n: int) -> int:
            seen.append(n)
            return 3 * n

    return work


@task(executor="inline")
def offset(n: int) -> int:
    seen.append(f"offset {n}")
    return n


def study_of(saver: Any, work: Any) -> Any:
    """Return a workflow that adds up what *work* makes of numbers, and an offset."""

    @entrypoint(checkpointer=saver)
    def study(numbers: list[int], previous: Any = None) -> int:
        seen.append(f"previous {previous}")
        return sum(work(n).result() for n in numbers) + offset(10).result()

    return study


def told(flow: Any, *args: Any, **options: Any) -> tuple[Any, list[str]]:
    """Return what a run returns, and its notices."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = flow.run(*args, **options)
    return result, [str(each.message) for each in caught if each.category is RunNotice]


@pytest.fixture
def finished(saver: Any) -> Any:
    """The saver, with the finished run 1 of the numbers 1 and 2."""
    assert 16 == study_of(saver, work_of(2)).run([1, 2], id="1")
    seen.clear()
    return saver


def test_a_kept_result_of_the_same_code_comes_without_a_notice(finished: Any) -> None:
    assert (16, []) == told(study_of(finished, work_of(2)), [1, 2], id="1")
    assert [] == [*seen]


def test_a_kept_result_of_other_code_says_so_in_one_notice(finished: Any) -> None:
    """With its date, the task that changed and what changed in it; nothing runs."""
    result, notices = told(study_of(finished, work_of(3)), [1, 2], id="1")

    assert (16, []) == (result, [*seen])
    (notice,) = notices
    assert notice.startswith("stored result of 20")
    assert (
        "; the code of `work` has changed since; on_code_change='rerun' or again=True"
        in notice
    )
    assert notice.endswith("-            return 2 * n | +            return 3 * n")


def test_what_a_task_closes_over_may_change_and_is_no_edit(saver: Any) -> None:
    """As a list that it appends to: its content counts as code at each call."""
    calls: list[int] = []

    @task(executor="inline")
    def step(n: int) -> int:
        calls.append(n)
        return n

    @entrypoint(checkpointer=saver)
    def flow(n: int) -> int:
        return sum(step(each).result() for each in range(n))

    assert [(3, []), (3, [])] == [told(flow, 3, id="1") for _ in range(2)]


def test_an_edited_body_gives_the_notice_too(saver: Any) -> None:
    """Also one that calls no task."""
    for body in (lambda n: n + 1, lambda n: n + 2):
        body.__name__ = body.__qualname__ = "flow"
        results = [
            told(entrypoint(checkpointer=saver)(body), 1, id="1") for _ in range(2)
        ]

    assert [2, 2] == [result for result, _ in results]
    assert all(
        "the code of `flow` has changed since" in notice for _, (notice,) in results
    )


def test_rerun_makes_calls_whose_code_changed_and_the_result_anew(
    finished: Any,
) -> None:
    """The result is kept as the others are: the next time nothing runs, without a
    notice.
    """
    edited = study_of(finished, work_of(3))

    assert 19 == edited.run([1, 2], id="1", on_code_change="rerun")
    assert ["previous None", 1, 2] == [*seen]
    assert (19, []) == told(edited, [1, 2], id="1")
    values = [each.values for each in edited.get_state_history(thread_id="1")]
    assert [19, 16] == values[:2]


def test_rerun_of_the_same_code_runs_nothing(finished: Any) -> None:
    assert 16 == study_of(finished, work_of(2)).run(
        [1, 2], id="1", on_code_change="rerun"
    )
    assert [] == [*seen]


@pytest.mark.parametrize("adopt", [False, True])
def test_error_refuses_a_kept_result_of_other_code(finished: Any, adopt: bool) -> None:
    edited = study_of(finished, work_of(3))

    with pytest.raises(
        CodeChangedError, match="code of 'work' has changed since the result of"
    ):
        edited.run([1, 2], id="1", on_code_change="error", adopt=adopt)
    assert [] == [*seen]


def test_rerun_holds_with_adopt_too(finished: Any) -> None:
    """With the same input as with another one."""
    edited = study_of(finished, work_of(3))

    assert 19 == edited.run([1, 2], id="1", on_code_change="rerun", adopt=True)
    assert 22 == edited.run([1, 3], id="1", on_code_change="rerun", adopt=True)
    assert [1, 2, 3] == [each for each in seen if isinstance(each, int)]


@pytest.mark.parametrize("policy", ["rerun", "error"])
def test_the_policy_of_a_task_counts_more_than_that_of_the_run(
    finished: Any, policy: Any
) -> None:
    edited = study_of(finished, work_of(3, on_code_change=policy))

    if policy == "rerun":
        assert 19 == edited.run([1, 2], id="1")
    else:
        with pytest.raises(CodeChangedError):
            edited.run([1, 2], id="1")
    kept = study_of(finished, work_of(3, on_code_change="keep"))
    assert kept.run([1, 2], id="1", on_code_change="keep") == (
        19 if policy == "rerun" else 16
    )


def test_a_failed_rerun_leaves_the_kept_result_and_its_notice(finished: Any) -> None:
    @task(executor="inline")
    def work(n: int) -> int:
        raise OSError(f"bad {n}")

    broken = study_of(finished, work)
    with pytest.raises(OSError, match="bad 1"):
        broken.run([1, 2], id="1", on_code_change="rerun")

    result, (notice,) = told(broken, [1, 2], id="1")
    assert 16 == result
    assert "the code of `work` has changed since" in notice


def test_a_task_that_the_body_does_not_name_is_found_by_its_calls(saver: Any) -> None:
    """If one asks for more than the kept result: only then the body is gone through."""
    tasks = {"work": work_of(2)}

    def flow(name: str) -> int:
        return int(getattr(holder, name)(1).result())

    class holder:
        pass

    study = entrypoint(checkpointer=saver)(flow)
    holder.work = tasks["work"]  # type: ignore[attr-defined]
    assert 2 == study.run("work", id="1")
    holder.work = work_of(3)  # type: ignore[attr-defined]

    with pytest.raises(CodeChangedError):
        study.run("work", id="1", on_code_change="error")
    assert 3 == study.run("work", id="1", on_code_change="rerun")


def test_a_kept_result_by_run_id_gives_the_notice_too(saver: Any) -> None:
    """`invoke` with the id of a run that is done."""
    assert 12 == study_of(saver, work_of(2)).invoke([1], thread_id="t", run_id="r")
    edited = study_of(saver, work_of(3))

    with pytest.warns(RunNotice, match="the code of `work` has changed since"):
        assert 12 == edited.invoke([1], thread_id="t", run_id="r")
    with pytest.raises(CodeChangedError):
        edited.invoke([1], thread_id="t", run_id="r", on_code_change="error")
    assert 13 == edited.invoke([1], thread_id="t", run_id="r", on_code_change="rerun")


# ---------------------------------------------------------------- again


def test_again_starts_over_and_keeps_the_history(finished: Any) -> None:
    """As if nothing were kept: ``previous`` is None, and all calls run."""
    study = study_of(finished, work_of(3))
    before = [each.config for each in study.get_state_history(thread_id="1")]

    assert 19 == study.run([1, 2], id="1", again=True)

    assert ["previous None", 1, 2, "offset 10"] == [*seen]
    history = [each.config for each in study.get_state_history(thread_id="1")]
    assert before == history[-len(before) :]
    assert len(history) == 2 * len(before)
    assert (19, []) == told(study, [1, 2], id="1")


def test_again_takes_another_input(finished: Any) -> None:
    study = study_of(finished, work_of(2))

    assert 18 == study.run([4], id="1", again=True)
    assert 18 == study.run([4], id="1")
    with pytest.raises(InputMismatchError):
        study.run([1, 2], id="1")


def test_again_is_there_for_arun_and_start(finished: Any) -> None:
    study = study_of(finished, work_of(3))

    assert 19 == asyncio.run(study.arun([1, 2], id="1", again=True))
    assert 19 == study.start([1, 2], id="1", again=True).result(timeout=60)
    assert 2 == [*seen].count("offset 10")


def test_an_unfinished_run_starts_over_too(saver: Any) -> None:
    @task(executor="inline")
    def work(n: int) -> int:
        seen.append(n)
        if n == 2 and len(seen) < 4:
            raise OSError("bad 2")
        return n

    study = study_of(saver, work)
    with pytest.raises(OSError, match="bad 2"):
        study.run([1, 2], id="1")

    assert 13 == study.run([1, 2], id="1", again=True)
    assert [1, 2, 1, 2] == [each for each in seen if isinstance(each, int)]


# ---------------------------------------------------------------- mixtures


def test_the_notice_of_a_mixture_counts_the_results_and_shows_the_change(
    saver: Any,
) -> None:
    def study_with(work: Any, bad: int) -> Any:
        @entrypoint(checkpointer=saver)
        def study(numbers: list[int]) -> int:
            results = [work(n).result() for n in numbers if n < bad]
            if len(results) < len(numbers):
                raise OSError("too large")
            return sum(results)

        return study

    with pytest.raises(OSError, match="too large"):
        study_with(work_of(2), 6).run([*range(8)], id="1")
    result, notices = told(study_with(work_of(3), 9), [*range(8)], id="1")

    assert 2 * sum(range(6)) + 3 * (6 + 7) == result
    (notice,) = (each for each in notices if each.startswith("work: "))
    assert "6 results by the old code, 2 by the new: -" in notice
    assert notice.endswith("return 2 * n | +            return 3 * n")


# ---------------------------------------------------------------- graphs


def graph_of(saver: Any, factor: int, **options: Any) -> Any:
    """Return a graph of two nodes: the code of the first one has *factor* in it."""

    if factor == 2:

        def first(state: int) -> int:
            seen.append("first")
            return 2 * state
    else:

        def first(state: int) -> int:
            seen.append("first")
            return 3 * state

    def second(state: int) -> int:
        seen.append("second")
        return int(interrupt("go on?")) + state

    builder = StateGraph(int).add_node("first", first)
    builder.add_node("second", second).add_edge(START, "first").add_edge(
        "first", "second"
    )
    return builder.add_edge("second", END).compile(
        checkpointer=saver, executor="inline", **options
    )


def test_an_edited_finished_node_gives_the_notice_of_an_edited_task(
    drive: Any, saver: Any
) -> None:
    """When its run is answered, as when it goes on."""
    drive.invoke(graph_of(saver, 2), 1, thread_id="1")
    edited = graph_of(saver, 3)

    with pytest.warns(
        RunNotice, match="first: 1 result was computed by other code"
    ) as caught:
        drive.invoke(edited, None, thread_id="1")
    assert "-            return 2 * state | +            return 3 * state" in str(
        caught[0].message
    )
    with pytest.warns(RunNotice, match="first: 1 result was computed by other code"):
        assert 12 == drive.invoke(edited, Command(resume=10), thread_id="1")


def test_a_graph_that_was_not_edited_gives_no_notice(drive: Any, saver: Any) -> None:
    drive.invoke(graph_of(saver, 2), 1, thread_id="1")

    with warnings.catch_warnings():
        warnings.simplefilter("error", RunNotice)
        assert 12 == drive.invoke(graph_of(saver, 2), Command(resume=10), thread_id="1")


def test_error_refuses_an_edited_finished_node(drive: Any, saver: Any) -> None:
    drive.invoke(graph_of(saver, 2), 1, thread_id="1")

    with pytest.raises(CodeChangedError, match="the code of 'first' has changed"):
        drive.invoke(graph_of(saver, 3), None, thread_id="1", on_code_change="error")


def test_rerun_goes_on_from_the_edited_node(drive: Any, saver: Any) -> None:
    """What follows it runs again too; the states that were stay in the history."""
    drive.invoke(graph_of(saver, 2), 1, thread_id="1")
    edited = graph_of(saver, 3)
    before = [*edited.get_state_history(thread_id="1")]
    seen.clear()

    drive.invoke(edited, None, thread_id="1", on_code_change="rerun")
    assert ["first", "second"] == [*seen]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunNotice)
        assert 13 == drive.invoke(edited, Command(resume=10), thread_id="1")
    after = [each.config for each in edited.get_state_history(thread_id="1")]
    assert [each.config for each in before] == [
        each for each in after if each in [state.config for state in before]
    ]


# ---------------------------------------------------------------- what keeps less


@pytest.fixture(params=["ours", "langgraph", "sqlite"])
def keeps_less(
    request: pytest.FixtureRequest, saver: Any
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A saver and options with which what nodes wrote is not kept, or not by our
    saver.
    """
    if request.param == "ours":
        yield saver, {"durability": "exit"}
    elif request.param == "langgraph":
        yield langgraph_memory.InMemorySaver(), {}
    else:
        sqlite = pytest.importorskip("langgraph.checkpoint.sqlite")
        with closing(
            sqlite3.connect(":memory:", check_same_thread=False)
        ) as connection:
            yield sqlite.SqliteSaver(connection), {"durability": "exit"}


def test_what_keeps_less_knows_the_code_of_a_kept_result(keeps_less: Any) -> None:
    """Of a workflow, and of the tasks that it called; a rerun is possible."""
    saver, options = keeps_less
    study, edited = study_of(saver, work_of(2)), study_of(saver, work_of(3))
    assert (16, []) == told(study, [1, 2], id="1", **options)
    assert (16, []) == told(study, [1, 2], id="1", **options)

    result, (notice,) = told(edited, [1, 2], id="1", **options)
    assert 16 == result
    assert "the code of `work` has changed since" in notice
    with pytest.raises(CodeChangedError, match="the code of 'work' has changed"):
        edited.run([1, 2], id="1", on_code_change="error", **options)
    assert 19 == edited.run([1, 2], id="1", on_code_change="rerun", **options)
    assert (19, []) == told(edited, [1, 2], id="1", **options)


def test_what_keeps_less_knows_the_code_of_a_finished_node(
    drive: Any, keeps_less: Any
) -> None:
    """In each run of a thread of its own nodes."""
    saver, options = keeps_less
    drive.invoke(graph_of(saver, 3), 1, thread_id="1", **options)
    drive.invoke(graph_of(saver, 3), Command(resume=1), thread_id="1", **options)
    drive.invoke(graph_of(saver, 2), 1, thread_id="1", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunNotice)
        drive.invoke(graph_of(saver, 2), None, thread_id="1", **options)
    edited = graph_of(saver, 3)

    with pytest.warns(RunNotice, match="first: 1 result was computed by other code"):
        drive.invoke(edited, None, thread_id="1", **options)
    with pytest.raises(CodeChangedError, match="the code of 'first' has changed"):
        drive.invoke(edited, None, thread_id="1", on_code_change="error", **options)
    with pytest.warns(RunNotice, match="first: 1 result was computed by other code"):
        assert 12 == drive.invoke(edited, Command(resume=10), thread_id="1", **options)


def test_what_keeps_less_shows_nothing_of_it(drive: Any, saver: Any) -> None:
    graph = graph_of(saver, 2)
    drive.invoke(graph, 1, thread_id="1", durability="exit")

    metadata = graph.get_state(thread_id="1").metadata
    assert {"source", "step", "parents", "run_id"} == metadata.keys()


# conditions and reducers ---------------------------------------------------


def added(old: int, new: int) -> int:
    return old + new


def subtracted(old: int, new: int) -> int:
    return old - new


def added_up(old: int, new: list[int]) -> int:
    return old + sum(new)


def added_up_twice(old: int, new: list[int]) -> int:
    return old + 2 * sum(new)


def is_small(state: dict[str, int]) -> str:
    return "wait" if state["n"] < 10 else END


def is_tiny(state: dict[str, int]) -> str:
    return "wait" if state["n"] < 9 else END


def routed(saver: Any, **code: Any) -> Any:
    """Return a graph with a condition and two reducers, that asks in its second
    node.
    """
    reducer, folded = code.get("reducer", added), code.get("folded", added_up)
    route, entry = code.get("route", is_small), code.get("entry", is_small)
    state = TypedDict(  # type: ignore[misc]  # noqa: UP013 - the annotations are values of here
        "Counts",
        {
            "n": Annotated[int, reducer],
            "sum": Annotated[int, DeltaChannel(folded)],
            "all": Annotated[list[int], operator.add],
        },
    )
    builder = StateGraph(state).add_node(
        "first", lambda _: {"n": 1, "sum": 2, "all": [3]}
    )
    builder.add_node("wait", lambda _: {"n": interrupt("go on?")})
    builder.add_conditional_edges(START, entry, {"wait": "first", END: END})
    builder.add_conditional_edges("first", route)
    return builder.compile(checkpointer=saver, executor="inline")


@pytest.mark.parametrize(
    ("part", "edited", "name"),
    [
        ("route", is_tiny, "condition of node first"),
        ("entry", is_tiny, "condition of node __start__"),
        ("reducer", subtracted, "reducer of channel n"),
        ("folded", added_up_twice, "reducer of channel sum"),
    ],
)
def test_an_edited_condition_or_reducer_gives_the_notice_of_a_node(
    drive: Any, saver: Any, part: str, edited: Any, name: str
) -> None:
    """``error`` refuses it, ``rerun`` goes on from where it was used first."""
    drive.invoke(routed(saver), {"n": 0}, thread_id="1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunNotice)
        drive.invoke(routed(saver), None, thread_id="1")
    graph = routed(saver, **{part: edited})

    with pytest.warns(
        RunNotice, match=f"{name}: . results? w.* computed by other code.*: -"
    ) as caught:
        drive.invoke(graph, None, thread_id="1")
    assert 1 == len(caught)
    with pytest.raises(CodeChangedError, match=f"the code of '{name}' has changed"):
        drive.invoke(graph, None, thread_id="1", on_code_change="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunNotice)
        drive.invoke(graph, None, thread_id="1", on_code_change="rerun")
        drive.invoke(graph, None, thread_id="1")


def test_conditions_and_reducers_are_known_where_less_is_kept(
    drive: Any, keeps_less: Any
) -> None:
    saver, options = keeps_less
    drive.invoke(routed(saver), {"n": 0}, thread_id="1", **options)
    graph = routed(saver, route=is_tiny, reducer=subtracted)

    with pytest.warns(RunNotice) as caught:
        drive.invoke(graph, None, thread_id="1", **options)
    assert ["condition of node first", "reducer of channel n"] == sorted(
        str(each.message).partition(":")[0] for each in caught
    )
