"""The notice about an argument that a task has changed in place."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest

from flowpregel import shared
from flowpregel.errors import ConfigurationError, RunNotice
from flowpregel.func import File, entrypoint, task
from flowpregel.graph import START, StateGraph
from flowpregel.policies import RetryPolicy
from tests.runs.functional.flows import run

VARIABLE = "FLOWPREGEL_CHECK_MUTATIONS"
ADVICE = (
    "changed during the call; if the task runs in a worker process, its caller does "
    "not see that: return the changed value, or change a copy"
)


@task
def score(rows: list[int], *, seen: dict[int, int] | None = None) -> int:
    rows.append(0)
    if seen is not None:
        seen[0] = 1
    return len(rows)


@task
def measure(rows: list[int]) -> int:
    return len(rows)


@task
async def score_later(rows: list[int]) -> int:
    rows.append(0)
    return len(rows)


def notices_of(program: Callable[[], Any]) -> list[str]:
    """Return the notices that *program* gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program()
    assert {RunNotice} >= {warning.category for warning in caught}
    return [str(warning.message) for warning in caught]


def notices_of_call(
    call: Callable[[], Any], executor: str = "inline", **options: Any
) -> list[str]:
    """Return the notices of a run whose body makes one call."""

    @entrypoint(executor=executor, check_mutations=True, **options)
    def flow(_: int) -> None:
        call().result()

    return notices_of(lambda: flow.run(0))


def test_one_notice_names_the_task_and_the_argument(drive: Any, executor: str) -> None:
    """For all calls of the task in a run; its other calls are not blamed."""

    @entrypoint(executor=executor)
    def flow(count: int) -> list[int]:
        futures = [score([number]) for number in range(count)]
        futures += measure.map([[number] for number in range(count)])
        return [future.result() for future in futures]

    def both_runs() -> None:
        for _ in range(2):
            results = run(drive, flow, 3, check_mutations=True)
            assert [2, 2, 2, 1, 1, 1] == results

    assert 2 * [f"argument 'rows' of task 'score' was {ADVICE}"] == notices_of(
        both_runs
    )


def test_a_notice_names_all_changed_arguments(executor: str) -> None:
    """Those that are passed by position, and those by name."""
    text = f"arguments 'rows' and 'seen' of task 'score' were {ADVICE}"

    assert [text] == notices_of_call(lambda: score([1], seen={}), executor)


def test_other_arguments_in_the_next_call_give_no_second_notice() -> None:
    """One notice a task is enough."""

    @entrypoint(executor="inline", check_mutations=True)
    def flow(_: int) -> None:
        score([1]).result()
        score([1], seen={}).result()

    assert 1 == len(notices_of(lambda: flow.run(0)))


@pytest.mark.parametrize("chunksize", [1, 2])
def test_each_item_of_a_chunk_is_checked(
    drive: Any, executor: str, chunksize: int
) -> None:
    """The notice names the argument of the task, as without chunks."""

    @entrypoint(executor=executor, check_mutations=True)
    def flow(rows: list[list[int]]) -> list[int]:
        return [future.result() for future in score.map(rows, chunksize=chunksize)]

    notices = notices_of(lambda: run(drive, flow, [[1], [2], [3]]))

    assert [f"argument 'rows' of task 'score' was {ADVICE}"] == notices


@pytest.mark.parametrize("chunksize", [1, 2])
def test_an_async_task_is_checked_when_it_has_ended(chunksize: int) -> None:
    """On the event loop."""

    @entrypoint(check_mutations=True)
    async def flow(rows: list[list[int]]) -> list[int]:
        futures = score_later.map(rows, chunksize=chunksize)
        return [await future for future in futures]

    notices = notices_of(lambda: asyncio.run(flow.arun([[1], [2], [3]])))

    assert [f"argument 'rows' of task 'score_later' was {ADVICE}"] == notices


