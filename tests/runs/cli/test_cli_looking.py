"""The commands that only look: ls, show, history, state, diff, stats, graph, doctor."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel._core.records import Address, Batch, TaskWrites
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.watching import CALL_NUMBERS
from tests.runs.cli_flows import FLOWS, allow, shares, steps
from tests.runs.stores import commit, id_of

STEP = '"step": -1'
Invoke = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a finished thread, a failed one, and one that waits."""
    path = str(tmp_path / "store")
    with LMDBSaver(path) as saver:
        steps.copy({"checkpointer": saver}).invoke({"n": 1}, thread_id="finished")
        allow.copy({"checkpointer": saver}).invoke(["ann"], thread_id="waits")
        with pytest.raises(ZeroDivisionError):
            shares.copy({"checkpointer": saver}).invoke([1, 0], thread_id="failed")
    return path


@pytest.fixture
def cli(store: str) -> Invoke:
    """Run the command on the test's store."""
    return lambda *words: CliRunner().invoke(app, [*words, "--store", store])


@pytest.fixture
def shown(cli: Invoke) -> Callable[..., Any]:
    """Run the command with ``--json``, and return what it prints."""

    def shown(*words: str) -> Any:
        result = cli(*words, "--json")
        assert Code.OK == result.exit_code, result.output
        return json.loads(result.stdout)

    return shown


def test_ls_says_how_each_thread_stands(shown: Callable[..., Any]) -> None:
    found = {each["thread_id"]: each["status"] for each in shown("ls")}

    assert {"finished": "done", "waits": "waiting", "failed": "failed"} == found


def test_ls_can_be_narrowed_to_a_status(cli: Invoke) -> None:
    lines = cli("ls", "--status", "failed").stdout.splitlines()

    assert ["THREAD", "failed"] == [line.split()[0] for line in lines]


def test_a_thread_that_a_run_holds_is_running(
    store: str, shown: Callable[..., Any]
) -> None:
    with LMDBSaver(store) as saver, saver.lease("finished"):
        assert ["finished"] == [
            each["thread_id"] for each in shown("ls", "--status", "running")
        ]


def test_show_tells_of_a_thread_that_a_run_holds(
    store: str, shown: Callable[..., Any]
) -> None:
    with LMDBSaver(store) as saver, saver.lease("waits"):
        assert "running" == shown("show", "waits")["status"]


def test_show_lists_tasks_by_what_became_of_them(shown: Callable[..., Any]) -> None:
    tasks = shown("show", "failed")["tasks"]

    assert {"failed", "done"} <= {task["state"] for task in tasks}
    assert [1.0] == [task["result"] for task in tasks if task["state"] == "done"]
    assert {"type": "ZeroDivisionError", "message": "division by zero"} in [
        task["error"] for task in tasks
    ]


def test_show_tells_what_is_asked(cli: Invoke) -> None:
    assert '{"allow": "ann"}' in cli("show", "waits").stdout


def test_a_question_that_is_no_class_of_ours_is_shown(store: str, cli: Invoke) -> None:
    """Of a graph of LangGraph's, say."""
    with LMDBSaver(store) as saver:
        commit(saver, 0)
        asked = (("__interrupt__", ("go on?",)),)
        writes = TaskWrites(id_of(0), "task", "", asked)
        saver.commit([Batch(address=Address("t"), writes=(writes,))])

    assert '?: "go on?"' in cli("show", "t").stdout


def test_show_names_nodes_if_it_may_import_the_flow(shown: Callable[..., Any]) -> None:
    facts = shown("show", "failed", "--flow", f"{FLOWS}:shares")

    assert ["shares"] == facts["next"]
    assert "shares" in [task["name"] for task in facts["tasks"]]


def test_show_says_how_long_and_how_often_each_task_ran(
    shown: Callable[..., Any],
) -> None:
    tasks = shown("show", "finished")["tasks"]

    assert [(1, "add"), (2, "tell")] == [(task["step"], task["name"]) for task in tasks]
    for task in tasks:
        assert task["began"].endswith("Z")
        assert task["seconds"] >= 0
        assert (1, "processes") == (task["attempts"], task["executor"])
        assert task["pid"] != os.getpid()


def test_show_has_the_measurements_of_each_task_as_json(
    shown: Callable[..., Any],
) -> None:
    """They have the names that readers of calls use."""
    fields = {number.field for number in CALL_NUMBERS}

    for task in shown("show", "finished")["tasks"]:
        assert fields <= {*task}
        assert task["cpu"] > 0
        assert task["peak"] > 1_000_000


def table_of_tasks(shown: Result) -> list[str]:
    """Return the lines of the table of tasks, and what follows it."""
    lines = shown.stdout.splitlines()
    heads = next(line for line in lines if line.startswith("STEP "))
    return lines[lines.index(heads) :]


def test_show_has_columns_of_measurements_with_time(cli: Invoke) -> None:
    """Without the option, the results have the room."""
    columns = [number.heading.upper() for number in CALL_NUMBERS]
    usual_heads, *_ = table_of_tasks(cli("show", "finished"))
    heads, _, row, *_ = table_of_tasks(cli("show", "finished", "--time"))

    assert ["TRIES", *columns, "RESULT,"] == heads.split()[4 : 6 + len(columns)]
    assert re.search(r"  1 +\d+\.\d\d s +\d+\.\d [MG]B", row)
    assert not {*columns} & {*usual_heads.split()}


