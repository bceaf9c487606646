"""The command's runs: run, resume, answer, and how they end."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from tests.runs.cli_flows import FLOWS, ask_in_a_graph, unfinished_graph

Invoke = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def cli(store: str) -> Invoke:
    """Run the command on the test's store."""
    return lambda *words: CliRunner().invoke(
        app, [*words], env={"FLOWPREGEL_STORE": store}
    )


def run(cli: Invoke, flow: str, given: Any, *more: str) -> Result:
    return cli("run", f"{FLOWS}:{flow}", "--input", json.dumps(given), *more)


def test_a_run_prints_its_output_and_nothing_else_on_stdout(cli: Invoke) -> None:
    """Progress goes to stderr."""
    result = run(cli, "total", [1, 2, 3])

    assert (Code.OK, "12\n") == (result.exit_code, result.stdout)
    assert "double: 3 done" in result.stderr
    assert result.stderr.endswith("\n")


def test_what_a_task_prints_is_not_mixed_into_the_output(cli: Invoke) -> None:
    """A program that reads stdout reads one JSON object."""
    result = run(cli, "steps", {"n": 1}, "--json")

    assert {
        "status": "done",
        "thread_id": "steps",
        "output": {"n": 2, "log": "n is 2"},
    } == json.loads(result.stdout)
    assert "a task prints\n" in result.stderr


def test_a_thread_without_a_name_is_refused(cli: Invoke) -> None:
    """As when a shell's variable is empty: the thread of the flow is another one."""
    result = run(cli, "total", [1], "--thread-id", "")

    assert Code.USAGE == result.exit_code
    assert "thread_id is empty: name the thread" in result.stderr


