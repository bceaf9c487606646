"""A commit to PostgreSQL whose answer is lost is made once, or reported as unknown.

Another client commits after it, before it can be repeated: a repetition would undo
that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel._core.records import Address
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import CommitUnknownError
from flowpregel.storage.options import StoreOptions
from flowpregel.testing.saver_hooks import Timeline
from tests.cutting_proxy import Cut, CuttingProxy, cutting
from tests.postgres_server import Server, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("store_key"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

NAMESPACE = ("a",)


class LostAnswer:
    """Decides for a proxy: cuts the next commit once it is armed, and lets others in
    then.

    Args:
        cut: How it is cut off.
    """

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.meanwhile: Callable[[], object] | None = None
        """Called when the client goes on after a cut."""
        self.closing: CuttingProxy | None = None
        """A proxy that is closed for everything once one was cut."""
        self.is_armed = False
        self.was_cut = False

    def decide(self) -> Cut | None:
        """Return how a commit is cut off, if that is wanted."""
        if not self.is_armed:
            return None
        self.is_armed, self.was_cut = False, True
        if self.closing is not None:
            self.closing.is_open = False
        return self.cut

    def arrived(self) -> None:
        """Let others in, as the client goes on."""
        if self.was_cut and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()

    @contextmanager
    def during(self, meanwhile: Callable[[], object]) -> Iterator[None]:
        """Cut one commit inside the context, and call *meanwhile* before it is
        repeated.
        """
        self.meanwhile, self.is_armed = meanwhile, True
        yield
        assert self.was_cut
        assert self.meanwhile is None


@pytest.fixture(params=[Cut.AFTER, Cut.BEFORE])
def lost(request: pytest.FixtureRequest) -> LostAnswer:
    """A commit that has landed, or has not: in both cases its client cannot know."""
    return LostAnswer(request.param)


@pytest.fixture
def proxy(
    postgres_server: Server, postgres_url: str, lost: LostAnswer
) -> Iterator[CuttingProxy]:
    """A proxy before the server."""
    with cutting(postgres_server, lost.decide, lost.arrived) as proxy:
        yield proxy


@pytest.fixture
def savers(proxy: CuttingProxy, postgres_url: str) -> Iterator[tuple[Any, Any]]:
    """A saver behind the proxy, and another that is not cut."""
    from flowpregel.plugins.postgres import PostgresSaver

    with PostgresSaver(proxy.url) as ours, PostgresSaver(postgres_url) as theirs:
        yield ours, theirs


def test_an_item_that_another_has_put_since_is_not_overwritten(
    proxy: CuttingProxy, postgres_url: str, lost: LostAnswer
) -> None:
    """If ours has landed; if it has not, it is put now, after theirs."""
    from flowpregel.plugins.postgres import PostgresStore

    with PostgresStore(proxy.url) as ours, PostgresStore(postgres_url) as theirs:
        ours.put(NAMESPACE, "k", {"n": 0})
        with lost.during(lambda: theirs.put(NAMESPACE, "k", {"n": 2})):
            ours.put(NAMESPACE, "k", {"n": 1})

        expected = {"n": 2} if lost.cut is Cut.AFTER else {"n": 1}
        assert expected == theirs.get(NAMESPACE, "k").value
        assert expected == ours.get(NAMESPACE, "k").value


def test_another_item_of_the_store_may_change_meanwhile(
    proxy: CuttingProxy, postgres_url: str, lost: LostAnswer
) -> None:
    """All items are one scope: a commit to any of them replaces its revision."""
    from flowpregel.plugins.postgres import PostgresStore

    def change_others() -> None:
        theirs.put(NAMESPACE, "other", {"n": 1})
        theirs.delete(NAMESPACE, "k")

    with PostgresStore(proxy.url) as ours, PostgresStore(postgres_url) as theirs:
        with lost.during(change_others):
            ours.put(NAMESPACE, "k", {"n": 1})

        found = theirs.get(NAMESPACE, "k")
        assert (found is None) == (lost.cut is Cut.AFTER)


def test_a_thread_is_not_deleted_twice(
    savers: tuple[Any, Any], lost: LostAnswer
) -> None:
    """What another run has written to it since is kept."""
    ours, theirs = savers
    Timeline(ours, "t").commit(1, {"a": 1})

    def begin_again() -> None:
        # Before ours has landed there is still the old thread, which ours may delete.
        Timeline(theirs, "t" if lost.cut is Cut.AFTER else "u").commit(2, {"a": 2})

    with lost.during(begin_again):
        ours.delete_thread("t")

    found = theirs.load(Address("t"))
    assert (found is not None) == (lost.cut is Cut.AFTER)


def test_a_signal_is_sent_once(savers: tuple[Any, Any], lost: LostAnswer) -> None:
    ours, theirs = savers
    theirs.send_signal("t", "go", 0)
    with lost.during(lambda: theirs.send_signal("t", "go", 2)):
        ours.send_signal("t", "go", 1)

    received = [theirs.receive_signal("t", "go", receiver) for receiver in "abcd"]
    order = [(0,), (1,), (2,)] if lost.cut is Cut.AFTER else [(0,), (2,), (1,)]
    assert [*order, None] == received


def test_a_cached_result_that_another_has_set_since_is_not_overwritten(
    proxy: CuttingProxy, postgres_url: str, lost: LostAnswer
) -> None:
    from flowpregel.plugins.postgres import PostgresCache

    key = (("f",), "1")
    with PostgresCache(proxy.url) as ours, PostgresCache(postgres_url) as theirs:
        with lost.during(lambda: theirs.set({key: (2, None)})):
            ours.set({key: (1, None)})

        assert {key: 2 if lost.cut is Cut.AFTER else 1} == theirs.get([key])


def test_a_lease_that_was_taken_over_since_is_not_taken_back(
    savers: tuple[Any, Any], lost: LostAnswer
) -> None:
    """A takeover happens once: afterwards the lease is its new owner's."""
    ours, theirs = savers
    fences = []

    def take_over() -> None:
        with theirs.lease("t", on_conflict="takeover") as lease:
            fences.append(lease.fence)

    with lost.during(take_over), ours.lease("t", on_conflict="takeover") as lease:
        fences.append(lease.fence)

    theirs_fence, ours_fence = fences
    assert (ours_fence < theirs_fence) == (lost.cut is Cut.AFTER)


