"""The soak of tasks with a timeout, short."""

from __future__ import annotations

import pytest

from tests.soak.timers import soak_timers


@pytest.mark.slow
def test_tasks_with_a_timeout_take_no_more_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints ten lines of figures."""
    assert soak_timers(2_000)

    assert 10 == len(capsys.readouterr().out.splitlines())
