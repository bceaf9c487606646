"""What a commit to PostgreSQL costs, and that one which was cut off is neither lost nor
doubled.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel._core.records import Address
from flowpregel.cli.app import app
from flowpregel.errors import StoreBusyError
from flowpregel.func import entrypoint, task
from flowpregel.testing.saver_hooks import Timeline, writes
from tests.postgres_server import Server, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


class Wire:
    """A connection that counts its statements, and may be cut after one of them.

    Args:
        connection: The real one.
        counts: The statements, in their order.
        cuts: Parts of statements after which it is cut, each once.
    """

    def __init__(self, connection: Any, counts: list[str], cuts: list[str]) -> None:
        self.connection, self.counts, self.cuts = connection, counts, cuts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def execute(self, statement: str, *args: Any, **options: Any) -> Any:
        import psycopg

        self.counts.append(statement)
        cursor = self.connection.execute(statement, *args, **options)
        for part in self.cuts:
            if part in statement:
                self.cuts.remove(part)
                self.connection.close()
                raise psycopg.OperationalError("the connection was cut")
        return cursor


@pytest.fixture
def wired(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A saver whose statements are counted, and whose connections may be cut."""
    from flowpregel.plugins.postgres import PostgresSaver, database

    counts: list[str] = []
    cuts: list[str] = []
    connect = database.connect_to_server
    monkeypatch.setattr(
        database, "connect_to_server", lambda url: Wire(connect(url), counts, cuts)
    )
    with PostgresSaver(postgres_url) as saver:
        assert [] == [*saver.threads()]
        yield saver, counts, cuts


def is_idle(connection: Any) -> bool:
    """Return whether the next statement begins a transaction."""
    from psycopg.pq import TransactionStatus

    return bool(connection.info.transaction_status == TransactionStatus.IDLE)


