"""``flowpregel enqueue`` says which processes take a run, and may follow it."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowpregel._inspection.reader import StoreReader
from flowpregel.checkpoint.base import FLOW
from flowpregel.checkpoint.durable import ConsumerEntry
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.cli.consumers import QueueWait
from flowpregel.cli.run_choices import DueRuns
from flowpregel.cli.targets import open_to_read
from flowpregel.errors import ConfigurationError
from flowpregel.storage.locks import LockHolder
from tests.runs import queue_flows
from tests.runs.pooling import wait_until
from tests.runs.queues import Enqueue, command, start_work

NOTE = f"{queue_flows.FLOWS}:note"


def enqueue_note(store: str, notes: Path, *options: str) -> list[str]:
    """Enqueue a run by the command, and return the lines that it printed."""
    words = ["enqueue", NOTE, "--id=a", f"--input={_input(notes)}", *options]
    result = command(store, *words)
    assert Code.OK == result.exit_code, result.output
    return result.stdout.splitlines()


def _input(notes: Path) -> str:
    return json.dumps({"file": str(notes), "line": "a"})


@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
def test_a_store_of_this_machine_is_refused_for_a_remote_run(
    tmp_path: Path, scheme: str
) -> None:
    """And nothing is enqueued there."""
    store = f"{scheme}{tmp_path}/store"

    flow_input = f"--input={_input(tmp_path)}"
    words = ["enqueue", NOTE, flow_input, "--remote", "--store", store]
    result = CliRunner().invoke(app, words)
    listed = CliRunner().invoke(app, ["ls", "--json", "--store", store])

    assert Code.USAGE == result.exit_code
    assert "only this machine can reach the store" in result.stderr
    assert "pass --store postgresql://" in result.stderr
    assert [] == json.loads(listed.stdout)


def test_the_processes_that_take_the_run_are_named(store: str, notes: Path) -> None:
    """With their hosts; one that takes only other flows is left out."""
    with LMDBSaver(store) as saver:
        before = enqueue_note(store, notes)
        with (
            saver.consumers.register(jobs=4),
            saver.consumers.register(jobs=1, flows=["jobs:other"]),
        ):
            lines = enqueue_note(store, notes)
            shown = command(store, "show", "a")
            (record,) = map(json.loads, enqueue_note(store, notes, "--json"))
        after = enqueue_note(store, notes)

    work = f"flowpregel work --store {store}"
    assert ["enqueued: a", f"no process of `flowpregel work` takes it now: {work}"] == (
        before[:2]
    )
    assert before == after
    assert f"taken by: {LockHolder.me()} (4 jobs)" == lines[1]
    assert f"watch: flowpregel watch a --store {store}" == lines[2]
    assert f"{LockHolder.me()} (4 jobs)" in shown.stdout
    assert [{"host": LockHolder.me().host, "pid": os.getpid(), "jobs": 4}] == (
        record["consumers"]
    )


def test_a_run_that_is_done_is_told_so(store: str, notes: Path) -> None:
    """Enqueued again, it does not wait for a process of `work`."""
    enqueue_note(store, notes)
    command(store, "work", "--until-empty")

    assert "done: a" == enqueue_note(store, notes)[0]
    assert "a: done" == enqueue_note(store, notes, "--wait")[-1]


def test_a_run_that_no_process_can_begin_ends_the_wait(store: str, notes: Path) -> None:
    """The reason names the module and the machine, and `show` has it, too."""
    with LMDBSaver(store) as saver, saver.consumers.register(jobs=1) as registration:
        enqueue_note(store, notes)
        with open_to_read(store) as reader:
            choice = DueRuns(reader, (), registration)
            (thread,) = choice.threads()
            elsewhere = replace(thread, metadata={FLOW: "no_such_module:study"})
            with pytest.raises(ConfigurationError) as refused:
                choice.flow_of(elsewhere)
        words = ["enqueue", NOTE, "--id=a", f"--input={_input(notes)}", "--wait"]
        waited = command(store, *words)
        shown = command(store, "show", "a", "--json")

    host = LockHolder.me().host
    assert "no_such_module cannot be imported: there is no such" in str(refused.value)
    assert f"Install the program on {host}" in str(refused.value)
    assert Code.FAILED == waited.exit_code
    assert f"on {host} cannot begin it: no_such_module" in waited.stderr
    assert f"Install the program on {host}" in json.loads(shown.stdout)["refused"]


def test_a_run_that_has_just_begun_is_read_once_more(store: str, notes: Path) -> None:
    """Its owner was read before it began, and its tasks afterwards."""
    with LMDBSaver(store) as saver, saver.consumers.register(jobs=1):
        enqueue_note(store, notes)
        with closing(StoreReader(saver)) as reader:
            wait = QueueWait(saver, reader, "a")
            row = reader.run("a")
            assert row is not None
            stopped = row._replace(status="stopped")

            assert wait.sleep_if_due(row)
            assert wait.sleep_if_due(stopped)
            assert not wait.sleep_if_due(stopped)


def test_an_unknown_name_for_it_leads_to_the_command() -> None:
    """As users of other schedulers look for it."""
    result = CliRunner().invoke(app, ["submit"])

    assert Code.USAGE == result.exit_code
    assert "flowpregel enqueue --remote" in result.stderr


def test_who_cancels_a_run_that_has_not_begun_learns_how_to_hold_it(
    store: str, notes: Path
) -> None:
    """There is no process to stop."""
    enqueue_note(store, notes)

    result = command(store, "cancel", "a")

    assert Code.USAGE == result.exit_code
    assert "`flowpregel pause a` keeps `work` from taking it" in result.stderr


def test_only_the_newest_refusals_are_kept() -> None:
    """An entry has a bounded size, however many runs cannot be begun."""
    entry = ConsumerEntry()
    for number in range(150):
        entry = entry.refusing(str(number), "x" * 2_000)

    assert [str(number) for number in range(50, 150)] == [*entry.refused]
    assert {1_000} == {len(reason) for reason in entry.refused.values()}


@pytest.mark.slow
def test_a_killed_process_takes_no_runs(store: str, enqueue: Enqueue) -> None:
    """Its entry does not count any more, and the next process replaces it."""
    with LMDBSaver(store) as saver:
        process = start_work(store)
        wait_until(saver.consumers.alive)
        process.kill()
        process.communicate()

        assert [] == saver.consumers.alive()
        with saver.consumers.register(jobs=3):
            (consumer,) = saver.consumers.alive()

    assert (os.getpid(), 3) == (consumer.owner.pid, consumer.entry.jobs)
