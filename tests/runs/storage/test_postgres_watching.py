"""A run on PostgreSQL shows what it does beside its lease: to others, while they
watch.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import StoreOptions
from flowpregel.cli.app import app
from flowpregel.plugins.postgres import PostgresSaver
from flowpregel.plugins.postgres.database import Database
from flowpregel.plugins.postgres.leases import LeaseTable, OwnLease
from tests.postgres_server import Server
from tests.runs.watched import job, reading, until

pytestmark = pytest.mark.slow


def test_the_run_of_another_process_shows_what_it_does(
    tmp_path: Path, postgres_server: Server, postgres_url: str
) -> None:
    """What runs, how far it is, and what waits; nothing any more once it has ended."""
    with job(tmp_path, postgres_url) as process:
        until((tmp_path / "go.begun").exists)
        with (
            PostgresSaver(postgres_url, readonly=True) as saver,
            reading(saver) as reader,
        ):

            def look() -> dict[str, Any] | None:
                found = reader.live("job")
                told = found and [
                    each for each in found["running"] if each["done"] is not None
                ]
                return found if told and len(told) == 2 else None

            live = until(look)
            ended = CliRunner().invoke(
                app, ["show", "job", "--store", postgres_url, "--json"]
            )
            row = reader.run("job")
            (tmp_path / "go").touch()
            process.wait()
            after, left = reader.live("job"), reader.run("job")

    assert process.pid == live["pid"]
    assert {"flow", "hold"} == {each["name"] for each in live["running"]}
    assert {"hold": 1} == live["waiting"]
    hold = next(each for each in live["running"] if each["name"] == "hold")
    assert (10, "at it \x1b[2J") == (hold["total"], hold["message"])
    shown = json.loads(ended.stdout.splitlines()[-1])
    assert '"hold(0)"' in json.dumps(shown)
    assert (row and row.status, row and row.pid) == ("running", process.pid)
    assert after is None
    assert left is not None
    assert "done" == left.status
    assert [] == postgres_server.execute("SELECT place FROM flowpregel.leases")


def test_a_run_whose_lease_has_expired_was_killed(
    tmp_path: Path, postgres_server: Server, postgres_url: str
) -> None:
    """It runs as long as its lease is valid."""
    expire = (
        "UPDATE flowpregel.leases SET expires = clock_timestamp() - interval '1 second'"
    )
    with job(tmp_path, postgres_url) as process:
        until((tmp_path / "go.begun").exists)
        process.kill()
        process.wait()
    with PostgresSaver(postgres_url, readonly=True) as saver, reading(saver) as reader:
        before = reader.status("job")
        postgres_server.execute(expire)
        after = reader.status("job")

    assert before is not None
    assert after is not None
    assert ("running", "killed") == (before.situation, after.situation)
    assert f"process {process.pid} on " in after.sentence


class CountingDatabase(Database):
    """Counts the statements that its lease thread sends."""

    count = 0

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        self.count += 1
        return super().execute(statement, *values)


@contextmanager
def counting(url: str) -> Iterator[CountingDatabase]:
    """Open the store that is there once more."""
    database = CountingDatabase(url)
    database.sizes()  # which opens it
    database.count = 0
    yield database
    database.close()


def test_nothing_more_is_asked_while_nobody_watches(postgres_url: str) -> None:
    """A statement each time that the lease is renewed; what is shown goes with it."""
    asked: list[int] = []

    def shows() -> bytes:
        asked.append(1)
        return b"shown"

    with PostgresSaver(postgres_url) as saver, counting(postgres_url) as database:
        [*saver.threads()]  # which makes the store
        table = LeaseTable(database, 2)
        began = time.monotonic()
        taken = table.take(OwnLease(Address("1"), shows=shows))
        assert taken is not None
        until(lambda: database.count >= 1 + 3)
        unwatched, seconds = [*asked], time.monotonic() - began
        with counting(postgres_url) as theirs:
            watcher = LeaseTable(theirs, 2)
            owner, _ = watcher.shown(Address("1"), 60)
            until(lambda: watcher.shown(Address("1"), 60)[1] == b"shown")
        table.give_back(taken[0])

    assert [] == unwatched
    assert seconds >= 3 * 0.5
    assert owner is not None
    assert asked


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_what_a_run_shows_is_sealed_as_the_store_is(
    postgres_server: Server, postgres_url: str, key: bytes | None
) -> None:
    """Encrypted, if that is; and what was changed is not believed."""
    if key is not None:
        pytest.importorskip("cryptography")
    options = StoreOptions(encryption_key=key)
    with (
        PostgresSaver(postgres_url, options=options, lease_ttl=1) as saver,
        reading(saver) as reader,
        saver.lease("1") as lease,
    ):
        lease.live = lambda: {"workers": [], "secret": "plain to see"}
        until(lambda: reader.live("1"))
        ((data,),) = postgres_server.execute("SELECT shown FROM flowpregel.leases")
        lease.live = None

        def changed() -> bool:
            postgres_server.execute(
                (
                    "UPDATE flowpregel.leases SET shown = set_byte(%s, 20, 1 # "
                    "get_byte(%s, 20))"
                ),
                data,
                data,
            )
            return reader.live("1") is None

        assert (key is None) == (b"plain to see" in data)
        assert until(changed)


def test_a_run_whose_lease_was_taken_over_shows_nothing_more(postgres_url: str) -> None:
    """Its successor does."""
    with (
        PostgresSaver(postgres_url, lease_ttl=1) as old_saver,
        PostgresSaver(postgres_url, lease_ttl=1) as new_saver,
        reading(new_saver) as reader,
        old_saver.lease("1") as old,
    ):
        old.live = lambda: {"workers": [], "whose": "old"}
        until(lambda: reader.live("1"))
        with new_saver.lease("1", on_conflict="takeover") as new:
            between = reader.live("1")
            new.live = lambda: {"workers": [], "whose": "new"}
            seen = until(lambda: reader.live("1"))

    assert between is None
    assert "new" == seen["whose"]


def test_a_run_that_waited_for_its_lease_has_it_since_it_got_it(
    postgres_url: str,
) -> None:
    """What was done meanwhile is none of its work."""
    begun = threading.Event()
    with (
        PostgresSaver(postgres_url, lease_ttl=1) as saver,
        reading(saver) as reader,
        ThreadPoolExecutor(1) as other,
    ):

        def wait() -> int:
            begun.set()
            with saver.lease("1", on_conflict="wait") as lease:
                lease.live = lambda: {"workers": []}
                return int(until(lambda: reader.live("1"))["started"])

        with saver.lease("1"):
            waiting = other.submit(wait)
            begun.wait()
            released = time.time_ns()
        started = waiting.result()

    assert started >= released


def test_who_may_not_write_sees_what_others_ask_for(
    postgres_server: Server, postgres_url: str
) -> None:
    """Nothing, until somebody does."""
    with (
        PostgresSaver(postgres_url, lease_ttl=1) as saver,
        reading(saver) as writer,
        saver.lease("1") as lease,
    ):
        lease.live = lambda: {"workers": []}
        postgres_server.execute(
            "CREATE ROLE looker LOGIN; GRANT USAGE ON SCHEMA flowpregel TO looker; "
            "GRANT SELECT ON ALL TABLES IN SCHEMA flowpregel TO looker"
        )
        url = postgres_url.replace("postgres@", "looker@")
        try:
            with PostgresSaver(url, readonly=True) as theirs, reading(theirs) as reader:
                before = reader.live("1")
                after = until(lambda: writer.live("1") and reader.live("1"))
        finally:
            postgres_server.execute("DROP OWNED BY looker; DROP ROLE looker")

    assert before is None
    assert after is not None
