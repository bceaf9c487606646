"""The command goes on with work that is kept: by its id alone, over changes of code and
input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel._core.records import Address
from flowpregel.checkpoint.base import FLOW, FOLDER
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import RunNotice

Invoke = Callable[..., Result]

STUDY = """
import pathlib
from flowpregel.func import entrypoint, task

folder = pathlib.Path(__file__).parent

@task
def double(n):
    with open(folder / "ran", "a") as ran:
        ran.write(f"{n} ")
    if (folder / "bad").exists() and n == 2:
        raise OSError("bad 2")
    return 2 * n

@entrypoint(executor="threads")
def study(numbers, extra=0):
    return sum(double(n).result() for n in numbers) + extra

@entrypoint(executor="threads")
def other(numbers):
    return 0

renamed_variable = study
del study
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the program ``work.py``, which is not the working folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", [*sys.path])
    written(tmp_path, STUDY)
    yield tmp_path
    sys.modules.pop("work", None)


def written(folder: Path, program: str) -> None:
    """Write the program, as if the process that runs it were a new one."""
    (folder / "work.py").write_text(program)
    for cached in folder.glob("__pycache__/*"):
        cached.unlink()
    sys.modules.pop("work", None)
    invalidate_caches()


def ran(folder: Path) -> str:
    """Return which calls ran, since this was asked last."""
    text = (folder / "ran").read_text() if (folder / "ran").exists() else ""
    (folder / "ran").write_text("")
    return text.strip()


@pytest.fixture
def cli(folder: Path) -> Invoke:
    """Run the command on the test's store."""
    env = {"FLOWPREGEL_STORE": str(folder / "store")}
    return lambda *words: CliRunner().invoke(app, [*words], env=env)


def run(cli: Invoke, folder: Path, numbers: list[int], *more: str) -> Result:
    given = json.dumps({"numbers": numbers})
    flow = f"{folder / 'work.py'}:renamed_variable"
    return cli("run", flow, "--id", "s", "--input", given, *more)


def test_a_run_that_is_done_shows_its_result_again(cli: Invoke, folder: Path) -> None:
    """The same command runs nothing."""
    first = run(cli, folder, [1, 2])
    assert (0, "6\n", "1 2") == (first.exit_code, first.stdout, ran(folder))

    again = run(cli, folder, [1, 2])

    assert (0, "6\n", "") == (again.exit_code, again.stdout, ran(folder))


def test_defaults_that_are_spelt_out_are_the_same_input(
    cli: Invoke, folder: Path
) -> None:
    """As for `flow.run`."""
    run(cli, folder, [1])
    flow = f"{folder / 'work.py'}:renamed_variable"
    again = cli("run", flow, "--id", "s", "--input", '{"numbers": [1], "extra": 0}')

    assert (0, "2\n") == (again.exit_code, again.stdout)


def test_an_input_that_does_not_fit_the_function_is_explained(
    cli: Invoke, folder: Path
) -> None:
    flow = f"{folder / 'work.py'}:renamed_variable"
    result = cli("run", flow, "--input", '{"number": 1}')

    assert Code.USAGE == result.exit_code
    assert (
        "error: --input: study() missing a required argument: 'numbers'"
        in result.stderr
    )


def test_another_input_is_refused_and_the_way_out_is_named(
    cli: Invoke, folder: Path
) -> None:
    run(cli, folder, [1, 2])
    result = run(cli, folder, [1, 3])

    assert Code.USAGE == result.exit_code
    assert "--adopt" in result.stderr


def test_with_adopt_only_what_is_new_runs_and_a_note_counts_it(
    cli: Invoke, folder: Path
) -> None:
    """A notice is one line on stderr, and no warning."""
    run(cli, folder, [1, 2])
    ran(folder)
    result = run(cli, folder, [1, 2, 3], "--adopt", "--quiet")

    assert (0, "12\n", "3") == (result.exit_code, result.stdout, ran(folder))
    note = "calls: 2 answered from the record, 1 executed, 0 not made again"
    assert f"note: the code or the input has changed; {note}\n" == result.stderr


def test_results_of_other_code_are_used_or_not_as_one_says(
    cli: Invoke, folder: Path
) -> None:
    (folder / "bad").touch()
    assert Code.FAILED == run(cli, folder, [1, 2]).exit_code
    (folder / "bad").unlink()
    written(folder, STUDY.replace("return 2 * n", "return 3 * n"))
    ran(folder)

    refused = run(cli, folder, [1, 2], "--on-code-change", "error")
    kept = run(cli, folder, [1, 2])

    assert "CodeChangedError" in refused.stderr
    assert (0, "8\n", "2") == (kept.exit_code, kept.stdout, ran(folder))
    assert (
        "note: double: 1 result was computed by other code and used as recorded"
        in kept.stderr
    )