def test_the_input_may_stand_in_a_file(cli: Invoke, tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text("[4, 5]")

    assert (
        "18\n"
        == cli("run", f"{FLOWS}:total", "--input", f"@{tmp_path / 'input.json'}").stdout
    )


def test_quiet_shows_no_progress(cli: Invoke) -> None:
    assert "" == run(cli, "total", [1], "--quiet").stderr


@pytest.mark.parametrize("words", [[], ["--check-mutations"]])
def test_changed_arguments_are_named_on_request(
    cli: Invoke, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a note on stderr."""
    monkeypatch.delenv("FLOWPREGEL_CHECK_MUTATIONS", raising=False)
    result = run(cli, "changing", [1], "--quiet", *words)

    notes = result.stderr.splitlines()
    assert "2\n" == result.stdout
    assert len(words) == len(notes)
    for note in notes:
        assert note.startswith("note: argument 'numbers' of task 'add_zero' was")


def test_the_environment_may_request_them_for_all_commands(
    cli: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command without the option does not turn them off."""
    monkeypatch.setenv("FLOWPREGEL_CHECK_MUTATIONS", "1")

    assert "note: argument 'numbers'" in run(cli, "changing", [1], "--quiet").stderr


def test_a_failed_run_names_its_task_and_how_to_go_on(cli: Invoke, store: str) -> None:
    result = run(cli, "shares", [1, 0])

    assert Code.FAILED == result.exit_code
    assert "failed: ZeroDivisionError: division by zero" in result.stderr
    assert f"flowpregel resume shares --store {store}" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_failed_run_shows_where_if_asked(cli: Invoke) -> None:
    assert "return 1 / n" in run(cli, "shares", [0], "--traceback").stderr


def test_resume_knows_the_flow_from_the_run(cli: Invoke) -> None:
    """What had finished is not done again, and it fails where it failed."""
    run(cli, "shares", [1, 0])
    result = cli("resume", "shares")

    assert Code.FAILED == result.exit_code
    assert "divide: 1 done, 1 of them before, 1 failed" in result.stderr


def test_resume_of_a_thread_that_names_no_flow_asks_for_one(
    cli: Invoke, store: str
) -> None:
    """That of a graph which is no variable of a module."""
    with LMDBSaver(store) as saver:
        unfinished_graph.compile(checkpointer=saver).invoke({"n": 1}, thread_id="t")

    result = cli("resume", "t")

    assert Code.USAGE == result.exit_code
    assert "pass --flow MODULE:FLOW" in result.stderr


def test_resume_of_a_thread_that_is_not_there_is_refused(cli: Invoke) -> None:
    run(cli, "total", [1])
    result = cli("resume", "nobody", "--flow", f"{FLOWS}:total", "--quiet")

    assert Code.USAGE == result.exit_code
    assert "error: thread 'nobody' has no run to resume\n" == result.stderr


def test_resume_of_a_finished_run_gives_its_output(cli: Invoke) -> None:
    run(cli, "total", [1])

    assert (Code.OK, "2\n") == (
        (again := cli("resume", "total")).exit_code,
        again.stdout,
    )


def test_other_input_for_an_unfinished_run_is_refused(cli: Invoke) -> None:
    run(cli, "shares", [1, 0])
    result = run(cli, "shares", [1, 2])

    assert Code.USAGE == result.exit_code
    assert "it was started with another input" in result.stderr


def test_a_run_that_asks_exits_with_3_and_shows_the_question(cli: Invoke) -> None:
    result = run(cli, "allow", ["ann"])

    assert Code.WAITING == result.exit_code
    assert '{"allow": "ann"}' in result.stdout
    assert "flowpregel answer allow VALUE" in result.stderr


def test_the_only_question_is_answered_without_its_id(cli: Invoke) -> None:
    """An answer is JSON, and what is not JSON is text."""
    run(cli, "allow", ["ann"])
    result = cli("answer", "allow", "by all means")

    assert (Code.OK, '["by all means"]\n') == (result.exit_code, result.stdout)


def test_an_answer_that_begins_with_a_dash_follows_two_of_them(cli: Invoke) -> None:
    """Without them it would be an option, and the error shows how."""
    run(cli, "allow", ["a"])

    assert "after two dashes: -- -5" in cli("answer", "allow", "-5").stderr
    assert '["-5"]\n' == cli("answer", "allow", "--", "-5").stdout


def test_an_answer_that_is_a_dict_is_no_map_of_ids(cli: Invoke) -> None:
    run(cli, "allow", ["ann"])

    assert "[\"{'yes': 1}\"]\n" == cli("answer", "allow", '{"yes": 1}').stdout


def test_one_of_several_questions_is_answered_by_its_id(cli: Invoke) -> None:
    asked = json.loads(run(cli, "allow", ["ann", "bob"], "--json").stdout)["interrupts"]
    ids = {each["value"]["allow"]: each["id"] for each in asked}

    unclear = cli("answer", "allow", "yes")
    first = cli("answer", "allow", "yes", "--id", ids["bob"])
    second = cli("answer", "allow", "no")

    assert [Code.USAGE, Code.WAITING, Code.OK] == [
        each.exit_code for each in (unclear, first, second)
    ]
    assert "2 questions are open" in unclear.stderr
    assert '["no", "yes"]\n' == second.stdout


def test_several_questions_are_answered_at_once(cli: Invoke) -> None:
    """Each by an id, in the same order."""
    asked = json.loads(run(cli, "allow", ["ann", "bob"], "--json").stdout)["interrupts"]
    ids = {each["value"]["allow"]: f"--id={each['id']}" for each in asked}

    result = cli("answer", "allow", "yes", "no", ids["bob"], ids["ann"])

    assert Code.OK == result.exit_code, result.output
    assert '["no", "yes"]\n' == result.stdout


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (["yes", "no"], ["ann"]),
        (["yes"], ["ann", "bob"]),
        (["yes", "no"], ["ann", "ann"]),
        (["yes", "no"], []),
    ],
)
def test_each_answer_needs_the_id_of_its_question(
    cli: Invoke, values: list[str], named: list[str]
) -> None:
    asked = json.loads(run(cli, "allow", ["ann", "bob"], "--json").stdout)["interrupts"]
    ids = {each["value"]["allow"]: f"--id={each['id']}" for each in asked}

    result = cli("answer", "allow", *values, *(ids[name] for name in named))

    assert Code.USAGE == result.exit_code
    assert all(each["id"] in result.stderr for each in asked)


