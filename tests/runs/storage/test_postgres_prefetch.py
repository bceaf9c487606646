"""A list of runs in PostgreSQL takes a few statements, however many runs there are, and
shows the same as without reading ahead.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, TypedDict

import pytest
from click.testing import CliRunner

from flowpregel import interrupt, sleep
from flowpregel._core.records import Address
from flowpregel._inspection.run_list import RunOrder
from flowpregel.cli.app import app
from flowpregel.cli.run_choices import AbandonedRuns, DueRuns
from flowpregel.func import entrypoint, provided, task
from flowpregel.graph import END, START, StateGraph
from flowpregel.storage import KeyRange, PythonCodec
from flowpregel.watching import RunList, RunQuery, StoreReader
from tests.postgres_server import why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


class Statements:
    """A connection that records its statements.

    Args:
        connection: The real one.
        statements: The statements, in their order.
    """

    def __init__(self, connection: Any, statements: list[str]) -> None:
        self.connection, self.statements = connection, statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def execute(self, statement: str, *args: Any, **options: Any) -> Any:
        self.statements.append(statement)
        return self.connection.execute(statement, *args, **options)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are sent to a server."""
    from flowpregel.plugins.postgres import database

    sent: list[str] = []
    connect = database.connect_to_server
    monkeypatch.setattr(
        database, "connect_to_server", lambda url: Statements(connect(url), sent)
    )
    return sent


@pytest.fixture
def saver(statements: list[str], postgres_url: str) -> Iterator[Any]:
    """A saver whose statements are recorded."""
    from flowpregel.plugins.postgres import PostgresSaver

    # The tests commit often, and no server is killed here.
    url = postgres_url + "&options=-c%20synchronous_commit%3Doff"
    with PostgresSaver(url) as saver:
        assert [] == [*saver.threads()]
        yield saver


class WithoutPrefetch:
    """A saver whose readers read nothing ahead, and not from shared snapshots.

    Args:
        saver: The saver.
    """

    def __init__(self, saver: Any) -> None:
        self.path = saver.path
        self._saver = saver

    def opened_to_look(self, codec: Any) -> Any:
        store, leases = self._saver.opened_to_look(codec)
        store.snapshot, store.prefetch = ExitStack, None
        return store, leases


# ---------------------------------------------------------------- runs of all kinds


class Count(TypedDict):
    """The state of the graphs."""

    number: Annotated[int, operator.add]