def test_show_has_columns_for_it(cli: Invoke) -> None:
    lines = cli("show", "finished").stdout.splitlines()

    heads = lines[-3].split("  ")
    assert ["STEP", "TASK", "STATE", "SECONDS", "TRIES"] == [*filter(None, heads)][:5]
    assert ["2", "tell", "done"] == lines[-1].split()[:3]


def test_show_can_be_limited_to_the_newest_supersteps(
    shown: Callable[..., Any],
) -> None:
    assert ["tell"] == [
        task["name"] for task in shown("show", "finished", "--limit", "2")["tasks"]
    ]


def test_show_names_the_process_that_runs_a_thread(
    store: str, shown: Callable[..., Any]
) -> None:
    with LMDBSaver(store) as saver, saver.lease("waits"):
        assert f"process {os.getpid()} on " in shown("show", "waits")["run by"]


def test_a_threads_run_is_drawn(cli: Invoke) -> None:
    lines = cli(
        "graph", f"{FLOWS}:steps", "--thread", "finished", "--ascii"
    ).stdout.splitlines()

    assert ["step 1  + add", "step 2  + tell"] == [line[:14].rstrip() for line in lines]


@pytest.mark.parametrize("language", ["--mermaid", "--dot"])
def test_a_run_is_drawn_as_a_table_alone(cli: Invoke, language: str) -> None:
    result = cli("graph", f"{FLOWS}:steps", "--thread", "finished", language)

    assert Code.USAGE == result.exit_code
    assert "as a table" in result.stderr


def test_a_flow_is_drawn_for_graphviz(cli: Invoke) -> None:
    assert cli("graph", f"{FLOWS}:steps", "--dot").stdout.startswith("digraph {")


def test_a_run_can_be_had_as_json(shown: Callable[..., Any]) -> None:
    (body,) = shown("graph", f"{FLOWS}:allow", "--thread", "waits")["tasks"]

    assert ("allow", "waiting") == (body["name"], body["status"])
    assert ["question"] == [call["name"] for call in body["inner"]]


def test_a_run_of_an_unknown_thread_cannot_be_drawn(cli: Invoke) -> None:
    result = cli("graph", f"{FLOWS}:steps", "--thread", "nobody")

    assert Code.USAGE == result.exit_code
    assert "nobody" in result.stderr


def test_history_lists_checkpoints_newest_first(shown: Callable[..., Any]) -> None:
    found = shown("history", "finished")

    assert [2, 1, 0, None] == [each["step"] for each in found]
    assert ["log"] == found[0]["changed"]
    assert found[1]["checkpoint"] == found[0]["parent"]


def test_what_is_the_engines_is_shown_if_it_is_asked_for(
    shown: Callable[..., Any],
) -> None:
    """Its channels and steps, under its own names; otherwise under a user's, or not at
    all.
    """
    for command, engines in (("ls", STEP), ("history", STEP), ("state", "__start__")):
        words = [command] if command == "ls" else [command, "waits"]
        assert engines not in json.dumps(shown(*words))
        assert engines in json.dumps(shown(*words, "--internals"))
    assert {"input": ["ann"]} == shown("state", "waits")["values"]
    assert ["input"] == shown("history", "waits")[0]["changed"]
    assert {"n": 2} == shown("show", "finished")["tasks"][0]["result"]
    assert {"branch:to:tell", "n"} == {
        *shown("show", "finished", "--internals")["tasks"][0]["result"]
    }


def test_what_an_entrypoint_returned_is_shown_as_it_is(
    store: str, shown: Callable[..., Any]
) -> None:
    """Under the name of result, and not of a channel."""
    with LMDBSaver(store) as saver:
        shares.copy({"checkpointer": saver}).invoke([1, 2], thread_id="divided")

    tasks = {each["name"]: each["result"] for each in shown("show", "divided")["tasks"]}
    assert tasks["shares"] == shown("state", "divided")["values"]["result"]


def test_a_channel_of_the_users_keeps_its_name(
    store: str, shown: Callable[..., Any]
) -> None:
    """Also where it is the name that the engine's would be given."""
    with LMDBSaver(store) as saver:
        commit(saver, 0, {"__start__": 1, "input": 2})

    assert {"__start__": 1, "input": 2} == shown("state", "t")["values"]


def test_history_can_be_short(shown: Callable[..., Any]) -> None:
    assert 1 == len(shown("history", "finished", "--limit", "1"))


@pytest.mark.parametrize(
    ("point", "values"),
    [((), {"n": 2, "log": "n is 2"}), (("1",), {"n": 2}), (("0",), {"n": 1})],
)
def test_state_shows_a_checkpoint(
    shown: Callable[..., Any], point: Any, values: Any
) -> None:
    """By default the newest; otherwise the one of a step."""
    assert values == shown("state", "finished", *point)["values"]


