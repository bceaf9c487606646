"""The page shows the time left that `flowpregel watch` shows, or nothing."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.func import entrypoint, task
from flowpregel.plugins.page.calls import CallPages
from flowpregel.watching import StoreReader


@task(executor="inline")
def double(number: int) -> int:
    return 2 * number


def test_the_news_of_a_run_have_the_range_in_words(tmp_path: Path) -> None:
    """As soon as its calls were requested and enough of them have ended."""
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def study(count: int) -> int:
            return sum(double(number).result() for number in range(count))

        study.run(20, id="a")
        running = [
            {"id": "x", "name": "double", "role": "leaf", "began": time.time_ns()}
        ]
        activity = {"running": running, "waiting": {"double": 1_000_000}}
        with closing(StoreReader(saver)) as reader:
            pages = CallPages(reader)
            unrequested = pages.time_left("a", activity)
            pages.complete_index("a")
            text = pages.time_left("a", activity)
            ended = pages.time_left("a", None)

    assert unrequested is None
    assert ended is None
    assert text is not None
    assert text.startswith("about ") or " to " in text