def test_a_run_whose_lease_is_taken_twice_finds_nobody_dead(
    savers: tuple[Any, Any], lost: LostAnswer
) -> None:
    ours, _ = savers
    with lost.during(lambda: None), ours.lease("t") as lease:
        assert not lease.is_inherited


def test_a_request_to_stop_reaches_no_later_run(
    savers: tuple[Any, Any], lost: LostAnswer, postgres_server: Server
) -> None:
    """If it has landed: the run that it was meant for has ended since."""
    ours, theirs = savers
    first = theirs.lease("t")
    first.__enter__()

    def begin_another() -> None:
        if lost.cut is Cut.AFTER:
            first.__exit__(None, None, None)
            second.__enter__()

    second = theirs.lease("t") if lost.cut is Cut.AFTER else first
    with lost.during(begin_another):
        assert ours.cancel("t") is not None

    rows = postgres_server.execute("SELECT asked FROM flowpregel.leases")
    assert [(lost.cut is Cut.BEFORE,)] == rows
    second.__exit__(None, None, None)


def test_a_command_that_only_looks_may_ask_a_run_to_stop(
    postgres_server: Server, postgres_url: str
) -> None:
    from flowpregel.plugins.postgres import PostgresSaver

    with PostgresSaver(postgres_url) as saver, saver.lease("t"):
        Timeline(saver, "t").commit(1, {"a": 1})
        words = ["cancel", "t", "--wait", "0", "--store", postgres_url]
        result = CliRunner().invoke(app, words)

        assert Code.OK == result.exit_code, result.output
        asked = "SELECT asked FROM flowpregel.leases"
        assert [(True,)] == postgres_server.execute(asked)


