"""An executor of executorlib's, whose others submit jobs to SLURM, runs our tasks."""

from __future__ import annotations

import warnings

import pytest

from flowpregel import InMemorySaver
from flowpregel.func import entrypoint, task

pytestmark = pytest.mark.slow


@task
def triple(number: int) -> int:
    return 3 * number


def test_an_executor_of_executorlib_runs_tasks() -> None:
    """It is an executor of `concurrent.futures`, and a resumed run needs it no more."""
    with warnings.catch_warnings():
        # Its models use a name that pydantic has deprecated.
        warnings.simplefilter("ignore")
        executorlib = pytest.importorskip(
            "executorlib", reason="executorlib is not installed"
        )
    with executorlib.SingleNodeExecutor(max_workers=1) as executor:

        @entrypoint(checkpointer=InMemorySaver(), executor=executor)
        def triples(count: int) -> int:
            return sum(future.result() for future in triple.map(range(count)))

        first = triples.run(2, id="a")
    again = triples.run(2, id="a")

    assert (3, 3) == (first, again)
