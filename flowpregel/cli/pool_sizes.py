"""The command that changes the number of workers of a run under way: pool."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from flowpregel._inspection.inert import InertCodec
from flowpregel._text import in_one_line
from flowpregel.cli import console, targets
from flowpregel.cli.console import Code
from flowpregel.cli.worker_counts import pools_text
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver, PoolRequest

_PERIOD = 0.1
"""Seconds between two reads of the activity of the run."""


@console.thread_command("pool")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Run this many calls at the same time.",
)
@click.option(
    "--nice",
    type=click.IntRange(-20, 19),
    help="The nice value of the workers; 19 is the lowest priority.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Wait this many seconds for an answer of the process of the run.",
)
def pool_command(
    thread: str,
    workers: int | None,
    nice: int | None,
    wait: float,
    store: str | None,
) -> Code:
    """Show or change the number of workers of a run under way.

    Running calls continue. If the pool has too many workers, each surplus worker ends
    after its call. The change holds until the pool is closed, for all its runs.
    """
    with targets.open_to_write(store, InertCodec()) as saver:
        targets.newest_checkpoint(saver, thread)
        pools = _changed(saver, thread, workers, nice, time.monotonic() + wait)
    record = {"thread_id": thread, "pools": pools}
    if pools is None:
        console.print_result(record)
        console.print_note(
            f"{in_one_line(thread)}: no pool of worker processes has answered; the "
            "run may have ended, have no call now, or run elsewhere"
        )
        return Code.FAILED
    console.print_result(record, f"{in_one_line(thread)}: {pools_text(pools)}")
    return Code.OK


def _changed(
    saver: DurableSaver,
    thread: str,
    workers: int | None,
    nice: int | None,
    deadline: float,
) -> Sequence[Mapping[str, Any]] | None:
    """Request a size for the pools of a run. Return the pools once they have this size,
    or None if that takes too long.

    Raises:
        ConfigurationError: No run holds the thread.
    """
    from flowpregel.checkpoint.durable import (  # noqa: PLC0415 - keeps --help fast
        PoolRequest,
    )

    owner = saver.owner(thread)
    if owner is None:
        raise ConfigurationError(f"nothing runs on thread {thread!r}")
    request = PoolRequest(workers, nice, owner)
    if workers is None and nice is None:
        return _answer(saver, thread, request, deadline)
    saver.request_pool(thread, request)
    try:
        return _answer(saver, thread, request, deadline)
    finally:
        saver.request_pool(thread, None)


def _answer(
    saver: DurableSaver,
    thread: str,
    request: PoolRequest,
    deadline: float,
) -> Sequence[Mapping[str, Any]] | None:
    """Return the pools of a run once they have the requested size. Return None if
    *deadline* passes, or the run ends, before that.
    """
    from flowpregel._inspection.reader import StoreReader  # noqa: PLC0415

    with closing(StoreReader(saver)) as reader:
        while time.monotonic() < deadline and saver.owner(thread) is not None:
            live = reader.live(thread)
            pools: Sequence[Mapping[str, Any]] = (live and live["pools"]) or ()
            if pools and all(_fits(pool, request) for pool in pools):
                return pools
            time.sleep(_PERIOD)
    return None


def _fits(pool: Mapping[str, Any], request: PoolRequest) -> bool:
    """Return whether a pool has the requested size."""
    return request.workers in (None, pool["workers"]) and request.nice in (
        None,
        pool["nice"],
    )
