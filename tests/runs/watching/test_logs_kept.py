"""What calls print and log is kept with them, and shown by `flowpregel logs`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel._core.records import Address
from flowpregel.checkpoint.base import CallOutput
from flowpregel.checkpoint.lmdb import LMDBSaver, Retention, StoreOptions
from flowpregel.cli.app import app
from flowpregel.errors import WorkerDiedError
from tests.runs import printing_flows as flows
from tests.runs.cli_jobs import environment
from tests.runs.pooling import wait_until

Logs = Callable[..., Result]
pytestmark = pytest.mark.slow


@pytest.fixture
def logs(path: Path) -> Logs:
    """Run the command on the test's store."""
    return lambda *words: CliRunner().invoke(
        app, ["logs", *words, "--store", str(path)]
    )


def kept(path: Path, flow: Any, *given: Any, **options: Any) -> dict[str, CallOutput]:
    """Run *flow* on a store under the id ``x``; return what is kept of its calls, by
    their text.
    """
    with LMDBSaver(path, **options) as saver:
        flow.copy({"checkpointer": saver}).run(*given, id="x")
    return read(path)


def read(path: Path) -> dict[str, CallOutput]:
    """Return what is kept of the calls of thread ``x``, by their text."""
    with LMDBSaver(path, readonly=True) as saver:
        return {output.name: output for output in saver.kept_output(Address("x"))}


def test_what_calls_print_and_log_is_kept_for_each(path: Path) -> None:
    """stdout, stderr, logging and structlog, each call's by itself and in its order."""
    found = kept(path, flows.speaking, ["a", "b"])

    assert {"speak('a')", "speak('b')"} == found.keys()
    for name in "ab":
        first, *rest = found[f"speak('{name}')"].text.splitlines()
        assert f"out {name}" == first
        assert f"error {name}" == rest[0]
        assert f"WARNING study: careful with {name}" == rest[1]
        assert "seen" in rest[2]
        assert name in rest[2]


def test_of_much_the_ends_are_kept_and_the_cut_is_said(path: Path) -> None:
    """A call that prints nothing leaves nothing."""
    options = StoreOptions(kept_output=100)
    found = kept(path, flows.shouting, 1_000, options=options)

    (output,) = found.values()
    assert "first\nx" == output.text[:7]
    assert "x\nlast\n" == output.text[-7:]
    assert len("first\n" + 1_000 * "x" + "\nlast\n") == output.size
    assert f"[... {output.size - 100:,} bytes were not kept ...]" in output.text


def test_nothing_is_kept_where_none_is_wanted(path: Path) -> None:
    """``kept_output=0``."""
    assert {} == kept(path, flows.speaking, ["a"], options=StoreOptions(kept_output=0))


def test_a_call_whose_worker_is_killed_has_its_last_words(path: Path) -> None:
    """They came over the link before it ended."""
    with pytest.raises(WorkerDiedError):
        kept(path, flows.dying, 0)

    assert "last words\n" == read(path)["die()"].text


def test_output_goes_with_its_checkpoint(path: Path) -> None:
    """By a retention, and with the thread."""
    with LMDBSaver(path) as saver:
        app = flows.speaking.copy({"checkpointer": saver})
        for _ in range(3):
            app.invoke(["a"], thread_id="x")
        before = len(saver.kept_output(Address("x")))
        saver.sweep(Retention(keep_last=2))
        after = len(saver.kept_output(Address("x")))
        saver.delete_thread("x")

        assert (3, 1, []) == (before, after, saver.kept_output(Address("x")))


def test_the_command_shows_the_calls_of_the_last_run(path: Path, logs: Logs) -> None:
    """All of them, or those whose text begins so; as JSON too."""
    kept(path, flows.speaking, ["a", "b"])

    every, one = logs("x"), logs("x", "speak('b", "--json")

    assert "[speak('a')]\nout a\nerror a\n" in every.stdout
    assert "[speak('b')]\nout b\nerror b\n" in every.stdout
    (part,) = map(json.loads, one.stdout.splitlines())
    assert "speak('b')" == part["call"]
    assert "out b\n" == part["text"][:6]


