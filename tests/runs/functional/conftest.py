"""Every test of functional workflows runs its tasks in each kind of place."""

from __future__ import annotations

import pytest


@pytest.fixture(
    params=["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def executor(request: pytest.FixtureRequest) -> str:
    """Return the name of an executor: those in this process, and the one of worker
    processes.
    """
    return str(request.param)
