"""How a run stands, as a sentence with the command for the next step: show and ls."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import entrypoint, task
from flowpregel.checkpoint.base import Batch
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import ConfigurationError, GraphDrained, StoreFullError
from flowpregel.graph import START, StateGraph
from flowpregel.runtime import RunControl
from tests.runs.cli_flows import FLOWS, State, add, allow, shares, steps
from tests.runs.cli_jobs import COMMAND, half_way, let_go
from tests.runs.screens import on_terminal, plain
from tests.runs.watched import job, reading, until

Cli = Callable[..., Any]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run the command on the test's store."""
    store = str(tmp_path / "store")

    def run(name: str, *words: str) -> Any:
        return CliRunner().invoke(app, [name, "--store", store, *words])

    return run


def begin(cli: Cli, flow: str, thread: str, flow_input: Any) -> None:
    """Run a flow until it ends, or stops where it would wait for an answer."""
    words = ["run", f"{FLOWS}:{flow}", "--id", thread, "--quiet"]
    cli(*words, "--input", json.dumps(flow_input))


def lines_of(cli: Cli, thread: str) -> list[str]:
    """Return what `show` prints first: the sentence, and the next step."""
    lines: list[str] = cli("show", thread).stdout.splitlines()
    return lines[:2]


def run_next(cli: Cli, thread: str, **words: str) -> Any:
    """Run the command that `show` names as the next step, with *words* replaced."""
    command = json.loads(cli("show", thread, "--json").stdout)["command"]
    arguments = shlex.split(command)[1:]
    arguments = [words.get(argument, argument) for argument in arguments]
    return CliRunner().invoke(app, arguments)


def test_a_run_that_asks_is_answered_by_the_command_that_is_shown(cli: Cli) -> None:
    """Of two questions the first, by its id."""
    begin(cli, "allow", "asks", ["ann", "bob"])
    sentence, step = lines_of(cli, "asks")

    assert re.fullmatch(
        r'Waits for an answer to \{"allow": "\w+"\}, and to 1 more question\.', sentence
    )
    assert step.startswith("answer: flowpregel answer asks VALUE --id ")
    assert Code.WAITING == run_next(cli, "asks", VALUE="yes").exit_code
    assert "1 more" not in lines_of(cli, "asks")[0]
    assert Code.OK == run_next(cli, "asks", VALUE="yes").exit_code
    assert ["Done.", ""] == lines_of(cli, "asks")


def test_the_command_that_is_shown_answers_a_run_whose_id_begins_with_a_dash(
    cli: Cli,
) -> None:
    """It begins with that of an option, too."""
    begin(cli, "allow", "-q5", ["ann"])

    shown = json.loads(cli("show", "--json", "--", "-q5").stdout)
    noted = cli("resume", "--quiet", "--", "-q5").stderr

    assert shown["command"].endswith(" -- -q5 VALUE")
    assert re.search(r"^answer with: .* -- -q5 VALUE$", noted, re.MULTILINE)
    words = shlex.split(shown["command"].replace("VALUE", "yes"))
    assert Code.OK == CliRunner().invoke(app, words[1:]).exit_code


@pytest.mark.parametrize(
    "words",
    [
        ["enqueue", f"{FLOWS}:rest", "--input", "0", "--id"],
        ["pause"],
        ["unpause"],
        ["fork", "plain"],
        ["signal", "plain", "ODD", "1"],
        ["export", "--output", "FILE"],
        ["watch"],
        ["rm", "--yes"],
    ],
    ids=lambda words: words[0],
)
def test_an_odd_id_is_printed_in_one_line_without_control_characters(
    cli: Cli, words: list[str], tmp_path: Path
) -> None:
    """As `ls` does."""
    odd = "a\nb\x1b[2J"
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(number: int) -> int:
            return number

        flow.invoke(1, thread_id="plain")
        if words[0] not in ("enqueue", "fork"):
            flow.invoke(1, thread_id=odd)
    words = [{"ODD": odd, "FILE": str(tmp_path / "run")}.get(w, w) for w in words]
    if odd not in words:
        words.append(odd)

    result = cli(*words)

    assert Code.OK == result.exit_code
    assert r"a\nb" in result.output
    assert "a\nb" not in result.output
    assert "\x1b" not in result.output


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_the_durability_of_a_run_is_shown(cli: Cli, durability: str) -> None:
    words = ["run", f"{FLOWS}:shares", "--id", "kept", "--durability", durability]
    cli(*words, "--input", "[1]", "--quiet")

    record = json.loads(cli("show", "kept", "--json").stdout)
    text = cli("show", "kept").stdout

    assert durability == record["durability"]
    assert "run_durability" not in record["metadata"]
    assert re.search(rf"^durability +{durability}$", text, re.MULTILINE)


