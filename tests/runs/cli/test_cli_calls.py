"""The commands for single calls: debug, why, retry, redo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.func import Flow, entrypoint
from tests.runs import failing_calls as flows
from tests.runs.cli_jobs import environment

Cli = Callable[..., Result]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder in which one of three files is missing."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name[0])
    return tmp_path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run the command on the test's store."""

    def run(*words: str) -> Result:
        store = ["--store", str(tmp_path / "store")]
        return CliRunner().invoke(app, [*words, *store])

    return run


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Run a flow on the test's store, under the id ``x``."""

    def run(flow: Flow[Any, Any], *given: Any) -> Any:
        with LMDBSaver(tmp_path / "store") as saver:
            return flow.copy({"checkpointer": saver}).run(*given, id="x")

    return run


@pytest.fixture
def study(files: Path, run: Callable[..., Any]) -> Path:
    """A run of `study` that failed, of the files in this folder."""
    with pytest.raises(FileNotFoundError):
        run(flows.study, str(files))
    return files


def records(folder: Path) -> bytes:
    return (folder / "store" / "data.mdb").read_bytes()


def id_of(file: str, cli: Cli) -> str:
    """Return the id of the call that parsed *file*."""
    tasks = json.loads(cli("show", "x", "--json").stdout)["tasks"]
    (found,) = [each["id"] for each in tasks if file in each["name"]]
    return str(found)


# ---------------------------------------------------------------- debug


def test_debug_makes_the_call_that_failed_again(cli: Cli, study: Path) -> None:
    """With its arguments, and as the program is now; the tasks it calls are called
    too.
    """
    (study / "c.txt").write_text("ccc")
    before = records(study)

    result = cli("debug", "x")

    assert Code.OK == result.exit_code, result.output
    assert '"ccc 1.5"\n' == result.stdout
    assert before == records(study)


def test_debug_shows_what_the_call_raises(cli: Cli, study: Path) -> None:
    result = cli("debug", "x", "--json")

    assert Code.FAILED == result.exit_code
    assert "FileNotFoundError" == json.loads(result.stdout)["error"]["type"]
    assert "Path(folder, name).read_text()" in result.stderr
    assert "in call_here" not in result.stderr  # no frame of ours


