"""The examples do what they say, each as a program of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def output_of(folder: Path, name: str, *arguments: str, **environment: str) -> str:
    """Run an example in *folder*, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_a_parameter_study_is_done_once_and_drawn_for_those_who_ask(
    tmp_path: Path,
) -> None:
    """Asked for again it is looked up: the table is the same."""
    drawing = ["--plot", "prices.svg"] if find_spec("matplotlib") else []
    words = ["parameter_study.py", "--paths", "1000"]
    tables = [output_of(tmp_path, *words), output_of(tmp_path, *words, *drawing)]

    assert not drawing or "<svg" in (tmp_path / "prices.svg").read_text()
    assert tables[0] == tables[1]
    assert 5 == len(tables[0].splitlines())
    cheap, dear = (
        tables[0].splitlines()[1].split()[1],
        tables[0].splitlines()[4].split()[1],
    )
    assert float(cheap) < float(dear)


def approval(folder: Path, *words: str) -> str:
    """Run a command of the approval example; its tasks need no worker processes."""
    return output_of(folder, "approval.py", *words, FLOWPREGEL_EXECUTOR="threads")


def test_a_claim_waits_for_two_people_across_processes(tmp_path: Path) -> None:
    """Each command is a process; the answers may come in any order; it is paid once."""
    asked = output_of(tmp_path, "approval.py", "submit", "trip", "1800").splitlines()
    assert 2 == len(asked)

    left = approval(tmp_path, "answer", "trip", "yes", "--who", "finance")
    assert ['{"who": "manager", "question": "1800 for trip?"}'] == approval(
        tmp_path, "pending", "trip"
    ).splitlines()
    assert "manager" in left

    assert "paid 1800 for trip\n" == approval(tmp_path, "answer", "trip", "yes")
    assert "paid 1800 for trip\n" == approval(tmp_path, "submit", "trip", "1800")


def test_a_claim_is_refused_by_name(tmp_path: Path) -> None:
    """One no is enough."""
    approval(tmp_path, "submit", "car", "9000")
    approval(tmp_path, "answer", "car", "no", "--who", "finance")

    assert "refused by finance\n" == approval(tmp_path, "answer", "car", "yes")


def test_a_loop_goes_on_at_the_turn_where_it_was(tmp_path: Path) -> None:
    """Killed on the way, it makes the rest of its turns, and no message is lost or
    twice.
    """
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import agent_loop\n"
        "loop = agent_loop.agent('agent.lmdb', 'inline')\n"
        "given = {'history': [('goal', str(27**9))], 'turns': 0, 'limit': 30}\n"
        "updates = loop.stream(given, thread_id='30 turns', resume='auto',\n"
        "                      stream_mode='updates', recursion_limit=1000)\n"
        "for number, _ in enumerate(updates):\n"
        "    if number == 24: os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program, str(ROOT / "examples")],
        cwd=tmp_path,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert -signal.SIGKILL == killed.returncode

    found = output_of(tmp_path, "agent_loop.py", "--turns", "30")

    made = int(found.split()[0])
    assert 0 < made < 30
    assert "30 in all, 61 messages" in found


def test_a_pipeline_counts_the_words_of_all_texts(tmp_path: Path) -> None:
    """Side by side, in as many parts as there are."""
    (tmp_path / "a.txt").write_text("frog frog toad\n" * 500)
    (tmp_path / "b.txt").write_text("toad\n" * 100 + "newts\n")

    lines = output_of(tmp_path, "pipeline.py", "a.txt", "b.txt").splitlines()

    assert [["1,000", "frog"], ["600", "toad"], ["1", "newts"]] == [
        line.split() for line in lines
    ]


def test_a_pipeline_of_no_text_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edge goes past the counting when there is nothing to count."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import pipeline

    (tmp_path / "a.txt").write_text("")

    app = pipeline.pipeline(executor="inline")
    assert [] == app.invoke({"paths": [str(tmp_path / "a.txt")]})["report"]


def test_a_census_of_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """By name, and before anything is kept."""
    program = [
        sys.executable,
        str(ROOT / "examples" / "census.py"),
        str(tmp_path),
        "no/such",
    ]
    done = subprocess.run(
        program,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert 2 == done.returncode
    assert done.stderr.endswith("error: no such folder: no/such\n")
    assert [] == [*tmp_path.iterdir()]


def test_a_census_of_an_empty_folder_has_nothing_left_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert "0 of 0 files    0 %       0 files/s      0 s left" in output_of(
        tmp_path, "census.py", "empty"
    )
