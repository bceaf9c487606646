"""The soak of the queue, short."""

from __future__ import annotations

import pytest

from tests.soak.queue import disordered, main


@pytest.mark.slow
def test_a_queue_is_drained_though_its_processes_are_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No run is lost."""
    assert main(["--runs", "40", "--kill-every", "1"]) == 0

    assert capsys.readouterr().out.endswith("0 violations\n")


def test_a_queue_without_order_is_a_violation() -> None:
    """The check itself: the runs began in the order of their numbers."""
    priorities = [0, 2] * 50

    assert len(disordered(range(100), priorities, most=0)) == 50
    assert disordered(range(1, 100, 2), priorities, most=0) == []