def test_debug_names_a_changed_argument(
    cli: Cli, files: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although neither the run nor the environment has asked for that."""
    monkeypatch.setenv("FLOWPREGEL_CHECK_MUTATIONS", "0")
    with pytest.raises(FileNotFoundError):
        run(flows.counting, ["b", "a"], str(files / "c.txt"))
    (files / "c.txt").write_text("ccc")

    result = cli("debug", "x")

    assert (Code.OK, "3\n") == (result.exit_code, result.stdout)
    assert result.stderr.startswith(
        "note: argument 'words' of task 'counted_words' was changed during the call; "
    )
    assert 1 == len(result.stderr.splitlines())


PROGRAM = """
from flowpregel.func import entrypoint, task

@task
def invert(n):
    return 1 / n

@entrypoint(checkpointer="store")
def flow(n):
    return invert(n).result()

if __name__ == "__main__":
    flow.run(0, id="x")
"""


@pytest.mark.slow
def test_debug_of_a_program_in_pdb(tmp_path: Path) -> None:
    """In the frame that raised it; the program opens the same store when it is
    imported.
    """
    (tmp_path / "program.py").write_text(PROGRAM)

    def told(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            input="p 'is', n\nquit\n",
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    failed = told("program.py")
    debugged = told(
        "-m", "flowpregel.cli", "debug", "x", "invert(", "--pdb", "--store", "store"
    )

    assert "invert(0) (attempt 1, worker " in failed.stderr
    assert Code.FAILED == debugged.returncode, debugged.stderr
    assert "('is', 0)" in debugged.stdout


def test_debug_makes_each_call_of_a_chunk(cli: Cli, run: Callable[..., Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        run(flows.chunks, [1, 2, 0, 4])

    result = cli("debug", "x")

    assert Code.FAILED == result.exit_code
    assert ": invert(0) (attempt 1)" in result.stderr


def test_debug_says_which_argument_was_not_kept(
    cli: Cli, run: Callable[..., Any]
) -> None:
    with pytest.raises(PermissionError):
        run(flows.session, None)

    result = cli("debug", "x")

    assert Code.USAGE == result.exit_code
    assert "argument 1 was not stored: it is redacted" in result.stderr


def test_debug_needs_a_call_that_failed(cli: Cli, study: Path) -> None:
    """Another is not found among those that did, which are listed."""
    result = cli("debug", "x", "halve(1)")

    assert Code.USAGE == result.exit_code
    assert "there is no call that failed 'halve(1)'; there are:\n  " in result.stderr
    assert "  parse('" in result.stderr


def test_debug_of_a_run_without_failures(
    cli: Cli, study: Path, run: Callable[..., Any]
) -> None:
    (study / "c.txt").write_text("c")
    run(flows.study, str(study))

    assert "error: there is no call that failed\n" == cli("debug", "x").stderr


def test_debug_of_a_thread_that_is_not_there(cli: Cli, study: Path) -> None:
    assert "has no thread 'y'" in cli("debug", "y").stderr


# ---------------------------------------------------------------- why


def test_why_says_how_a_call_was_made_and_what_becomes_of_it(
    cli: Cli, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is done, one that failed, and one whose code has changed since."""
    done, failed = id_of("a.txt", cli), id_of("c.txt", cli)

    first = json.loads(cli("why", "x", done, "--json").stdout)
    assert first["id"] == done
    assert "by threads, process " in first["made"]
    assert first["made"].endswith("; done")
    assert first["next"] == "the recorded result is used; the code is unchanged"
    assert "it is tried again" in cli("why", "x", failed).stdout

    monkeypatch.setattr(flows, "parse", flows.parse.with_options(version="2"))
    assert "although the code has changed" in cli("why", "x", done).stdout
    monkeypatch.setattr(flows, "parse", None)
    assert "the flow's module has no task 'parse'" in cli("why", "x", done).stdout
    assert Code.USAGE == cli("why", "x", "nothing(").exit_code


# ---------------------------------------------------------------- retry and redo


def test_retry_goes_on_with_the_run(cli: Cli, study: Path) -> None:
    (study / "c.txt").write_text("c")

    result = cli("retry", "x", "--quiet")

    assert Code.OK == result.exit_code, result.output
    assert '["a 0.5", "b 0.5", "c 0.5"]\n' == result.stdout


def test_retry_tries_what_the_flow_has_dealt_with(
    cli: Cli, files: Path, run: Callable[..., Any]
) -> None:
    """A run that is over goes on for it; what did not fail is not run again."""
    assert 10 == run(flows.lenient, str(files))
    (files / "a.txt").unlink()
    (files / "c.txt").write_text("c")

    result = cli("retry", "x", "--failed", "--quiet")

    assert "15\n" == result.stdout


UNGUARDED = """
from flowpregel import entrypoint, task

@task
def check(number):
    raise LookupError(number)

@entrypoint(checkpointer={store!r}, executor="inline")
def flow(number):
    return check(number).result()

if {condition}:
    flow.run(1, id="x")
"""


@pytest.mark.parametrize("command", ["retry", "resume"])
def test_a_module_that_runs_its_workflow_when_imported_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Before that run begins, so nothing is recorded."""
    file = tmp_path / f"unguarded_{command}.py"
    store = str(tmp_path / "store")
    file.write_text(UNGUARDED.format(store=store, condition="__name__ == '__main__'"))
    begun = cli("run", f"{file}:flow", "--input", "1", "--id", "x", "--quiet")
    assert Code.FAILED == begun.exit_code, begun.output
    before = records(tmp_path)
    monkeypatch.delitem(sys.modules, file.stem)
    file.write_text(UNGUARDED.format(store=store, condition="True"))

    result = cli(command, "x", "--quiet")

    assert Code.USAGE == result.exit_code, result.output
    assert f"'{file.stem}' runs a workflow while it is imported" in result.stderr
    assert "if __name__ == '__main__':" in result.stderr
    assert before == records(tmp_path)


def test_redo_takes_a_result_back(
    cli: Cli, files: Path, run: Callable[..., Any]
) -> None:
    """The call is made again, and those that are given its result."""
    run(flows.lenient, str(files))
    (files / "a.txt").write_text("aaaa")
    (files / "b.txt").unlink()

    result = cli("redo", "x", f"parse('{str(files)[:20]}", "--json")
    assert Code.USAGE == result.exit_code
    assert (
        "3 calls match; name one by its id:\n  "
        in json.loads(result.stdout)["error"]["message"]
    )

    result = cli("redo", "x", id_of("a.txt", cli))
    assert Code.OK == result.exit_code, result.output
    assert "taken back: parse(" in result.stdout
    assert 13 == run(flows.lenient, str(files))
    assert 13 == run(flows.lenient, str(files))


@pytest.mark.parametrize("command", ["redo", "why"])
def test_an_empty_text_names_no_call(
    cli: Cli, run: Callable[..., Any], command: str
) -> None:
    """Although the run has made only one call, which begins with it."""

    @entrypoint
    def count(text: str) -> int:
        return flows.summed([text]).result()

    run(count, "a")

    result = cli(command, "x", "")

    assert Code.USAGE == result.exit_code
    assert "there is no call ''; there are:" in result.stderr


def test_redo_of_an_inner_call_takes_back_its_caller(
    cli: Cli, files: Path, run: Callable[..., Any]
) -> None:
    (files / "b.txt").write_text("bb")
    assert 11 == run(flows.lenient, str(files))
    (files / "a.txt").unlink()

    assert Code.OK == cli("redo", "x", "halve(1)").exit_code
    assert 6 == run(flows.lenient, str(files))


def test_redo_refuses_a_thread_that_a_run_has(cli: Cli, study: Path) -> None:
    with LMDBSaver(study / "store") as saver, saver.lease("x"):
        result = cli("redo", "x", id_of("c.txt", cli))

    assert "is being run by" in result.stderr


def test_a_list_of_calls_that_is_cut_ends_with_the_number_of_the_others(
    cli: Cli, run: Callable[..., Any]
) -> None:
    @entrypoint(executor="inline")
    def halves(count: int) -> float:
        return sum(future.result() for future in flows.halve.map(range(count)))

    run(halves, 23)

    result = cli("why", "x", "third(1)")

    assert Code.USAGE == result.exit_code
    assert result.stderr.endswith("\n  and 3 more, which `flowpregel show` lists\n")
