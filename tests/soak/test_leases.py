"""A moment of the soak of leases, and what its checker finds in histories made by
hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.postgres_server import Server
from tests.soak import leases
from tests.soak.leases import (
    Faults,
    bad_numbers,
    late_refusals,
    lost_by_the_living,
    soak_lmdb,
    soak_postgres,
    tenures_in,
)


def line(at: float, pid: int, event: str, **fields: Any) -> dict[str, Any]:
    """Return what a claimant writes down."""
    return {"at": at, "pid": pid, "event": event, **fields}


def owned(
    pid: int, begin: float, end: float, mode: str = "raise"
) -> list[dict[str, Any]]:
    """Return the lines of a claimant that has the lease for a while."""
    return [
        line(begin, pid, "ask", mode=mode),
        line(begin, pid, "got", fence=pid),
        line(end, pid, "back"),
        line(end, pid, "ended"),
    ]


def test_two_owners_at_the_same_time_are_found() -> None:
    """Unless the second one took the lease over."""
    both = [*owned(1, 0, 10), *owned(2, 5, 6)]
    (wrong,) = lost_by_the_living(tenures_in(both), Faults(), is_postgres=False)
    assert "pid=2" in wrong
    assert "live Tenure(pid=1" in wrong

    taken = [*owned(1, 0, 10), *owned(2, 5, 6, "takeover")]
    assert [] == lost_by_the_living(tenures_in(taken), Faults(), is_postgres=False)


def test_an_owner_that_is_stopped_keeps_its_lease_only_in_a_folder() -> None:
    """The kernel holds the lock of a process that is stopped; a server cannot know
    it.
    """
    both, faults = [*owned(1, 0, 10), *owned(2, 8, 9)], Faults()
    faults.stopped[1].append((2.0, 9.5))

    assert lost_by_the_living(tenures_in(both), faults, is_postgres=False)
    assert [] == lost_by_the_living(tenures_in(both), faults, is_postgres=True)


def test_a_lease_that_is_refused_after_its_owner_died_is_found() -> None:
    """The time since then is what counts."""
    refused = [line(7, 2, "ask", mode="raise"), line(7.5, 2, "busy")]
    lines = [*owned(1, 0, 10), *refused]
    assert [] == late_refusals(tenures_in(lines), Faults())

    ((seconds, tenure),) = late_refusals(tenures_in(lines), Faults(killed={1: 4.0}))
    assert (3.0, 2) == (seconds, tenure.pid)


@pytest.mark.parametrize(
    ("kept", "wrong"),
    [
        ([(1, 5, 1), (2, 5, 1), (3, 6, 2)], ""),
        ([(1, 5, 1), (2, 5, 1), (2, 6, 2)], "the numbers are"),
        ([(1, 6, 2), (2, 5, 1)], "older lease"),
        ([(1, 5, 1), (2, 5, 2)], "one lease"),
        ([(1, 5, 1)], ""),
        ([], "not there"),
    ],
)
def test_commits_that_two_owners_made_are_found(
    kept: list[tuple[int, int, int]], wrong: str
) -> None:
    """Each number is committed once, by leases that are ever newer."""
    lines = (
        [line(0, 1, "committed", fence=5, number=1)] if (1, 6, 2) not in kept else []
    )

    found = bad_numbers(kept, lines)

    assert bool(wrong) == bool(found)
    assert wrong in "".join(found)


@pytest.mark.slow
@pytest.mark.usefixtures("store_key")
@pytest.mark.parametrize("store", ["lmdb", "postgres"])
def test_processes_that_fight_for_leases_never_own_one_together(
    store: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``python -m tests.soak.leases --minutes 6`` does the same for longer."""
    monkeypatch.setattr(leases, "ROUND_SECONDS", 4.0)
    if store == "lmdb":
        done = soak_lmdb(tmp_path, seconds=1, seed=1)
    else:
        server: Server = request.getfixturevalue("postgres_server")
        request.getfixturevalue("postgres_url")
        done = soak_postgres(tmp_path, server, seconds=1, seed=1)

    printed = capsys.readouterr().out
    assert done, printed
    assert "times committed" in printed