def test_a_run_shows_the_durability_with_which_it_was_resumed(cli: Cli) -> None:
    begin(cli, "allow", "asks", ["ann"])
    before = json.loads(cli("show", "asks", "--json").stdout)
    cli("answer", "asks", "yes", "--durability", "sync")
    after = json.loads(cli("show", "asks", "--json").stdout)

    assert ("async", "sync") == (before["durability"], after["durability"])


def test_an_enqueued_run_has_no_durability_yet(cli: Cli, tmp_path: Path) -> None:
    """The process that begins the run chooses it."""
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(number: int) -> int:
            return number

        flow.enqueue(1, id="later")

    record = json.loads(cli("show", "later", "--json").stdout)

    assert ("enqueued", None) == (record["status"], record["durability"])


def test_a_user_may_call_metadata_as_the_queue_does(cli: Cli, tmp_path: Path) -> None:
    """A run that stopped before its first node was listed as enqueued."""
    control = RunControl()
    control.request_drain()
    with LMDBSaver(tmp_path / "store") as saver:
        graph = StateGraph(State).add_node("add", add).add_edge(START, "add")
        compiled = graph.compile(checkpointer=saver, executor="inline")
        options: Any = {"metadata": {"queue": "urgent"}, "control": control}
        with pytest.raises(GraphDrained):
            compiled.invoke({"n": 1}, thread_id="1", **options)

    [row] = json.loads(cli("ls", "--json").stdout)
    shown = json.loads(cli("show", "1", "--json").stdout)

    assert "stopped" == row["status"] == shown["status"]
    assert "urgent" == shown["metadata"]["queue"]


def test_a_run_cannot_be_enqueued_with_metadata_of_the_queue(tmp_path: Path) -> None:
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(number: int) -> int:
            return number

        with pytest.raises(ConfigurationError, match="metadata has 'queue'"):
            flow.enqueue(1, id="later", metadata={"queue": "urgent"})

        assert [] == [*saver.threads()]


def test_the_durability_is_in_no_metadata_that_langgraph_shows(tmp_path: Path) -> None:
    """Neither in a snapshot, nor in a stream, nor through the methods of its savers."""
    with LMDBSaver(tmp_path / "store") as saver:
        graph = StateGraph(State).add_node("add", add).add_edge(START, "add")
        compiled = graph.compile(checkpointer=saver, executor="inline")
        options = {"stream_mode": "checkpoints", "durability": "sync"}
        streamed = [*compiled.stream({"n": 1}, thread_id="1", **options)]
        config: Any = {"configurable": {"thread_id": "1"}}
        newest = saver.glance("1")
        shown = [item["metadata"] for item in streamed]
        shown.append(compiled.get_state(thread_id="1").metadata)
        shown.append(saver.get_tuple(config).metadata)

    assert "sync" == newest.saved.checkpoint.metadata["run_durability"]
    assert len(shown) > 3
    assert all("run_durability" not in metadata for metadata in shown)


def test_a_failed_run_names_the_call_and_its_error(cli: Cli) -> None:
    begin(cli, "shares", "fails", [1, 0])

    sentence, step = lines_of(cli, "fails")

    assert (
        "Failed: divide(0): ZeroDivisionError: division by zero; 1 result is stored."
        == sentence
    )
    assert step.startswith("try again what failed: flowpregel retry fails --store ")
    assert Code.FAILED == run_next(cli, "fails").exit_code