def test_an_outcome_that_cannot_be_learned_is_reported(
    proxy: CuttingProxy, postgres_url: str, lost: LostAnswer
) -> None:
    """Whether it has landed or not: the error says that this is not known."""
    from flowpregel.plugins.postgres import PostgresStore

    options = StoreOptions(lock_timeout=0.3)
    with PostgresStore(proxy.url, options=options) as ours:
        ours.put(NAMESPACE, "k", {"n": 0})
        lost.closing = proxy
        lost.is_armed = True

        with pytest.raises(CommitUnknownError, match="may or may not have been stored"):
            ours.put(NAMESPACE, "k", {"n": 1})

    with PostgresStore(postgres_url) as theirs:
        expected = {"n": 1} if lost.cut is Cut.AFTER else {"n": 0}
        assert expected == theirs.get(NAMESPACE, "k").value


# the table of what has landed ----------------------------------------------


def test_a_statement_that_arrives_after_all_is_refused(postgres_url: str) -> None:
    """Once its client has been told that it has not landed."""
    import psycopg

    from flowpregel.plugins.postgres import PostgresStore
    from flowpregel.plugins.postgres.database import connect_to_server
    from flowpregel.plugins.postgres.once import LandingSlot

    slot = LandingSlot()
    late = "SELECT flowpregel.land(%s::bytea, %s::bigint, NULL)"
    with (
        PostgresStore(postgres_url) as store,
        connect_to_server(postgres_url) as connection,
    ):
        store.put(NAMESPACE, "k", {})
        number = slot.send()
        for _ in range(2):  # the answer to this may be lost too
            outcome = slot.settle(connection)
            assert outcome is not None
            assert not outcome.has_landed
            slot.sent = time.monotonic()

        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(late, (slot.id, number))

        connection.execute(late, (slot.id, slot.send()))
        outcome = slot.settle(connection)
        assert outcome is not None
        assert outcome.has_landed


def test_a_late_statement_to_settle_changes_nothing(postgres_url: str) -> None:
    """Its client has asked again on another connection, and has gone on."""
    from flowpregel.plugins.postgres import PostgresStore
    from flowpregel.plugins.postgres.database import connect_to_server
    from flowpregel.plugins.postgres.once import LandingSlot

    slot = LandingSlot()
    with (
        PostgresStore(postgres_url) as store,
        connect_to_server(postgres_url) as connection,
    ):
        store.put(NAMESPACE, "k", {})
        late = LandingSlot(slot.id, slot.send(), sent=slot.sent)
        slot.settle(connection)
        land = "SELECT flowpregel.land(%s::bytea, %s::bigint, 'kept')"
        connection.execute(land, (slot.id, slot.send()))

        assert late.settle(connection) is None
        outcome = slot.settle(connection)

    assert outcome == (True, "kept")


def test_a_client_in_doubt_for_very_long_is_not_answered(postgres_url: str) -> None:
    """Its row may have been removed; that must not be taken for a commit that has not
    landed.
    """
    from flowpregel.plugins.postgres import PostgresStore
    from flowpregel.plugins.postgres.database import connect_to_server
    from flowpregel.plugins.postgres.once import KEPT_FOR, LandingSlot

    with (
        PostgresStore(postgres_url) as store,
        connect_to_server(postgres_url) as connection,
    ):
        store.put(NAMESPACE, "k", {})
        stopped, removed = LandingSlot(), LandingSlot(has_landed=True)
        stopped.send()
        assert stopped.sent is not None
        stopped.sent -= KEPT_FOR
        removed.send()

        assert stopped.settle(connection) is None
        assert removed.settle(connection) is None


def test_the_table_of_what_has_landed_stays_small(
    postgres_server: Server, postgres_url: str
) -> None:
    """A row for each write at a time, and those of processes that are gone are
    removed.
    """
    from flowpregel.plugins.postgres import PostgresStore

    count = "SELECT count(*) FROM flowpregel.landed"
    for round_ in range(3):
        with PostgresStore(postgres_url) as store:
            for number in range(20):
                store.put(NAMESPACE, str(number), {"n": round_})
    assert [(3,)] == postgres_server.execute(count)

    postgres_server.execute("UPDATE flowpregel.landed SET at = at - interval '2 days'")
    with PostgresStore(postgres_url) as store:
        store.put(NAMESPACE, "k", {})
    assert [(1,)] == postgres_server.execute(count)