def test_a_failed_call_is_checked(executor: str) -> None:
    """The second attempt in this process gets the change, and one in a worker does
    not.
    """

    policy = RetryPolicy(max_attempts=2, initial_interval=0.0, retry_on=OSError)

    @task(retry_policy=policy)
    def take(rows: list[int]) -> int:
        rows.append(0)
        raise OSError(f"{len(rows)} rows")

    count = 2 if executor == "processes" else 3

    @entrypoint(executor=executor, check_mutations=True)
    def flow(_: int) -> None:
        with pytest.raises(OSError, match=f"^{count} rows"):
            take([1]).result()

    notices = notices_of(lambda: flow.run(0))

    assert [f"argument 'rows' of task 'take' was {ADVICE}"] == notices


def test_a_failed_async_call_is_checked() -> None:
    """As any other failed call."""

    @task
    async def take(rows: list[int]) -> int:
        rows.append(0)
        raise OSError("too many")

    @entrypoint(check_mutations=True)
    async def flow(_: int) -> None:
        with pytest.raises(OSError, match="too many"):
            await take([1])

    assert 1 == len(notices_of(lambda: asyncio.run(flow.arun(0))))


def append_and_return(rows: list[int]) -> list[int]:
    rows.append(0)
    return rows


def append_and_return_both(rows: list[int]) -> tuple[int, list[int]]:
    rows.append(0)
    return len(rows), rows


def append_and_return_dict(rows: list[int]) -> dict[str, list[int]]:
    rows.append(0)
    return {"rows": rows}


@pytest.mark.parametrize(
    "function", [append_and_return, append_and_return_both, append_and_return_dict]
)
def test_a_returned_argument_gives_no_notice(function: Any, executor: str) -> None:
    """The caller gets the change with the result."""
    returning = task(function)

    assert [] == notices_of_call(lambda: returning([1]), executor)


def test_a_value_that_no_worker_could_get_gives_no_notice() -> None:
    """A task on an OS thread changes it on purpose."""

    class Results:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.values: list[int] = []

    results = Results()

    @task
    def add(results: Results) -> None:
        results.values.append(1)

    assert [] == notices_of_call(lambda: add(results), "threads")
    assert [1] == results.values


class Spoiled:
    """An object whose pickle fails once it was changed."""

    def __init__(self) -> None:
        self.is_spoiled = False

    def __reduce__(self) -> Any:
        if self.is_spoiled:
            raise OSError("spoiled")
        return Spoiled, ()


def test_an_object_that_cannot_be_digested_any_more_is_changed() -> None:
    """Its content before the call is known."""

    @task
    def spoil(value: Spoiled) -> None:
        value.is_spoiled = True

    assert 1 == len(notices_of_call(lambda: spoil(Spoiled())))


def test_a_shared_value_gives_no_notice(executor: str) -> None:
    """Each task has its own copy of it on every executor; other arguments count."""
    with shared([1, 2]) as handle:
        notices = notices_of_call(lambda: score(handle, seen={}), executor)

        assert [f"argument 'seen' of task 'score' was {ADVICE}"] == notices


def test_a_file_that_a_task_writes_gives_no_notice(tmp_path: Path) -> None:
    """Its content is in the file, where every process finds it."""
    path = tmp_path / "table.csv"
    path.write_text("a")

    @task
    def add_line(table: File) -> int:
        return path.write_text("a\nb")

    assert [] == notices_of_call(lambda: add_line(File(path)))


class Total:
    """An object whose method is a task."""

    def __init__(self) -> None:
        self.sum = 0

    @task
    def add(self, *numbers: list[int]) -> None:
        self.sum += len(numbers)
        numbers[1].append(0)


def test_an_object_is_the_first_argument_of_its_method() -> None:
    """One of many positional arguments is named by its index."""
    text = f"arguments 'self' and 'numbers[1]' of task 'add' were {ADVICE}"

    assert [text] == notices_of_call(lambda: Total().add([1], [2]))


