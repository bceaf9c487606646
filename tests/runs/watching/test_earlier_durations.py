"""The durations of calls in earlier runs of a flow, which a store has."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from flowpregel._inspection.earlier_durations import earlier_durations
from flowpregel._inspection.reader import StoreReader
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.func import entrypoint, task


@task(executor="inline")
def double(number: int) -> int:
    return 2 * number


def test_the_last_three_runs_of_the_same_flow_count(tmp_path: Path) -> None:
    """Neither the run itself, nor another flow, nor a run before those."""
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def study(count: int) -> int:
            return sum(double(number).result() for number in range(count))

        @entrypoint(checkpointer=saver)
        def other(count: int) -> int:
            return sum(double(number).result() for number in range(count))

        for count in (50, 1, 2, 3):
            study.run(count, id=f"study-{count}")
        other.run(70, id="other")
        study.run(90, id="now")
        with closing(StoreReader(saver)) as reader:
            durations = earlier_durations(reader, "now")

    assert 1 + 2 + 3 == len(durations.of("double"))
