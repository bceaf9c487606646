"""A moment of the soak of cut commits, and what it finds if its guard is removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.postgres_server import Server
from tests.soak.lost_answers import soak_lmdb, soak_postgres

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_key")]


def test_connections_that_are_cut_leave_a_history_that_can_be_explained(
    tmp_path: Path,
    postgres_server: Server,
    postgres_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``python -m tests.soak.lost_answers --minutes 10`` does the same for longer."""
    done = soak_postgres(tmp_path, postgres_server, seconds=3, seed=1)

    printed = capsys.readouterr().out
    assert done, printed
    for cut in ("after", "before", "during"):
        assert f"commits cut off {cut}" in printed


def test_processes_that_are_killed_leave_a_history_that_can_be_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = soak_lmdb(tmp_path, seconds=1, seed=1)

    printed = capsys.readouterr().out
    assert done, printed
    assert "processes killed" in printed


def test_without_the_table_of_what_has_landed_it_finds_violations(
    tmp_path: Path,
    postgres_server: Server,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the guard is worth: each commit whose answer is lost is repeated.

    Whether a repeated commit meets another one depends on the machine, so further
    histories are tried until one has a violation.
    """
    from flowpregel.plugins.postgres.once import LandingSlot, TryOutcome

    def forgets(slot: LandingSlot, _: Any) -> TryOutcome:
        slot.refused()
        return TryOutcome(False, None)

    monkeypatch.setattr(LandingSlot, "settle", forgets)

    assert not all(
        soak_postgres(tmp_path, postgres_server, seconds=8, seed=seed)
        for seed in range(1, 7)
    ), capsys.readouterr().out
