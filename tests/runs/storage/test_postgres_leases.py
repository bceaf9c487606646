"""Leases in PostgreSQL: a thread has one owner at a time that can write, also if two
runs take its lease over at once, or a commit arrives after its owner has ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from flowpregel._core.records import Address
from flowpregel.errors import CommitUnknownError, LeaseLostError, StoreBusyError
from flowpregel.storage.options import StoreOptions
from flowpregel.testing.saver_hooks import Timeline
from tests.cutting_proxy import Cut, CuttingProxy, cutting
from tests.postgres_server import Server, why_not
from tests.runs.pooling import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("store_key"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

_PATIENCE = 60
_GATE = 42
"""The advisory lock at which a lease waits after its fence was chosen."""
_WAIT_AT_GATE = """
    CREATE FUNCTION flowpregel.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.fence = {fence} THEN PERFORM pg_advisory_xact_lock({gate}); END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER gate BEFORE INSERT ON flowpregel.leases
        FOR EACH ROW EXECUTE FUNCTION flowpregel.wait_at_gate();
"""
_WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'
"""


@pytest.fixture
def savers(postgres_url: str) -> Iterator[tuple[Any, ...]]:
    """Four savers of one store, each with connections of its own."""
    from flowpregel.plugins.postgres import PostgresSaver

    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(PostgresSaver(postgres_url, lease_ttl=1.0))
            for _ in range(4)
        )


def commit(saver: Any, number: int, fence: int | None) -> None:
    """Commit a checkpoint of thread "t" under a lease."""
    batch = Timeline(saver, "t").batch(number, {"a": number})
    batch.fence = fence
    saver.commit([batch])


def numbers_of(saver: Any) -> list[int]:
    """Return what the checkpoints of thread "t" hold, newest first."""
    return [saved.checkpoint.values["a"] for saved in saver.history(Address("t"))]


def test_of_two_takeovers_at_once_the_last_owner_can_write(
    savers: tuple[Any, ...], postgres_server: Server
) -> None:
    """The first takeover is held up in the server, and the second may not pass it."""
    first, second, third, fourth = savers
    with ExitStack() as leases, ThreadPoolExecutor(2) as pool:
        owner = leases.enter_context(first.lease("t"))
        commit(first, 1, owner.fence)
        fence = owner.fence + 1
        postgres_server.execute(_WAIT_AT_GATE.format(fence=fence, gate=_GATE))
        with _closed_gate(postgres_server) as gate:
            takeovers: list[Future[Any]] = []
            for count, saver in enumerate((second, third), 1):
                lease = leases.enter_context(ExitStack())
                takeover = saver.lease("t", on_conflict="takeover")
                takeovers.append(pool.submit(lease.enter_context, takeover))
                _until_waiting(postgres_server, count, takeovers)
            gate.execute(f"SELECT pg_advisory_unlock({_GATE})")
            fences = [takeover.result(_PATIENCE).fence for takeover in takeovers]
        [(owning,)] = postgres_server.execute("SELECT fence FROM flowpregel.leases")

        assert owning == max(fences)
        winner, loser = sorted(
            zip((second, third), fences, strict=True),
            key=lambda takeover: takeover[1] != owning,
        )
        commit(winner[0], 2, winner[1])
        with pytest.raises(LeaseLostError):
            commit(loser[0], 3, loser[1])
        leases.pop_all().close()
    with fourth.lease("t") as lease:
        commit(fourth, 4, lease.fence)


def _closed_gate(server: Server) -> Any:
    """Return a connection that holds the advisory lock of the gate."""
    import psycopg

    connection = psycopg.connect(server.url, autocommit=True)
    connection.execute(f"SELECT pg_advisory_lock({_GATE})")
    return connection