def test_a_function_without_a_signature_has_numbered_arguments() -> None:
    class Popping:
        __signature__ = "none"
        __name__ = "pop"

        def __call__(self, rows: list[int]) -> int:
            return rows.pop()

    pop = task(Popping())

    text = f"argument 'args[0]' of task 'pop' was {ADVICE}"
    assert [text] == notices_of_call(lambda: pop([1]))


@task
def outer(rows: list[int]) -> int:
    return score([*rows]).result()


def test_a_task_that_a_task_calls_is_checked(executor: str) -> None:
    notices = notices_of_call(lambda: outer([1]), executor)

    assert [f"argument 'rows' of task 'score' was {ADVICE}"] == notices


class State(TypedDict):
    """The state of a graph."""

    rows: list[int]


def test_a_task_of_a_nested_graph_is_checked(executor: str) -> None:
    """The inputs of the nodes and of the workflow are not arguments of a task."""

    def node(state: State) -> None:
        state["rows"].append(1)
        score([1]).result()

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    app = graph.compile(executor=executor)

    @entrypoint(executor=executor, check_mutations=True)
    def flow(rows: list[int]) -> None:
        rows.append(1)
        app.invoke({"rows": [1]})

    notices = notices_of(lambda: flow.run([1]))

    assert [f"argument 'rows' of task 'score' was {ADVICE}"] == notices


def test_the_notice_is_in_the_stream() -> None:
    """Of the mode for notices."""

    @entrypoint(executor="inline")
    def flow(_: int) -> None:
        score([1]).result()

    with pytest.warns(RunNotice):
        items = [*flow.stream(0, stream_mode="notices", check_mutations=True)]

    assert [f"argument 'rows' of task 'score' was {ADVICE}"] == items


# the switch ------------------------------------------------------------------


@entrypoint(executor="inline")
def plain(_: int) -> int:
    return score([1]).result()


@pytest.mark.parametrize(
    ("variable", "option", "count"),
    [
        (None, {}, 0),
        ("0", {}, 0),
        ("1", {}, 1),
        ("1", {"check_mutations": False}, 0),
        ("0", {"check_mutations": True}, 1),
        ("0", {"check_mutations": None}, 0),
    ],
)
def test_the_option_comes_before_the_environment(
    variable: str | None,
    option: dict[str, Any],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The option of a run, or of a workflow."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    workflow = entrypoint(executor="inline", **option)(lambda _: score([1]).result())

    assert count == len(notices_of(lambda: plain.run(0, **option)))
    assert count == len(notices_of(lambda: workflow.run(0)))
    assert count == len(notices_of(lambda: plain.with_options(**option).run(0)))


def test_a_run_decides_after_its_workflow() -> None:
    flow = entrypoint(executor="inline", check_mutations=True)(
        lambda _: score([1]).result()
    )

    assert [] == notices_of(lambda: flow.run(0, check_mutations=False))


def test_another_value_of_the_option_is_refused() -> None:
    """Where it is given, to a run or to a workflow."""
    wrong: Any = "yes"
    message = "check_mutations='yes'; use True or False"

    with pytest.raises(ConfigurationError, match=message):
        plain.run(0, check_mutations=wrong)
    with pytest.raises(ConfigurationError, match=message):
        entrypoint(check_mutations=wrong)


def test_a_call_here_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made to find a mistake."""
    monkeypatch.setenv(VARIABLE, "0")

    notices = notices_of(lambda: score.call_here([1]))

    assert [f"argument 'rows' of task 'score' was {ADVICE}"] == notices


class Counting:
    """An object that counts how often it is pickled."""

    count = 0

    def __reduce__(self) -> Any:
        Counting.count += 1
        return Counting, ()


def test_nothing_is_digested_without_the_switch() -> None:
    """The switch costs nothing while it is off."""
    look = task(lambda value: None)

    @entrypoint(executor="inline")
    def flow(_: int) -> int:
        before = Counting.count
        look(Counting()).result()
        return Counting.count - before

    assert (0, 2) == (
        flow.run(0, check_mutations=False),
        flow.run(0, check_mutations=True),
    )
