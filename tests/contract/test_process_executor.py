"""The contract of an executor, for our own pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowpregel.executors.processes import ProcessExecutor
from tests.contract.executor_contract import ExecutorContract

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def executor() -> Iterator[Any]:
    """A pool of two workers."""
    with ProcessExecutor(2, grace=0.3) as pool:
        yield pool


@pytest.fixture
def spare() -> ProcessExecutor:
    """Return a pool to close."""
    return ProcessExecutor(1)


class TestProcessExecutor(ExecutorContract):
    """Worker processes on this machine."""
