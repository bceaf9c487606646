"""Many tasks under random faults: exact results, nothing leaked."""

from __future__ import annotations

import os

import pytest

from flowpregel._core.records import Returned
from tests.soak.workers import Report, is_right, soak

TASKS = int(os.environ.get("FLOWPREGEL_SOAK_TASKS", "400"))


@pytest.mark.slow
def test_every_task_ends_as_it_should_under_random_faults() -> None:
    """Kills, errors and timeouts cost the tasks they hit; memory and descriptors
    stay.
    """
    report = soak(TASKS, minutes=2, seed=7, wave=66)

    assert TASKS == report.tasks
    assert report.ok, str(report)


def test_the_soak_would_find_a_wrong_result() -> None:
    """And a leak: the check itself works."""
    assert not is_right(("work", 3, b""), Returned((("__return__", 8),)))
    assert not is_right(("kill", 3, b""), Returned(()))

    leaking = Report(memory=[1, 1, 1, 200 << 20], descriptors=[5, 5, 5, 6, 6, 6])

    assert 1 == leaking.leaked
    assert not leaking.ok