@pytest.mark.parametrize("words", [["ls"], ["ls", "--by-flow"]])
def test_a_list_of_runs_takes_few_transactions(
    wired: Any,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    """As many for twenty threads as for one: each costs round trips."""
    saver, _, _ = wired
    begun: list[str] = []
    execute = Wire.execute

    def counted(wire: Wire, statement: str, *args: Any, **options: Any) -> Any:
        if is_idle(wire.connection):
            begun.append(statement)
        return execute(wire, statement, *args, **options)

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(number: int) -> int:
        return number

    monkeypatch.setattr(Wire, "execute", counted)
    counts: list[int] = []
    listed = set[str]()
    for first, last in ((0, 1), (1, 20)):
        for number in range(first, last):
            flow.run(number, id=f"run-{number}")
        begun.clear()
        result = CliRunner().invoke(app, [*words, "--store", postgres_url, "--json"])
        assert 0 == result.exit_code, result.output
        counts.append(len(begun))
        listed = {*re.findall(r"run-\d+", result.stdout)}

    assert [counts[0]] * 2 == counts, begun
    assert counts[0] <= 15, begun
    assert 20 == len(listed)


def test_a_lost_snapshot_is_read_again(wired: Any) -> None:
    """The reads that follow have transactions of their own."""
    from flowpregel._inspection.reader import StoreReader

    saver, _, cuts = wired

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(number: int) -> int:
        return number

    for thread in "abc":
        flow.run(1, id=thread)
    with closing(StoreReader(saver)) as reader:
        statuses: dict[str, str] = {}
        for thread in reader.in_snapshots("abc"):
            if thread == "b":
                cuts.append("SELECT")
            statuses[thread] = reader.run(thread).status

    assert [] == cuts
    assert {"a": "done", "b": "done", "c": "done"} == statuses


def test_a_superstep_is_one_statement(wired: Any) -> None:
    saver, statements, _ = wired
    line = Timeline(saver, "t")
    line.commit(1, {"a": 1})

    for number in (2, 3, 4):
        statements.clear()
        line.commit(number, {"a": number, "large": "x" * 1000}, {"d": (number,)})
        assert 1 == len(statements)

    statements.clear()
    saver.commit([writes("t", 4, ("a", 9))])
    assert 1 == len(statements)
    assert 4 == line.load().checkpoint.values["a"]


def test_what_another_process_has_written_is_not_overlooked(
    wired: Any, postgres_url: str
) -> None:
    from flowpregel.plugins.postgres import PostgresSaver

    saver, _, _ = wired
    Timeline(saver, "t").commit(1, {"a": 1})
    with PostgresSaver(postgres_url) as other:
        other.commit([writes("t", 1, ("a", "theirs"))])

    saver.commit([writes("t", 1, ("a", "ours"))])

    assert ["theirs"] == [write.value for write in Timeline(saver, "t").load().writes]


@pytest.mark.parametrize("part", ["flowpregel.change", "COMMIT"])
def test_a_commit_that_was_cut_off_is_kept_once(wired: Any, part: str) -> None:
    saver, _, cuts = wired
    cuts.append(part)
    saver.send_signal("t", "go", 1)
    saver.send_signal("t", "go", 2)

    received = [saver.receive_signal("t", "go", each) for each in "abc"]

    assert [(1,), (2,), None] == received


def test_a_superstep_that_was_cut_off_is_kept(wired: Any) -> None:
    saver, _, cuts = wired
    line = Timeline(saver, "t")
    line.commit(1, {"a": 1})

    cuts.append("flowpregel.change")
    line.commit(2, {"a": 2})
    line.commit(3, {"a": 3})

    assert saver.verify().ok
    assert [3, 2, 1] == [
        each.checkpoint.values["a"] for each in saver.history(Address("t"))
    ]


def test_signals_of_many_senders_are_all_received(postgres_url: str) -> None:
    from flowpregel.plugins.postgres import PostgresSaver

    def send(first: int) -> None:
        with PostgresSaver(postgres_url) as saver:
            for number in range(first, first + 5):
                saver.send_signal("t", "go", number)

    with PostgresSaver(postgres_url) as saver:
        senders = [
            threading.Thread(target=send, args=(10 * each,)) for each in range(4)
        ]
        for each in senders:
            each.start()
        for each in senders:
            each.join()
        received = [saver.receive_signal("t", "go", str(each)) for each in range(21)]

    assert None is received.pop()
    assert sorted(10 * a + b for a in range(4) for b in range(5)) == sorted(
        value for found in received if found for value in found
    )


def test_a_lock_that_is_not_given_up_is_named(
    postgres_server: Server, postgres_url: str
) -> None:
    import psycopg

    from flowpregel.plugins.postgres import PostgresSaver
    from flowpregel.storage.options import StoreOptions

    with (
        PostgresSaver(postgres_url, options=StoreOptions(lock_timeout=0.2)) as saver,
        psycopg.connect(postgres_server.url) as other,
    ):
        saver.send_signal("t", "go", 1)
        saver.close()
        other.execute("UPDATE flowpregel.scopes SET revision = revision")
        with (
            PostgresSaver(postgres_url, options=StoreOptions(lock_timeout=0.2)) as late,
            pytest.raises(StoreBusyError),
        ):
            late.send_signal("t", "go", 1)


@pytest.fixture
def pooled_url(
    postgres_server: Server, postgres_url: str, tmp_path: Path
) -> Iterator[str]:
    """The URL of a PgBouncer that gives each transaction whatever session is free."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("there is no PgBouncer (Debian: pgbouncer)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = postgres_server.folder
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={folder}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {folder}/users\npool_mode = transaction\ndefault_pool_size = 2\n"
        f"logfile = {folder}/pgbouncer.log\n"
    )
    process = postgres_server.run(program, str(folder / "pgbouncer.ini"))
    try:
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        _await_answer(url)
        yield url
    finally:
        process.kill()
        process.wait()


def _await_answer(url: str) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_the_threads_of_a_store_are_read_together(wired: Any) -> None:
    """However many they are, so that a look at the queue stays cheap; also those with
    more tasks than are read ahead.
    """
    saver, statements, _ = wired
    for number in range(40):
        Timeline(saver, f"t{number}").commit(1, {"a": 1})
    saver.commit([writes("t7", 1, ("a", n), task=n) for n in range(1, 71)])
    saver.commit([writes("t8", 1, ("__error__", ValueError("no")))])

    statements.clear()
    with saver.lease("t9"):
        threads = {thread.thread_id: thread.status for thread in saver.threads()}

    others = {f"t{number}": "done" for number in range(40)}
    expected = {**others, "t7": "stopped", "t8": "failed", "t9": "running"}
    assert expected == threads
    assert len(statements) < 40


def counted(data: bytes | None) -> tuple[bytes, int]:
    """Add one to a number."""
    number = int(data or b"0") + 1
    return str(number).encode(), number


@pytest.mark.parametrize("is_known", [True, False])
def test_two_processes_that_change_one_record_lose_no_change(
    postgres_url: str, is_known: bool
) -> None:
    """Such as the record of a rate, of pauses, or of schedules; also if one changes it
    while the other does.
    """
    from flowpregel.plugins.postgres import PostgresSaver

    with PostgresSaver(postgres_url) as ours, PostgresSaver(postgres_url) as other:
        others: list[threading.Thread] = []

        def interrupted(data: bytes | None) -> tuple[bytes, int]:
            if not others:
                change = partial(other.change_rate, "asks", counted)
                others.append(threading.Thread(target=change))
                others[0].start()
                if is_known:
                    others[0].join()
            return counted(data)

        if is_known:
            # This process remembers the record now, and takes no lock to change it.
            ours.change_rate("asks", counted)
        ours.change_rate("asks", interrupted)
        others[0].join()

        assert ours.change_rate("asks", counted) == 3 + is_known


def test_runs_go_through_a_pooler_in_transaction_mode(pooled_url: str) -> None:
    from flowpregel.plugins.postgres import PostgresSaver

    @task
    def square(n: int) -> int:
        return n * n

    with PostgresSaver(pooled_url) as saver:

        @entrypoint(checkpointer=saver, executor="threads")
        def job(numbers: list[int]) -> int:
            return sum(future.result() for future in square.map(numbers))

        runs = [job.start(list(range(5)), id=str(number)) for number in range(6)]
        assert [30] * 6 == [run.result() for run in runs]
        assert ["done"] * 6 == [each.status for each in saver.threads()]
        assert saver.verify().ok