@task(executor="inline")
def square(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number * number


@task(executor="inline")
def padded(number: int) -> bytes:
    return bytes(number)


@entrypoint(executor="inline")
def squares(numbers: list[int]) -> int:
    return sum(square(number).result() for number in numbers)


@entrypoint(executor="inline")
def large(sizes: list[int]) -> int:
    return sum(len(padded(size).result()) for size in sizes)


@entrypoint(executor="inline")
def asking(number: int) -> Any:
    return interrupt(f"is {square(number).result()} right?")


@entrypoint(executor="inline")
def resting(seconds: int) -> str:
    sleep(seconds)
    return "awake"


@task(executor="inline")
def stop(number: int) -> None:
    raise KeyboardInterrupt


@entrypoint(executor="inline")
def stopping(number: int) -> int:
    square(number).result()
    stop(number).result()
    return number


def add_one(state: Count) -> dict[str, int]:
    return {"number": 1}


def _outer() -> StateGraph[Any]:
    """Return a graph with a nested graph."""
    inner = StateGraph(Count).add_node("add", add_one)
    inner.add_edge(START, "add").add_edge("add", END)
    outer = StateGraph(Count).add_node("inner", inner.compile())
    return outer.add_edge(START, "inner").add_edge("inner", END)


def _loop(most: int) -> StateGraph[Any]:
    """Return a graph whose only node runs *most* times."""
    graph = StateGraph(Count).add_node("add", add_one).add_edge(START, "add")
    graph.add_conditional_edges(
        "add", lambda state: "add" if state["number"] < most else END
    )
    return graph


def _run(flow: Any, saver: Any, value: Any, thread: str) -> None:
    """Run a flow, which may fail, stop or wait."""
    token = provided.pauses.set(True)
    try:
        with suppress(Exception, KeyboardInterrupt):
            flow.copy({"checkpointer": saver}).run(value, id=thread)
    finally:
        provided.pauses.reset(token)


def _invoke(graph: StateGraph[Any], saver: Any, thread: str) -> None:
    """Run a graph once."""
    app = graph.compile(checkpointer=saver)
    app.invoke({"number": 0}, thread_id=thread, recursion_limit=200)


def _enqueue(saver: Any, thread: str) -> None:
    """Enqueue a run, which is not begun."""
    squares.copy({"checkpointer": saver}).enqueue([1], id=thread)


def _run_from_queue(saver: Any, thread: str) -> None:
    """Enqueue a run, and begin it later."""
    _enqueue(saver, thread)
    squares.copy({"checkpointer": saver}).run([1], id=thread)


KINDS: dict[str, Callable[[Any, str], None]] = {
    "done": lambda saver, thread: _run(squares, saver, [1, 2], thread),
    "failed": lambda saver, thread: _run(squares, saver, [1, -1], thread),
    "waiting": lambda saver, thread: _run(asking, saver, 3, thread),
    "resting": lambda saver, thread: _run(resting, saver, 3600, thread),
    "stopped": lambda saver, thread: _run(stopping, saver, 1, thread),
    "enqueued": _enqueue,
    "from queue": _run_from_queue,
    "nested": lambda saver, thread: _invoke(_outer(), saver, thread),
}
"""Runs that leave few records."""
LARGE_KINDS: dict[str, Callable[[Any, str], None]] = {
    "many steps": lambda saver, thread: _invoke(_loop(70), saver, thread),
    "many calls": lambda saver, thread: _run(squares, saver, [*range(70)], thread),
    "many failed": lambda saver, thread: _run(squares, saver, [*range(70), -1], thread),
    "large": lambda saver, thread: _run(large, saver, [9, 1 << 21, 1 << 22], thread),
}
"""Runs of which not all records are read ahead."""


ORDERS: tuple[RunOrder, ...] = ("updated", "took")


def fill(saver: Any, first: int, last: int) -> None:
    """Make runs of the small kinds in turns."""
    kinds = [*KINDS]
    for number in range(first, last):
        kind = kinds[number % len(kinds)]
        KINDS[kind](saver, f"run-{number}")


# ---------------------------------------------------------------- statements


def test_lists_take_as_many_statements_for_twice_as_many_runs(
    saver: Any,
    statements: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lists of all runs, of flows, of a page, and of the runs that are due."""

    def ls(*words: str) -> None:
        """Run ``flowpregel ls``."""
        url = ["--store", saver.location]
        result = CliRunner().invoke(app, ["ls", *words, *url])
        assert 0 == result.exit_code, result.output

    def page(order: RunOrder) -> None:
        """Read the first page of the list of runs, in an order."""
        with closing(StoreReader(saver)) as reader:
            RunList(reader).page(RunQuery(order=order), 0)

    def due() -> None:
        """Find the runs that are due. Those that sleep are, too."""
        runs = DueRuns(saver).threads()
        kinds = {[*KINDS][int(run.thread_id[4:]) % len(KINDS)] for run in runs}
        assert {"resting", "stopped", "enqueued"} == kinds

    now = time.time() + 7200
    lists = [ls, partial(ls, "--by-flow"), *map(partial(partial, page), ORDERS), due]
    numbers: list[list[int]] = []
    for first, last in ((0, 30), (30, 60)):
        fill(saver, first, last)
        numbers.append([])
        with monkeypatch.context() as patch:
            patch.setattr("flowpregel._clock.SystemClock.wall", lambda self: now)
            for read in lists:
                statements.clear()
                read()
                numbers[-1].append(len(statements))

    few, more = numbers
    assert max(more) <= 40, numbers
    assert max(map(operator.sub, more, few)) <= 5, numbers


def test_dead_runs_are_found_in_a_few_statements(
    saver: Any, statements: list[str]
) -> None:
    numbers: list[int] = []
    for first, last in ((0, 10), (10, 20)):
        for number in range(first, last):
            _run(stopping, saver, 1, f"run-{number}")
            _die(saver, f"run-{number}")
        statements.clear()
        dead = AbandonedRuns(saver, None).threads()
        numbers.append(len(statements))
        assert [f"run-{number}" for number in range(last)] == [
            run.thread_id for run in dead
        ]

    assert numbers[1] <= 15, statements
    assert numbers[1] - numbers[0] <= 3, statements


def _die(saver: Any, thread: str) -> None:
    """Leave the lease of a thread behind, as a process that was killed."""
    with saver.lease(thread):
        _copy_lease(saver.location)
    import psycopg

    with psycopg.connect(saver.location, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO flowpregel.leases (place, thread, namespace, fence, owner, "
            "expires) SELECT place, thread, namespace, fence, owner, "
            "clock_timestamp() - interval '1 hour' FROM lease_copy"
        )
        connection.execute("DROP TABLE lease_copy")


def _copy_lease(url: str) -> None:
    """Copy the lease that is alive."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE lease_copy AS SELECT * FROM flowpregel.leases "
            "WHERE expires > clock_timestamp()"
        )


# ---------------------------------------------------------------- the same rows


def test_reading_ahead_shows_the_same(saver: Any) -> None:
    """Of runs of all kinds, also of those with more records than are read ahead."""
    threads: list[str] = []
    for kind, make in (KINDS | LARGE_KINDS).items():
        for number in range(1 + (kind in KINDS)):
            threads.append(f"{kind} {number}")
            make(saver, threads[-1])
    _die(saver, "stopped 1")
    with ExitStack() as stack:
        stack.enter_context(saver.lease("resting 1"))
        reader = stack.enter_context(closing(StoreReader(saver)))
        other = stack.enter_context(closing(StoreReader(WithoutPrefetch(saver))))
        infos = {info.thread_id: info for info in saver.threads()}
        ahead = [_shown(reader, id) for id in reader.in_snapshots(threads, str)]
        plain = [_shown(other, id) for id in other.in_snapshots(threads)]
        rows = reader.runs()
        again = [*reader.in_snapshots(rows, attrgetter("thread_id"))]

        assert plain == ahead
        assert other.runs() == rows == again
        assert {run.thread_id: run.status for run in rows} == {
            id: info.status for id, info in infos.items()
        }
        assert {*threads} == {*infos}
        query = RunQuery()
        assert RunList(other).page(query, 0) == RunList(reader).page(query, 0)
        assert {"done", "failed", "waiting", "stopped", "enqueued", "running"} == {
            run.status for run in rows
        }


def _shown(reader: StoreReader, thread: str) -> list[Any]:
    """Return what a reader shows of a run."""
    return [
        reader.run(thread),
        reader.status(thread),
        reader.summary(thread, "some"),
        reader.beginning(thread),
        reader.steps(thread, 100),
        reader.steps(thread, 100, of_last_run=True),
        [changes.rows for changes in reader.changes(thread)],
    ]


# ---------------------------------------------------------------- the store


def test_a_snapshot_answers_only_from_ranges_that_it_has_read(
    postgres_url: str, statements: list[str]
) -> None:
    """A range that is empty is known to be empty; what is beyond a limit is read."""
    from flowpregel.plugins.postgres.database import Database

    store = Database(postgres_url)
    table = store.table(b"writes")
    keys = [b"many%03d" % number for number in range(300)]
    payloads = dict.fromkeys(keys, b"x") | {b"large": b"y" * (17 << 20), b"zz": b"z"}

    def put(transaction: Any) -> None:
        """Store the payloads."""
        for key, payload in payloads.items():
            table.put(transaction, key, payload)

    store.write(put)
    ranges = [(b"many", b"manz"), (b"none", b"nonf"), (b"large", b"largf")]

    def read(key: bytes) -> bytes | None:
        """Return the payload at *key*."""
        payload: bytes | None = store.read(lambda t: table.get(t, key))
        return payload

    def scan(prefix: bytes, *, backwards: bool = False) -> dict[bytes, bytes]:
        """Return the payloads whose keys begin with *prefix*."""
        return store.read(lambda t: dict(table.scan(t, prefix, backwards=backwards)))

    with closing(store), store.snapshot():
        store.prefetch([KeyRange(b"writes", *bounds) for bounds in ranges])
        statements.clear()
        assert b"x" == read(keys[0]) == read(keys[63])
        assert {} == scan(b"none")
        assert None is read(b"none7")
        assert 2 == len(statements)
        assert b"x" == read(keys[64])
        assert payloads[b"large"] == read(b"large")
        assert b"z" == read(b"zz")
        assert 5 == len(statements)
        assert dict.fromkeys(keys, b"x") == scan(b"many")
        assert keys[::-1] == [*scan(b"many", backwards=True)]
        assert {b"large": payloads[b"large"]} == scan(b"large")


def test_nothing_is_read_ahead_outside_a_snapshot(
    saver: Any, statements: list[str]
) -> None:
    store, _ = saver.opened_to_look(PythonCodec())
    with closing(store):
        store.read(lambda transaction: None)
        statements.clear()
        store.prefetch([KeyRange(b"writes", b"a", b"b")])

        assert [] == statements


def test_the_leases_of_a_snapshot_are_read_at_once(
    saver: Any, statements: list[str]
) -> None:
    _run(stopping, saver, 1, "dead")
    _die(saver, "dead")
    store, leases = saver.opened_to_look(PythonCodec())
    addresses = [Address(thread) for thread in ("held", "dead", "free")]
    with closing(store), saver.lease("held"), store.snapshot():
        owners = leases.owners(addresses)
        statements.clear()

        assert [Address("held")] == [*owners]
        assert owners[Address("held")] == leases.owner(Address("held"))
        assert None is leases.owner(Address("dead")) is leases.owner(Address("free"))
        assert leases.dead_owner(Address("dead")) is not None
        assert None is leases.dead_owner(Address("held"))
        assert owners == leases.owners(addresses)
        assert [] == statements