def _until_waiting(server: Server, count: int, takeovers: list[Future[Any]]) -> None:
    """Wait until so many connections wait for a lock, or the newest takeover ends."""
    until = time.monotonic() + _PATIENCE
    while server.execute(_WAITING)[0][0] < count and not takeovers[-1].done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_takeover_that_fails_does_not_free_the_lease_of_the_owner(
    savers: tuple[Any, ...], postgres_server: Server, postgres_url: str
) -> None:
    """The old owner cannot write beside the next one."""
    import psycopg

    from flowpregel.plugins.postgres import PostgresSaver

    first, _, third, _ = savers
    options = StoreOptions(lock_timeout=0.2)
    with (
        PostgresSaver(postgres_url, options=options, lease_ttl=1.0) as second,
        first.lease("t") as owner,
    ):
        commit(first, 1, owner.fence)
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT * FROM flowpregel.scopes FOR UPDATE")
            with (
                pytest.raises(StoreBusyError),
                second.lease("t", on_conflict="takeover"),
            ):
                pass

        with third.lease("t", on_conflict="wait") as lease:
            with pytest.raises(LeaseLostError):
                commit(first, 2, owner.fence)
            commit(third, 3, lease.fence)


@pytest.fixture
def cuts() -> list[Cut]:
    """How the next commits through the proxy are cut off."""
    return []


@pytest.fixture
def proxy(
    postgres_server: Server, postgres_url: str, cuts: list[Cut]
) -> Iterator[CuttingProxy]:
    """A proxy that is closed once it has cut off a commit."""

    def decide() -> Cut | None:
        if not cuts:
            return None
        proxy.is_open = False
        return cuts.pop()

    with cutting(postgres_server, decide) as proxy:
        yield proxy


@pytest.fixture
def ours(proxy: CuttingProxy) -> Iterator[Any]:
    """A saver behind the proxy, which soon gives up."""
    from flowpregel.plugins.postgres import PostgresSaver

    options = StoreOptions(lock_timeout=0.3)
    with PostgresSaver(proxy.url, options=options, lease_ttl=1.0) as saver:
        yield saver


def commit_late(saver: Any, cuts: list[Cut], fence: int | None) -> None:
    """Commit 1, and then 2, which the server does not get yet."""
    commit(saver, 1, fence)
    cuts.append(Cut.LATE)
    with pytest.raises(CommitUnknownError):
        commit(saver, 2, fence)


def test_a_commit_that_arrives_after_its_owner_has_ended_is_refused(
    savers: tuple[Any, ...], ours: Any, proxy: CuttingProxy, cuts: list[Cut]
) -> None:
    """Its owner was told that the outcome is unknown, and has given the lease back."""
    theirs, *_ = savers
    with ours.lease("t") as lease:
        commit_late(ours, cuts, lease.fence)
        proxy.is_open = True

    with theirs.lease("t") as lease:
        found = numbers_of(theirs)
        proxy.deliver()

        assert [1] == found
        assert [1] == numbers_of(theirs)
        commit(theirs, 3, lease.fence)


def test_an_owner_that_cannot_refuse_its_late_commit_leaves_that_to_the_next(
    savers: tuple[Any, ...], ours: Any, proxy: CuttingProxy, cuts: list[Cut]
) -> None:
    """Its lease expires, as that of a process that has died."""
    theirs, *_ = savers
    with ours.lease("t") as lease:
        commit_late(ours, cuts, lease.fence)

    with theirs.lease("t", on_conflict="wait"):
        proxy.deliver()

        assert [1] == numbers_of(theirs)


def test_an_owner_that_is_interrupted_as_it_ends_keeps_no_lease(
    savers: tuple[Any, ...],
) -> None:
    """By Ctrl-C, while the store is to refuse its late commit: the lease expires."""
    saver, *_ = savers
    leases, store = saver._leases, saver._store  # noqa: SLF001 - no public way in

    def interrupted(address: Address, fence: int) -> int:
        raise KeyboardInterrupt

    hold = leases.hold(Address("t"), "raise", interrupted)
    with pytest.raises(KeyboardInterrupt), hold:
        store.unknown_outcomes += 1

    wait_until(lambda: leases.owner(Address("t")) is None, 20)