def test_failures_that_a_flow_caught_can_be_tried_again(
    cli: Cli, tmp_path: Path
) -> None:
    """Although the run is done."""

    @task(executor="inline")
    def work(n: int) -> int:
        if n > 1:
            raise ValueError(n)
        return n

    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(numbers: list[int]) -> int:
            futures = work.map(numbers)
            return sum(future.exception() is None for future in futures)

        flow.invoke([1, 2, 3], thread_id="partly")

    (listed,) = json.loads(cli("ls", "--json").stdout)
    sentence, step = lines_of(cli, "partly")

    assert "Done, but 2 calls failed." == sentence
    assert ("done", "done, 2 failed") == (listed["status"], listed["short"])
    assert step.startswith("try the 2 again: flowpregel retry partly --failed ")


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_failed_call_of_an_input_that_was_replaced_is_not_counted(
    cli: Cli, tmp_path: Path
) -> None:
    """`show` lists the calls of the new input, and advises nothing."""

    @task(executor="inline")
    def work(n: int) -> int:
        return 6 // n

    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(numbers: list[int]) -> int:
            return sum([work(number).result() for number in numbers])

        with pytest.raises(ZeroDivisionError):
            flow.run([1, 0], id="adopts")
        failed = json.loads(cli("show", "adopts", "--json").stdout)
        assert 11 == flow.run([1, 2, 3], id="adopts", adopt=True)

    (listed,) = json.loads(cli("ls", "--json").stdout)
    shown = json.loads(cli("show", "adopts", "--json").stdout)
    names = [each["name"] for each in shown["tasks"]]

    assert ["done", "failed"] == [
        each["state"] for each in failed["tasks"] if each["name"] != "flow"
    ]
    assert ("done", "done") == (listed["short"], shown["situation"])
    assert ["flow", "work(1)", "work(2)", "work(3)"] == sorted(names)
    assert "try" not in cli("show", "adopts").stdout


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
@pytest.mark.parametrize(
    ("adopted", "short"),
    [([1, 2, 3], "done"), ([], "done"), ([2, 0], "done, 1 failed")],
)
def test_a_caught_failure_is_counted_only_if_the_new_input_makes_the_call(
    cli: Cli, tmp_path: Path, adopted: list[int], short: str
) -> None:
    @task(executor="inline")
    def work(n: int) -> int:
        return 6 // n

    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(numbers: list[int]) -> int:
            total = 0
            for number in numbers:
                with suppress(ZeroDivisionError):
                    total += work(number).result()
            return total

        assert 6 == flow.run([1, 0], id="adopts")
        flow.run(adopted, id="adopts", adopt=True)

    (listed,) = json.loads(cli("ls", "--json").stdout)
    shown = json.loads(cli("show", "adopts", "--json").stdout)
    names = [each["name"] for each in shown["tasks"]]

    assert short == listed["short"]
    assert (0 in adopted) == ("work(0)" in names)


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_caught_failure_that_the_run_no_longer_has_is_tried_again(
    cli: Cli, tmp_path: Path
) -> None:
    """If a later input needs the call again, the call runs again."""
    is_broken = [True]

    @task(executor="inline")
    def work(n: int) -> int:
        if n == 0 and is_broken[0]:
            raise ValueError("broken")
        return n + 1

    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(numbers: list[int]) -> int:
            total = 0
            for number in numbers:
                with suppress(ValueError):
                    total += work(number).result()
            return total

        assert 2 == flow.run([1, 0], id="adopts")
        is_broken[0] = False
        assert 2 == flow.run([1], id="adopts", adopt=True)
        assert 3 == flow.run([1, 0], id="adopts", adopt=True)

    (listed,) = json.loads(cli("ls", "--json").stdout)
    assert "done" == listed["short"]


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
def test_a_caught_failure_of_another_node_is_counted_after_an_edit(
    cli: Cli, tmp_path: Path
) -> None:
    """The edited node makes other calls, but this failure is not one of its own."""

    @task(executor="inline")
    def work(n: int) -> int:
        return 6 // n

    def careful(state: State) -> State:
        with suppress(ZeroDivisionError):
            work(0).result()
        return {"n": 1}

    def broken(state: State) -> State:
        work(1).result()
        raise ValueError("broken")

    def repaired(state: State) -> State:
        return {"log": str(work(2).result())}

    def graph(other: Callable[[State], State]) -> Any:
        graph = StateGraph(State).add_node("careful", careful).add_node("other", other)
        graph.add_edge(START, "careful").add_edge(START, "other")
        return graph.compile(checkpointer=saver, executor="inline")

    with LMDBSaver(tmp_path / "store") as saver:
        with pytest.raises(ValueError, match="broken"):
            graph(broken).invoke({"log": ""}, thread_id="graph")
        graph(repaired).invoke(None, thread_id="graph")

    (listed,) = json.loads(cli("ls", "--json").stdout)
    assert "done, 1 failed" == listed["short"]


def test_a_graph_that_used_up_its_supersteps_is_not_called_an_error_of_a_call(
    cli: Cli, tmp_path: Path
) -> None:
    with LMDBSaver(tmp_path / "store") as saver:
        graph = StateGraph(State).add_node("add", add).add_edge(START, "add")
        graph.add_edge("add", "add")
        endless = graph.compile(checkpointer=saver, executor="inline")
        with pytest.raises(RecursionError):
            endless.invoke({"n": 1}, {"recursion_limit": 3}, thread_id="endless")

    assert lines_of(cli, "endless")[0].startswith("Failed: the run has used up its ")


