"""The part of the code that changed is named: in notices, by `why` and by `check`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs.cli_jobs import environment

Run = Callable[..., str]

STUDY = """
import sys
import pack
from flowpregel import entrypoint, task

K = 1
API_KEY = "old"
TABLE = {{"a": object}}

def helper(n):
    return n + K

@task(executor="inline"{options})
def parse(n):
    return helper(pack.same(n)) + len(API_KEY) * 0 + len(TABLE) * 0

@task(executor="inline")
def last(n):
    if "fail" in sys.argv:
        raise ValueError("no")
    return n

@entrypoint(checkpointer="runs.lmdb")
def study(n):
    return last(sum(parse(i).result() for i in range(n))).result()

if __name__ == "__main__":
    print(study.run(3, id=sys.argv[1]))
"""

GRAPH = """
import sys
from flowpregel.graph import END, START, StateGraph

K = 1

def first(state):
    return state + K

def second(state):
    if "fail" in sys.argv:
        raise ValueError("no")
    return 10 * state

inner = StateGraph(int).add_node("first", first).add_node("second", second)
inner.add_edge(START, "first").add_edge("first", "second")
outer = StateGraph(int).add_node("inner", inner.compile(executor="inline"))
app = outer.add_edge(START, "inner").compile(
    checkpointer="runs.lmdb", executor="inline"
)

if __name__ == "__main__":
    given = 1 if "fail" in sys.argv else None
    print(app.invoke(given, thread_id=sys.argv[1]))
"""

PACK = "__version__ = '{version}'\ndef same(n):\n    return n\n"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """The file of an installed package, of version 1.0."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    file = folder / "pack.py"
    file.write_text(PACK.format(version="1.0"))
    return file


@pytest.fixture
def run(tmp_path: Path, pack: Path) -> Run:
    """Run the program, or a command, in a process; return what it has printed."""

    def run(*words: str) -> str:
        variables = environment()
        paths = [str(tmp_path), str(pack.parent), variables.get("PYTHONPATH", "")]
        # The caches of bytecode compare only the seconds of an edit.
        variables |= {"PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        command = ["-m", "flowpregel"] if words[0] in ("why", "check") else ["study.py"]
        done = subprocess.run(
            [sys.executable, "-W", "always", *command, *words],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout + done.stderr

    return run


@pytest.fixture
def edit(tmp_path: Path) -> Callable[[str, str], None]:
    """Replace a text in the program."""

    def edit(old: str, new: str) -> None:
        program = tmp_path / "study.py"
        source = program.read_text()
        assert old in source
        program.write_text(source.replace(old, new))

    return edit


@pytest.fixture
def study(tmp_path: Path, run: Run) -> None:
    """A run that failed after the calls of `parse`."""
    (tmp_path / "study.py").write_text(STUDY.format(options=""))
    assert "ValueError: no" in run("1", "fail")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("K = 1", "K = 5", "constant K: 1 -> 5"),
        (
            "return n + K",
            "return n - K",
            "function helper: its code changed: -    return n + K | +    return n - K",
        ),
        ('API_KEY = "old"', 'API_KEY = "new"', "constant API_KEY: its content changed"),
        ('"a": object', '"b": object', "constant TABLE: its content changed"),
        ('inline")\ndef parse', 'inline", version="2")\ndef parse', "version=: none"),
    ],
)
def test_a_notice_names_the_part_that_changed(
    study: None, run: Run, edit: Callable[..., None], old: str, new: str, change: str
) -> None:
    """A small value is shown; that of a secret is not."""
    edit(old, new)

    output = run("1")

    assert "parse: 3 results were computed by other code" in output
    assert f": {change}" in output


@pytest.mark.slow
def test_why_and_check_name_the_part_that_changed(
    study: None, run: Run, edit: Callable[..., None]
) -> None:
    """Before anything runs."""
    edit("K = 1", "K = 5")

    why = run("why", "1", "parse(1", "--store", "runs.lmdb")
    check = run("check", "runs.lmdb")

    assert "although the code has changed: constant K: 1 -> 5; on_code" in why
    assert "\n  parse: constant K: 1 -> 5\n" in check


@pytest.mark.slow
def test_why_explains_a_call_that_is_computed_again(
    study: None, run: Run, edit: Callable[..., None]
) -> None:
    edit('inline")\ndef parse', 'inline", on_code_change="rerun")\ndef parse')
    edit("K = 1", "K = 5")

    why = run("why", "1", "parse(1", "--store", "runs.lmdb")

    assert "computed again, because the code has changed: constant K: 1 -> 5" in why


@pytest.mark.slow
def test_the_version_of_a_package_is_named_and_changes_nothing(
    study: None, run: Run, edit: Callable[..., None], pack: Path
) -> None:
    """Beside the code that changed; of code that did not, only `why` names it."""
    pack.write_text(PACK.format(version="2.0"))

    why = run("why", "1", "parse(1", "--store", "runs.lmdb")
    assert "the code is unchanged; version of pack: 1.0 -> 2.0 (versions" in why

    edit("K = 1", "K = 5")
    assert ": constant K: 1 -> 5; version of pack: 1.0 -> 2.0" in run("1")


@pytest.mark.slow
def test_a_body_that_changed_is_named(
    study: None, run: Run, edit: Callable[..., None]
) -> None:
    """With the counts of its calls."""
    edit("range(n)", "range(n + 1)")

    output = run("1")

    assert "the code or the input has changed (-    return last(sum(" in output
    assert "range(n + 1))).result()); calls: 3 answered from the record, 2" in output


@pytest.mark.slow
def test_a_finished_node_of_a_nested_graph_is_named(
    tmp_path: Path, run: Run, edit: Callable[..., None]
) -> None:
    """Its result is used as before."""
    (tmp_path / "study.py").write_text(GRAPH)
    assert "ValueError: no" in run("1", "fail")
    edit("K = 1", "K = 5")

    output = run("1")

    assert "first: 1 result was computed by other code and used as recorded" in output
    assert ": constant K: 1 -> 5" in output
    assert "\n20\n" in f"\n{output}"


@pytest.mark.slow
def test_a_cache_miss_names_the_part_that_changed(
    tmp_path: Path, run: Run, edit: Callable[..., None]
) -> None:
    """Once: with the same code again, the results are found."""
    (tmp_path / "study.py").write_text(STUDY.format(options=", cache=True"))
    assert "computed by other code" not in run("1")
    edit("K = 1", "K = 5")

    missed, found = run("2"), run("3")

    assert (
        "parse: the results in the cache were computed by other code, and are computed "
        "again: constant K: 1 -> 5" in missed
    )
    assert "computed by other code" not in found


@pytest.mark.slow
def test_a_cache_miss_for_new_arguments_gives_no_notice(
    tmp_path: Path, run: Run, edit: Callable[..., None]
) -> None:
    """The cache has no result of them, of any code."""
    (tmp_path / "study.py").write_text(STUDY.format(options=", cache=True"))
    run("1")
    edit("K = 1", "K = 5")
    edit("parse(i)", "parse(i + 100)")

    assert "computed by other code" not in run("2")