def test_resume_needs_the_id_alone_from_any_folder(cli: Invoke, folder: Path) -> None:
    """Also where the flow's variable has another name than its function."""
    (folder / "bad").touch()
    failed = run(cli, folder, [1, 2])
    (folder / "bad").unlink()
    ran(folder)
    sys.modules.pop("work", None)
    sys.path.remove(str(folder))

    result = cli("resume", "s")

    assert (0, "6\n", "2") == (result.exit_code, result.stdout, ran(folder))
    assert "resume with: flowpregel resume s --store" in failed.stderr


def test_resume_finds_a_workflow_that_adopts_its_old_name(
    cli: Invoke, folder: Path
) -> None:
    (folder / "bad").touch()
    run(cli, folder, [1, 2])
    (folder / "bad").unlink()
    program = STUDY.replace("def study", "def renamed").replace(
        "= study\ndel study", "= renamed"
    )
    adopting = '@entrypoint(executor="threads", adopts="study")\ndef renamed'
    written(
        folder,
        program.replace('@entrypoint(executor="threads")\ndef renamed', adopting),
    )
    ran(folder)

    result = cli("resume", "s")

    assert (0, "6\n", "2") == (result.exit_code, result.stdout, ran(folder))


def test_a_run_from_a_program_is_resumed_by_its_id_alone(
    cli: Invoke, folder: Path
) -> None:
    """`flow.run` records what the command does."""
    program = _imported(folder)
    (folder / "bad").touch()
    with LMDBSaver(folder / "store") as saver:
        with pytest.raises(OSError, match="bad 2"):
            program.renamed_variable.copy({"checkpointer": saver}).run([1, 2], id="s")
        saved = saver.load(Address("s"))
    assert saved is not None
    assert {
        FLOW: "work:study",
        FOLDER: str(folder),
    }.items() <= saved.checkpoint.metadata.items()
    (folder / "bad").unlink()
    ran(folder)

    assert (0, "6\n", "2") == (
        (again := cli("resume", "s")).exit_code,
        again.stdout,
        ran(folder),
    )
    assert "6\n" == run(cli, folder, [1, 2]).stdout


def test_another_flow_under_the_id_is_refused(cli: Invoke, folder: Path) -> None:
    run(cli, folder, [1])
    result = cli("run", f"{folder / 'work.py'}:other", "--id", "s", "--input", "[1]")

    assert Code.USAGE == result.exit_code
    assert (
        "error: the run 's' belongs to workflow 'work:study', not to 'work:other'"
        in result.stderr
    )


def test_a_graph_adopts_no_input(cli: Invoke) -> None:
    result = cli("run", "tests.runs.cli_flows:steps", "--input", '{"n": 1}', "--adopt")

    assert Code.USAGE == result.exit_code
    assert "is a graph" in result.stderr


def test_a_notice_points_at_the_line_that_runs_the_flow(folder: Path) -> None:
    """Not into this library."""
    flow = _imported(folder).renamed_variable
    with LMDBSaver(folder / "store") as saver:
        kept = flow.copy({"checkpointer": saver})
        kept.run([1], id="s")
        with pytest.warns(RunNotice, match="1 executed") as caught:
            kept.run([1, 2], id="s", adopt=True)

    assert [__file__] == [each.filename for each in caught]


def _imported(folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    return import_module("work")


def test_again_starts_over_and_the_earlier_run_stays(cli: Invoke, folder: Path) -> None:
    """Its result is still in the history, of the same thread."""
    run(cli, folder, [1, 2])
    written(folder, STUDY.replace("return 2 * n", "return 3 * n"))
    ran(folder)

    kept = run(cli, folder, [1, 2])
    again = run(cli, folder, [1, 2], "--again")

    assert (0, "6\n") == (kept.exit_code, kept.stdout)
    assert "note: stored result of 20" in kept.stderr
    assert (
        "; the code of `double` has changed since; on_code_change='rerun' or again"
        in kept.stderr
    )
    assert (0, "9\n", "1 2") == (again.exit_code, again.stdout, ran(folder))
    history = json.loads(cli("history", "s", "--json").stdout)
    assert 4 == len(history)
    first = cli("state", "s", history[2]["checkpoint"], "--json")
    assert (0, True) == (first.exit_code, "6" in first.stdout)