def test_no_cause_is_guessed_for_a_run_that_found_no_room_in_its_store(
    cli: Cli, tmp_path: Path
) -> None:
    """Its error could not be stored either."""

    class FullSaver(LMDBSaver):
        """A saver whose disk is full after the commit of the run's input."""

        commits = 0

        def commit(self, batches: Sequence[Batch]) -> None:
            if self.commits:
                raise StoreFullError("there is no room")
            self.commits += 1
            super().commit(batches)

    with FullSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def flow(number: int) -> int:
            return number

        with pytest.raises(StoreFullError):
            flow.invoke(1, thread_id="full", durability="sync")

    assert "Stopped before its end; no call had finished." == lines_of(cli, "full")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (signal.SIGKILL, r"Killed: process \d+ on \S+ ended unexpectedly; 2 results"),
        (signal.SIGINT, r"Stopped before its end; 2 results"),
    ],
    ids=["killed", "interrupted"],
)
def test_a_run_that_was_killed_is_told_from_one_that_was_stopped(
    cli: Cli, tmp_path: Path, number: int, expected: str
) -> None:
    """Both are stopped, and what had finished is stored."""
    with half_way(tmp_path, "--durability", "sync") as process:
        with LMDBSaver(tmp_path / "store") as saver, reading(saver) as reader:
            until(lambda: [each.state for each in rows(reader)].count("done") == 2)
        process.send_signal(number)
        process.wait()
    let_go(tmp_path / "go")

    (listed,) = json.loads(cli("ls", "--json").stdout)
    sentence, step = lines_of(cli, "job")

    assert re.match(expected, sentence), sentence
    assert step.startswith("resume it: flowpregel resume job --store ")
    assert "stopped" == listed["status"]
    assert listed["short"] in cli("ls").stdout


def rows(reader: Any) -> list[Any]:
    """Return the rows of all calls of the job."""
    return [row for row in reader.calls("job").rows if row.text]


@pytest.mark.slow
def test_a_run_in_progress_is_counted(cli: Cli, tmp_path: Path) -> None:
    """By what its process publishes."""
    with job(tmp_path):
        until(lambda: (tmp_path / "go.begun").exists())
        sentence, step = lines_of(cli, "job")

    assert re.fullmatch(
        r"Running in process \d+ on \S+: 2 calls run now, 1 more wait for a worker\.",
        sentence,
    )
    assert step.startswith("watch it: flowpregel watch job --store ")


def test_a_list_tells_runs_apart_in_a_line_each(cli: Cli, tmp_path: Path) -> None:
    with LMDBSaver(tmp_path / "store") as saver:
        steps.copy({"checkpointer": saver}).invoke({"n": 1}, thread_id="finished")
        allow.copy({"checkpointer": saver}).invoke(["ann"], thread_id="asks")
        with pytest.raises(ZeroDivisionError):
            shares.copy({"checkpointer": saver}).invoke([1, 0], thread_id="fails")

    title, *lines = cli("ls").stdout.splitlines()
    found = dict(re.split(r" {2,}", line)[:2] for line in lines)

    assert ["THREAD", "STATUS", "BEGAN", "TOOK", "FLOW"] == title.split()
    assert {
        "finished": "done",
        "asks": 'asks {"allow": "ann"}',
        "fails": "failed: divide(0): ZeroDivisionError: division by zero",
    } == found


def test_the_list_fits_on_a_terminal(cli: Cli, tmp_path: Path) -> None:
    """A line each, in 80 columns, with the ends of long ids, in colour."""
    thread = f"nightly-{'x' * 60}-2026-11-28"
    with LMDBSaver(tmp_path / "store") as saver, pytest.raises(ZeroDivisionError):
        shares.copy({"checkpointer": saver}).invoke([1, 0], thread_id=thread)
    command = [*COMMAND, "ls", "--store", str(tmp_path / "store")]

    with on_terminal(command, tmp_path, columns=80) as terminal:
        assert 0 == terminal.wait()
    with on_terminal(command, tmp_path, columns=80, NO_COLOR="1") as colourless:
        assert 0 == colourless.wait()

    title, line = plain(terminal.written).splitlines()
    assert len(line) <= 80
    assert re.match(r"nightly-x+…x*-2026-11-28  failed: div", line)
    assert title.startswith("THREAD")
    assert "\x1b[31mfailed" in terminal.written
    assert "\x1b[31m" not in colourless.written
    assert thread in cli("ls").stdout


def test_programs_get_the_sentence_beside_the_facts(cli: Cli) -> None:
    """The number of the superstep stays what it was."""
    begin(cli, "steps", "r", {"n": 1})
    (listed,) = json.loads(cli("ls", "--json").stdout)
    shown = json.loads(cli("show", "r", "--json").stdout)

    assert (2, "done", "done") == (shown["step"], shown["status"], shown["situation"])
    assert ("Done.", "", "") == (
        shown["sentence"],
        shown["next_step"],
        shown["command"],
    )
    assert (2, "done", "done") == (listed["step"], listed["status"], listed["short"])
    assert {"thread_id", "created", "updated", "flow"} < listed.keys()
