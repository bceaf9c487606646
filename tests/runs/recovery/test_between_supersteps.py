"""The status of a graph whose run is not over, and has nothing in flight."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import _fault
from flowpregel._inspection.reader import StoreReader
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.cli.targets import open_saver
from flowpregel.errors import GraphRecursionError
from tests.runs import stepping

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_key")]

ROOT = Path(__file__).parents[3]
MODULE = "tests.runs.stepping"
EVERY = ["one", "two", "three"]


@pytest.fixture(params=["lmdb", "postgres"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The path or the URL of a store without runs."""
    is_folder = request.param == "lmdb"
    location = (
        str(tmp_path / "store")
        if is_folder
        else request.getfixturevalue("postgres_url")
    )
    monkeypatch.setenv(stepping.STORE, location)
    return location


def run(
    flow: str,
    thread: str,
    fault: str = "",
    trace: Path | None = None,
    given: str = "{}",
) -> int:
    """Run a graph in a process of its own, which may be killed; return its exit
    code.
    """
    code = (
        "from flowpregel.cli.targets import load_flow\n"
        f"load_flow('{MODULE}:{flow}').invoke({given}, thread_id={thread!r}, "
        "durability='sync')"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), _fault.FAULT: fault}
    if trace is not None:
        env[_fault.TRACE] = str(trace)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    return done.returncode


def end_leases(store: str) -> None:
    """Let the leases of killed processes be out now, which in PostgreSQL takes their
    seconds.
    """
    if store.startswith("postgresql:"):
        import psycopg

        with psycopg.connect(store) as connection:
            connection.execute(
                "UPDATE flowpregel.leases SET expires = now() - interval '1 s'"
            )


def status(store: str, thread: str) -> str:
    """Return a thread's status, after seeing that all who look show the same."""
    listed = {each["thread_id"]: each["status"] for each in printed(store, "ls")}
    with open_saver(store) as saver, closing(StoreReader(saver)) as reader:
        row = reader.run(thread)
    assert row is not None
    assert {listed[thread]} == {printed(store, "show", thread)["status"], row.status}
    return str(row.status)


def printed(store: str, *words: str) -> Any:
    """Run a command; return what it prints as JSON."""
    result = CliRunner().invoke(app, [*words, "--store", store, "--json"])
    assert Code.OK == result.exit_code, result.output
    return json.loads(result.stdout)


def walked(store: str, flow: str, thread: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the nodes that ran, and those that are due."""
    with open_saver(store) as saver:
        state = (
            getattr(stepping, flow)
            .copy({"checkpointer": saver})
            .get_state(thread_id=thread)
        )
    return state.values.get("nodes", []), state.next


def test_a_run_killed_after_any_commit_is_stopped_if_nodes_are_due(
    store: str, tmp_path: Path
) -> None:
    """And is done if none is; `wake` goes on with those that are stopped."""
    assert 0 == run("walk", "whole", trace=tmp_path / "trace")
    assert "done" == status(store, "whole")
    commits = (tmp_path / "trace").read_text().count("store.commit.after\t")

    found = {}
    for number in range(1, commits + 1):
        thread = f"killed {number}"
        run("walk", thread, f"store.commit.after:{number}:kill")
        end_leases(store)
        if thread in {each["thread_id"] for each in printed(store, "ls")}:
            _, due = walked(store, "walk", thread)
            found[thread] = due
            assert ("stopped" if due else "done") == status(store, thread)
    assert {("one",), ("two",), ("three",), ()} <= {*found.values()}

    woken = CliRunner().invoke(app, ["wake", "--store", store, "--quiet"])

    assert Code.OK == woken.exit_code, woken.output
    for thread in found:
        assert (EVERY, ()) == walked(store, "walk", thread)
        assert "done" == status(store, thread)


@pytest.mark.parametrize("flow", ["look", "check"])
def test_a_run_at_a_breakpoint_waits_for_a_person(store: str, flow: str) -> None:
    """Also if it was killed there: neither `wake` nor `recover` goes past it, `resume`
    does.
    """
    assert 0 == run(flow, "paused")
    commits = 0
    while True:
        commits += 1
        thread = f"killed {commits}"
        if 0 <= run(flow, thread, f"store.commit.after:{commits}:kill"):
            break
    end_leases(store)
    paused = [
        each["thread_id"]
        for each in printed(store, "ls")
        if walked(store, flow, each["thread_id"]) == (["one"], ("two",))
    ]
    assert 2 < len(paused)  # one of them was killed there
    assert {"waiting"} == {status(store, thread) for thread in paused}

    for command in (
        ("wake", "recover") if store.startswith("postgresql:") else ("wake",)
    ):
        assert Code.OK == CliRunner().invoke(app, [command, "--store", store]).exit_code
    for thread in paused:
        assert (["one"], ("two",)) == walked(store, flow, thread)

    words = ["resume", paused[0], "--store", store, "--quiet"]
    assert Code.OK == CliRunner().invoke(app, words).exit_code
    assert (EVERY, ()) == walked(store, flow, paused[0])
    assert "done" == status(store, paused[0])


def test_a_run_let_past_a_breakpoint_and_killed_at_once_waits_as_before(
    store: str,
) -> None:
    """Nothing tells it from a run that was not let past, as no resume writes that it
    begins; `resume` goes on.
    """
    assert 0 == run("look", "t")
    assert "waiting" == status(store, "t")

    assert 0 > run("look", "t", "run.start.after:1:kill", given="None")
    end_leases(store)
    assert "waiting" == status(store, "t")

    resumed = CliRunner().invoke(app, ["resume", "t", "--store", store, "--quiet"])
    assert Code.OK == resumed.exit_code, resumed.output
    assert (EVERY, ()) == walked(store, "look", "t")


def test_a_breakpoint_that_only_one_run_has_is_kept(store: str) -> None:
    """Whatever its durability: with ``exit`` its one checkpoint says so."""
    with open_saver(store) as saver:
        graph = stepping.walk.copy({"checkpointer": saver})
        for durability in ("sync", "async", "exit"):
            graph.invoke(
                {},
                thread_id=durability,
                durability=durability,
                interrupt_before=["two"],
            )
            assert "waiting" == saver.thread(durability).status
            graph.invoke(None, thread_id=durability, durability=durability)
            assert "done" == saver.thread(durability).status


def test_a_run_that_has_used_up_its_supersteps_has_failed(store: str) -> None:
    """A command that goes on with stopped runs would run it again and again."""
    with open_saver(store) as saver:
        graph = stepping.walk.copy({"checkpointer": saver})
        for durability in ("sync", "exit"):
            with pytest.raises(GraphRecursionError):
                graph.invoke(
                    {},
                    {"recursion_limit": 2},
                    thread_id=durability,
                    durability=durability,
                )
            assert "failed" == saver.thread(durability).status


def test_an_edited_thread_waits_for_a_person_to_go_on(store: str) -> None:
    with open_saver(store) as saver:
        graph = stepping.walk.copy({"checkpointer": saver})
        graph.update_state(
            {"configurable": {"thread_id": "a"}}, {"nodes": ["one"]}, as_node="one"
        )
        assert "waiting" == saver.thread("a").status

        graph.invoke(None, thread_id="a")

        assert "done" == saver.thread("a").status
