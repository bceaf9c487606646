"""A cycle of very many supersteps: nothing is kept for each of them in memory.

What the coordinator's resident set grows by beside a store is the store's own file,
which LMDB maps: pages of the disk cache, which the system takes back when it needs
them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Address
from flowpregel.channels import LastValue
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.pregel import NodeBuilder
from flowpregel.pregel._write import ChannelWriteEntry
from tests.graphs import graph
from tests.runs.pooling import wait_until

LOOKS = (1_000, 1_001, 1_750, 1_751, 2_500, 2_501)
"""The supersteps that look; the first of two next to each other lets the writer catch
up.
"""
MOST = 500
"""What may be there for other reasons at the one moment and not at the other: less than
a block for each of the 750 supersteps between them.
"""


def cycle(look: Callable[[int], None], saver: Any) -> Any:
    """Return a graph that counts, and looks at itself on the way."""

    def count(number: int) -> int | None:
        if number in LOOKS:
            look(number)
        return number + 1 if number < LOOKS[-1] else None

    again = ChannelWriteEntry("n", skip_none=True)
    node = NodeBuilder().subscribe_only("n").do(count).write_to(again)
    channels = {"n": LastValue(int)}
    ends = {"input_channels": "n", "output_channels": "n"}
    return graph(
        {"count": node}, channels, checkpointer=saver, executor="inline", **ends
    )


@pytest.mark.slow
def test_memory_does_not_grow_with_the_supersteps(tmp_path: Path) -> None:
    """Not by a single block for each: not in both halves, since what other tests have
    left in this process may allocate once.
    """
    found: list[int] = []

    def look(number: int) -> None:
        # A busy machine has more on its way to the disk.
        wait_until(lambda: saver.load(Address("t")).checkpoint.step == number - 2)
        gc.collect()
        found.append(sys.getallocatedblocks())

    with LMDBSaver(tmp_path / "store") as saver:
        cycle(look, saver).invoke(1, thread_id="t", recursion_limit=3_000)

    begin, middle, end = found[1::2]
    assert min(middle - begin, end - middle) < MOST
