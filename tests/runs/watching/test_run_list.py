"""The list of runs is filtered, sorted, grouped by flow and cut into pages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowpregel import LMDBSaver, entrypoint, interrupt, task
from flowpregel._inspection.inert import InertCodec
from flowpregel._inspection.run_list import PAGE_ROWS, ROWS_OF_FLOW, STRIP
from flowpregel.cli.app import app
from flowpregel.errors import ConfigurationError, UnansweredError
from flowpregel.watching import RunList, RunListPage, RunQuery, StoreReader

TOTALS = "tests.runs.watching.test_run_list:total"


@task
def invert(number: int) -> float:
    return 1 / number


@task
def attempt(number: int) -> float:
    return 1 / number


@entrypoint(executor="inline")
def total(numbers: list[int]) -> float:
    return sum(invert(number).result() for number in numbers)


@entrypoint(executor="inline")
def careful(numbers: list[int]) -> int:
    futures = [attempt(number) for number in numbers]
    return sum(future.exception() is None for future in futures)


@entrypoint(executor="inline")
def ask(text: str) -> str:
    answer: str = interrupt(text)
    return answer


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with 25 runs of one flow, of which one failed, and two of others."""
    path = str(tmp_path / "store")
    with LMDBSaver(path) as saver:
        flow = total.copy({"checkpointer": saver})
        for number in range(24):
            flow.run([1] * (number + 1), id=f"total-{number:02}")
        with pytest.raises(ZeroDivisionError):
            flow.run([1, 0], id="total-bad")
        careful.copy({"checkpointer": saver}).run([1, 0, 0], id="careful")
        with pytest.raises(UnansweredError):
            ask.copy({"checkpointer": saver}).run("Go on?", id="asks")
    return path


@contextmanager
def opened(path: str) -> Iterator[RunList]:
    """Open the list of the runs of a store."""
    with (
        LMDBSaver(path, readonly=True, codec=InertCodec()) as saver,
        closing(StoreReader(saver)) as reader,
    ):
        yield RunList(reader)


def page_of(path: str, **query: str) -> RunListPage:
    """Return the page of a list with these parameters of an address."""
    with opened(path) as runs:
        return runs.page(RunQuery.parse(**query), time.time_ns())


def test_runs_are_grouped_by_flow_and_the_last_changed_flow_is_first(
    store: str,
) -> None:
    page = page_of(store)

    names = [flow.flow.rpartition(":")[2] for flow in page.flows]
    assert ["ask", "careful", "total"] == names
    assert [1, 1, 25] == [flow.runs for flow in page.flows]
    assert ["asks", "careful"] == [run.thread_id for run in page.runs[:2]]
    assert 2 + ROWS_OF_FLOW == len(page.runs)
    assert (27, 27, 1) == (page.total, page.matched, page.pages)


def test_a_strip_has_the_last_runs_and_their_median(store: str) -> None:
    flow = page_of(store).flows[-1]

    assert STRIP == len(flow.strip)
    assert ("total-bad", "failed", None, None) == flow.strip[-1]
    assert "total-05" == flow.strip[0][0]
    durations = sorted(run.seconds for run in flow.strip if run.seconds is not None)
    assert durations[9] == flow.median


def test_a_strip_names_the_failed_calls_of_a_run_that_is_done(store: str) -> None:
    (flow,) = (flow for flow in page_of(store).flows if "careful" in flow.flow)

    (run,) = flow.strip
    assert ("careful", "done", 2) == (run.thread_id, run.status, run.failed)


def test_a_row_has_the_input_and_the_failed_call(store: str) -> None:
    rows = {run.thread_id: run for run in page_of(store).runs}

    assert ("[1, 0]", 1) == (rows["total-bad"].input, rows["total-bad"].failed)
    assert rows["total-bad"].error.startswith("invert(0): ZeroDivisionError")
    assert '"Go on?"' == rows["asks"].input
    assert (2, "partly failed") == (rows["careful"].failed, rows["careful"].situation)
    assert None is rows["asks"].seconds


def test_all_runs_of_one_flow_are_a_page_away(tmp_path: Path) -> None:
    with LMDBSaver(tmp_path) as saver:
        flow = total.copy({"checkpointer": saver})
        for number in range(PAGE_ROWS + 3):
            flow.run([], id=str(number))

    first, last, beyond = (
        page_of(str(tmp_path), sort="began", page=page) for page in ("0", "1", "9")
    )

    assert (2, 0, PAGE_ROWS) == (first.pages, first.page, len(first.runs))
    assert ["50", "51", "52"] == [run.thread_id for run in last.runs]
    assert last.runs == beyond.runs


def test_the_filter_by_status_leaves_the_counts_of_the_others(store: str) -> None:
    page = page_of(store, state="failed,waiting")

    assert ["asks", "total-bad"] == [run.thread_id for run in page.runs]
    assert {"done": 25, "failed": 1, "waiting": 1} == page.states
    assert 2 == page.matched


def test_a_search_is_for_runs_and_flows(store: str) -> None:
    assert ["total-07"] == [run.thread_id for run in page_of(store, q=" -07").runs]
    assert ["careful"] == [run.thread_id for run in page_of(store, q="CAREF").runs]


def test_a_time_selects_runs_by_their_last_change(store: str) -> None:
    asks = page_of(store, q="asks").runs[0].updated / 1e9

    assert ["asks"] == [run.thread_id for run in page_of(store, since=str(asks)).runs]
    assert 26 == page_of(store, until=str(asks)).matched


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("run", "total-00"),
        ("-run", "total-bad"),
        ("status", "total-bad"),
        ("began", "total-00"),
        ("-began", "total-bad"),
        ("updated", "total-00"),
    ],
)
def test_the_server_sorts(store: str, sort: str, first: str) -> None:
    assert first == page_of(store, flow=TOTALS, sort=sort).runs[0].thread_id