@pytest.mark.parametrize(
    ("words", "told"), [(["y"], "no thread 'y'"), (["x", "z"], "no call 'z'")]
)
def test_the_command_says_what_is_not_there(
    path: Path, logs: Logs, words: list[str], told: str
) -> None:
    """A thread, or a call."""
    kept(path, flows.speaking, ["a"])

    result = logs(*words)

    assert 2 == result.exit_code
    assert told in result.stderr


def test_the_command_shows_only_records_from_a_level_on(path: Path, logs: Logs) -> None:
    """With the lines that belong to them, and no printed ones."""
    output = b"one\nWARNING study: two\n  more of two\nINFO study: three\nfour\n"
    with LMDBSaver(path) as saver:
        flows.speaking.copy({"checkpointer": saver}).run([], id="x")
        saved = saver.load(Address("x"))
        assert saved is not None
        kept = CallOutput(
            saved.checkpoint.id, "1", "f(4)", 2**62, output, b"", len(output)
        )
        saver.keep_output(Address("x"), kept)

    warnings, errors = logs("x", "--level", "warning"), logs("x", "--level=ERROR")

    assert "[f(4)]\nWARNING study: two\n  more of two\n" == warnings.stdout
    assert (0, "") == (errors.exit_code, errors.stdout)
    assert "no call has logged anything of the level ERROR" in errors.stderr


def test_the_command_says_that_nothing_is_kept(path: Path, logs: Logs) -> None:
    """Of tasks that run in the program itself, say."""
    kept(path, flows.speaking, [])

    result = logs("x")

    assert (0, "") == (result.exit_code, result.stdout)
    assert "no output is stored" in result.stderr


def test_what_a_call_prints_is_shown_as_text(path: Path, logs: Logs) -> None:
    """No terminal obeys it."""
    kept(path, flows.escaping, 0)

    assert "[escape()]\n\\x1b[2Jgone\n" == logs("x").stdout


RUN = """
import sys
from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.runs import printing_flows as flows
if __name__ == "__main__":
    with LMDBSaver(sys.argv[1]) as saver:
        flows.staying.copy({"checkpointer": saver}).run(sys.argv[2], id="x")
"""


def test_a_call_that_runs_is_followed_from_another_process(
    path: Path, tmp_path: Path
) -> None:
    """Its first words are shown while it runs, its last ones when it has ended."""
    words = [sys.executable, "-c", RUN, str(path), str(tmp_path)]
    follow = [
        sys.executable,
        "-m",
        "flowpregel.cli",
        "logs",
        "x",
        "--follow",
        "--store",
        str(path),
    ]
    with subprocess.Popen(
        words, env=environment(), stdout=subprocess.DEVNULL
    ) as program:
        wait_until((tmp_path / "begun").exists, flows.LONG)
        wait_until(lambda: "stay" in "".join(read(path)), flows.LONG)
        with subprocess.Popen(
            follow, env=environment(), stdout=subprocess.PIPE
        ) as follower:
            assert follower.stdout is not None
            heading, first = follower.stdout.readline(), follower.stdout.readline()
            (tmp_path / "go").touch()
            rest = follower.stdout.read()
        program.wait(flows.LONG)

    assert b"[stay(" == heading[:6]
    assert (b"still here\n", b"and gone\n") == (first, rest)


def test_a_call_of_a_program_that_is_killed_has_its_words(
    path: Path, tmp_path: Path
) -> None:
    """What had been written; when the run goes on, what comes then is put behind it."""
    words = [sys.executable, "-c", RUN, str(path), str(tmp_path)]
    with subprocess.Popen(
        words, env=environment(), stdout=subprocess.DEVNULL
    ) as program:
        wait_until((tmp_path / "begun").exists, flows.LONG)
        wait_until(lambda: "stay" in "".join(read(path)), flows.LONG)
        os.kill(program.pid, signal.SIGKILL)
    before = [output.text for output in read(path).values()]
    (tmp_path / "go").touch()

    after = kept(path, flows.staying, str(tmp_path))

    assert ["still here\n"] == before
    assert ["still here\nstill here\nand gone\n"] == [
        output.text for output in after.values()
    ]