def test_a_checkpoint_is_found_by_its_id(shown: Callable[..., Any]) -> None:
    for each in shown("history", "finished"):
        found = shown("state", "finished", each["checkpoint"])
        assert each["checkpoint"] == found["checkpoint"]


def test_the_beginning_of_an_id_that_several_have_is_refused(cli: Invoke) -> None:
    result = cli("state", "finished", "1f")

    assert Code.USAGE == result.exit_code
    assert "several checkpoints" in result.stderr


def test_diff_shows_what_a_step_changed(cli: Invoke) -> None:
    assert "- n: 1\n+ n: 2\n" == cli("diff", "finished", "0", "1").stdout


def test_diff_compares_the_newest_with_its_parent(shown: Callable[..., Any]) -> None:
    assert {"log": {"new": "n is 2"}} == shown("diff", "finished")["changes"]


def test_stats_count_what_is_kept(shown: Callable[..., Any]) -> None:
    found = shown("stats")

    assert (3, 6) == (found["threads"], found["checkpoints"])
    assert "n" in found["bytes_of_channels"]


def test_graph_draws_a_flow() -> None:
    drawn = CliRunner().invoke(app, ["graph", f"{FLOWS}:steps", "--ascii"]).stdout

    assert {"__start__", "add", "tell", "__end__"} <= {*drawn.replace("|", " ").split()}
    assert drawn.isascii()


def test_graph_gives_nodes_and_edges_as_json() -> None:
    result = CliRunner().invoke(app, ["graph", f"{FLOWS}:steps", "--json"])

    edges = {
        (each["source"], each["target"]) for each in json.loads(result.stdout)["edges"]
    }
    assert ("add", "tell") in edges


def test_doctor_finds_a_healthy_store(shown: Callable[..., Any]) -> None:
    assert [] == [each for each in shown("doctor") if not each["ok"]]


def test_doctor_finds_a_key_file_that_is_not_there(
    cli: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And checks everything else nevertheless."""
    monkeypatch.setenv("FLOWPREGEL_ENCRYPTION_KEY_FILE", "/no/such/file")

    result = cli("doctor")

    assert Code.STORE == result.exit_code
    assert "the key file /no/such/file cannot be read" in result.stdout
    assert "store's mode" in result.stdout


def test_doctor_finds_a_store_that_others_can_read(cli: Invoke, store: str) -> None:
    """Opening it only to look leaves the folder as it is."""
    os.chmod(store, 0o755)
    result = cli("doctor")

    assert Code.STORE == result.exit_code
    assert "chmod 700" in result.stdout


@pytest.mark.parametrize("command", ["show", "history", "state", "diff"])
def test_an_unknown_thread_is_refused(cli: Invoke, command: str) -> None:
    result = cli(command, "nobody")

    assert Code.USAGE == result.exit_code
    assert "has no thread 'nobody'" in result.stderr


@pytest.mark.parametrize("command", ["ls", "stats", "verify"])
def test_a_store_that_is_not_there_is_refused_and_not_made(
    tmp_path: Path, command: str
) -> None:
    missing = tmp_path / "missing"
    result = CliRunner().invoke(app, [command, "--store", str(missing), "--json"])

    assert Code.STORE == result.exit_code
    assert "StoreError" == json.loads(result.stdout)["error"]["type"]
    assert not missing.exists()


def test_no_store_at_all_is_wrong_usage() -> None:
    result = CliRunner().invoke(app, ["ls"])

    assert Code.USAGE == result.exit_code
    assert "--store PATH" in result.stderr


class Unreadable:
    """A value whose pickle gives an exception a state that it cannot have."""

    def __reduce__(self) -> Any:
        return ValueError, (), 1


def test_a_value_that_cannot_be_decoded_hides_no_other(
    store: str, shown: Callable[..., Any]
) -> None:
    """It is shown as what it is."""
    with LMDBSaver(store) as saver:
        graph = steps.copy({"checkpointer": saver})
        graph.update_state(
            thread_id="finished", values={"log": Unreadable()}, as_node="tell"
        )

    values = shown("state", "finished")["values"]

    assert 2 == values["n"]
    assert values["log"].startswith("<unreadable: TypeError: state is not a dictionary")


def test_the_help_lists_each_command_with_a_whole_sentence() -> None:
    """On a terminal of 80 columns."""
    listed = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout
    _, _, commands = listed.partition("Commands:\n")

    lines = [line for line in commands.splitlines() if line.startswith("  ")]
    names = {line.split()[0] for line in lines}
    assert {"run", "ls", "rename"} <= names
    assert [] == [line for line in lines if line.endswith("...")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ls",), "name the store with --store PATH"),
        (("run", "job:study"), "pass the input with --input JSON, and the store with"),
        (("check", "--store"), "give the store as an argument, without --store"),
        (("ui", "--store"), "give the store as an argument, without --store"),
    ],
)
def test_a_store_that_is_named_in_the_other_way_is_told_how(
    store: str, words: tuple[str, ...], told: str
) -> None:
    result = CliRunner().invoke(app, [*words, store])

    assert Code.USAGE == result.exit_code
    assert told in result.stderr