@pytest.mark.parametrize("flow", ["allow", "asking"])
@pytest.mark.parametrize("form", ["invoke", "stream", "ainvoke"])
def test_a_run_by_invoke_is_answered_without_naming_its_flow(
    cli: Invoke, store: str, flow: str, form: str
) -> None:
    """Workflows and graphs that are variables of a module record how they are
    imported.
    """
    ask_in_a_graph(flow, form, store)

    result = cli("answer", "t", "yes")

    assert (Code.OK, "yes" in result.stdout) == (result.exit_code, True), result.output


def test_metadata_of_the_user_stand_beside_the_flow_of_a_run(
    cli: Invoke, store: str
) -> None:
    """Those that the command was given, of all options."""
    options = (
        "--metadata",
        "team=a",
        "--metadata",
        "n=[1]",
        "--tag",
        "x",
        "--durability",
        "sync",
    )
    result = run(cli, "context", 1, *options, "--context", '{"user": "ann"}')

    with LMDBSaver(store) as saver:
        saved = saver.load(Address("context"))

    assert saved is not None
    metadata = saved.checkpoint.metadata
    assert ("a", [1]) == (metadata["team"], metadata["n"])
    assert f"{FLOWS}:context" == metadata["flow"]
    assert '{"user": "ann"}\n' == result.stdout
    assert Code.USAGE == run(cli, "context", 1, "--metadata", "team").exit_code
    assert "--context is not JSON" in run(cli, "context", 1, "--context", "ann").stderr


def test_an_answer_to_nothing_is_refused(cli: Invoke) -> None:
    run(cli, "total", [1])
    result = cli("answer", "total", "yes")

    assert Code.USAGE == result.exit_code
    assert "has no open question" in result.stderr


def test_a_thread_that_another_run_holds_is_refused(cli: Invoke, store: str) -> None:
    with LMDBSaver(store) as saver, saver.lease("total"):
        result = run(cli, "total", [1], "--on-conflict", "raise")

    assert Code.STORE == result.exit_code
    assert "thread 'total'" in result.stderr


def test_without_a_store_a_run_says_that_nothing_is_kept() -> None:
    result = CliRunner().invoke(app, ["run", f"{FLOWS}:total", "--input", "[1]"])

    assert (Code.OK, "2\n") == (result.exit_code, result.stdout)
    assert "this run is not recorded" in result.stderr


def test_a_run_keeps_which_flow_it_is_of(cli: Invoke, store: str) -> None:
    run(cli, "total", [1], "--thread-id", "mine")

    with LMDBSaver(store) as saver:
        saved = saver.load(Address("mine"))

    assert saved is not None
    assert f"{FLOWS}:total" == saved.checkpoint.metadata["flow"]


@pytest.mark.parametrize(
    ("flow", "says"),
    [
        ("total", "write MODULE:FLOW"),
        ("no_such_module:total", "there is no such module"),
        ("no/such/file.py:total", "there is no file no/such/file.py"),
        (
            f"{FLOWS}:nothing",
            (
                "cli_flows are: total, changing, allow, rest, told_to_end, wait, "
                "shares, steps, asking, context"
            ),
        ),
        (f"{FLOWS}:os", "not a flow"),
        (f"{FLOWS}:unfinished_graph", "not compiled"),
    ],
)
@pytest.mark.parametrize("given", [("--input", "1"), ()])
def test_a_name_that_is_no_flow_is_explained(
    cli: Invoke, flow: str, says: str, given: tuple[str, ...]
) -> None:
    """This comes before the input, which may be missing, too."""
    result = cli("run", flow, *given)

    assert Code.USAGE == result.exit_code
    assert says in result.stderr


def test_a_file_that_is_named_like_a_loaded_module_is_not_taken_for_it(
    cli: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would give the other one: of the stdlib, or that of another run's
    folder.
    """
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "random.py").write_text("raise AssertionError")

    result = cli("run", f"{tmp_path}/random.py:flow", "--input", "1")

    assert Code.USAGE == result.exit_code
    assert (
        f"another module 'random' is already imported, from {random.__file__}"
        in result.stderr
    )


@pytest.mark.parametrize("given", ["[1", "@no-such-file.json", "null"])
def test_an_input_that_cannot_be_read_is_explained(cli: Invoke, given: str) -> None:
    result = cli("run", f"{FLOWS}:total", "--input", given)

    assert Code.USAGE == result.exit_code
    assert "error: --input" in result.stderr