def test_unknown_durations_come_last_in_both_orders(store: str) -> None:
    for sort in ("took", "-took"):
        runs = page_of(store, flow=TOTALS, sort=sort).runs
        durations = [run.seconds for run in runs[:-1]]

        assert "total-bad" == runs[-1].thread_id
        assert sorted(durations, reverse=sort == "-took") == durations


def test_a_run_that_began_again_took_as_long_as_its_last_time(tmp_path: Path) -> None:
    with LMDBSaver(tmp_path) as saver:
        flow = total.copy({"checkpointer": saver})
        flow.run([1], id="twice")
        with opened(str(tmp_path)) as runs:
            [before] = runs.page(RunQuery(), 0).runs
            flow.run([1, 1], id="twice", again=True)
            [after] = runs.page(RunQuery(), 0).runs

    assert before.updated <= after.began
    assert ("[1]", "[1, 1]") == (before.input, after.input)


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_run_that_was_resumed_with_other_input_has_the_newest(tmp_path: Path) -> None:
    with LMDBSaver(tmp_path) as saver:
        flow = total.copy({"checkpointer": saver})
        flow.run([1], id="adopts")
        with opened(str(tmp_path)) as runs:
            inputs = [runs.page(RunQuery(), 0).runs[0].input]
            for numbers in ([1, 1], [3]):
                flow.run(numbers, id="adopts", adopt=True)
                inputs.append(runs.page(RunQuery(), 0).runs[0].input)

    assert ["[1]", "[1, 1]", "[3]"] == inputs


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_run_that_failed_again_is_listed_with_its_new_input_and_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status, its newest checkpoint and its number of failed calls are the same."""
    # The tasks of an idle run are read at each request.
    monkeypatch.setattr("flowpregel._inspection.cursors._PAUSE_FACTOR", 0)
    problems = iter(("no data", "no disk"))

    @task(executor="inline")
    def fail() -> None:
        raise ValueError(next(problems))

    with LMDBSaver(tmp_path) as saver:

        @entrypoint(checkpointer=saver)
        def flow(number: int) -> None:
            fail().result()

        listed: list[tuple[str, str]] = []
        with opened(str(tmp_path)) as runs:
            for number in (1, 2):
                with pytest.raises(ValueError, match="no "):
                    flow.run(number, id="fails", adopt=number > 1)
                [run] = runs.page(RunQuery(), 0).runs
                listed.append((run.input, run.error))

    first, second = listed
    assert ("1", "fail(): ValueError: no data") == first
    assert ("2", "fail(): ValueError: no disk") == second


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"sort": "colour"}, ConfigurationError),
        ({"page": "x"}, ValueError),
        ({"size": "1"}, TypeError),
    ],
)
def test_a_parameter_that_does_not_exist_is_an_error(
    query: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        RunQuery.parse(**query)


def test_ls_lists_flows(store: str) -> None:
    words = ["ls", "--by-flow", "--store", store]

    text = CliRunner().invoke(app, words).output
    record = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)

    (line,) = (line for line in text.splitlines() if "total" in line)
    assert "✓" * 19 + "✗" in line
    assert " 25 " in line
    (line,) = (line for line in text.splitlines() if "careful" in line)
    assert "!" in line.split()
    assert [1, 1, 25] == [flow["runs"] for flow in record]


def test_the_first_call_is_found_among_all_that_are_recorded(tmp_path: Path) -> None:
    """Although a reader of many calls returns them in parts."""
    with LMDBSaver(tmp_path) as saver:
        flow = total.copy({"checkpointer": saver})
        flow.enqueue([*range(1, 21)], id="queued")
        flow.run([*range(1, 21)], id="queued")
        with closing(StoreReader(saver, most=1)) as reader:
            [run] = RunList(reader).page(RunQuery(), time.time_ns()).runs
            parts = [changes.rows for changes in reader.changes("queued")]

    assert 1 < len(parts)
    assert min(call.began for rows in parts for call in rows) == run.began


def test_an_enqueued_run_began_with_its_first_call(tmp_path: Path) -> None:
    with LMDBSaver(tmp_path) as saver:
        flow = total.copy({"checkpointer": saver})
        flow.enqueue([1], id="queued")
        [enqueued] = page_of(str(tmp_path)).runs
        flow.run([1], id="queued")
        with closing(StoreReader(saver)) as reader:
            calls = reader.calls("queued").rows
        [done] = page_of(str(tmp_path)).runs

    assert ("enqueued", "[1]") == (enqueued.status, enqueued.input)
    assert enqueued.began < min(call.began for call in calls) == done.began


def test_runs_are_sorted_by_their_failed_calls(store: str) -> None:
    """Those whose calls are not counted yet come last, until a later answer."""
    with opened(store) as runs:
        query = RunQuery.parse(sort="-failed")
        runs.page(query, time.time_ns())
        page = runs.page(query, time.time_ns())
        ascending = runs.page(RunQuery.parse(sort="failed"), time.time_ns())

    numbers = {run.thread_id: run.failed for run in page.runs}
    assert (2, 1) == (numbers["careful"], numbers["total-bad"])
    assert ["careful", "total", "ask"] == [
        flow.flow.rpartition(":")[2] for flow in page.flows
    ]
    assert "total-bad" == next(run.thread_id for run in page.runs if run.flow == TOTALS)
    assert "careful" == ascending.runs[-1].thread_id
