"""``flowpregel cancel``: stop a run, in whatever process it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from flowpregel.cli.codes import Code
from flowpregel.cli.options import json_option, store_option, thread_argument
from flowpregel.cli.output import note, tell, tell_json
from flowpregel.cli.stores import newest, reading
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel._lmdb.locks import Owner
    from flowpregel.checkpoint.lmdb import LMDBSaver

_PERIOD = 0.05


@click.command()
@thread_argument
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for its end; 0 only asks.",
)
@store_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, thread: str, wait: float, store: str | None, as_json: bool
) -> None:
    """Stop a thread's run, in whatever process it is; what finished is kept.

    Tasks in worker processes are stopped. One that runs on an OS thread of the
    program ends first.
    """
    with reading(store) as saver:
        newest(saver, thread)
        owner = saver.cancel(thread)
        if owner is None:
            raise ConfigurationError(f"nothing runs on thread {thread!r}")
        has_ended = _ends(saver, thread, owner, wait)
    status = "stopped" if has_ended else "asked"
    if as_json:
        tell_json({"thread_id": thread, "status": status, "owner": str(owner)})
    elif has_ended:
        tell(f"stopped: {thread}; what finished is kept")
    else:
        note(f"{owner} was asked to stop {thread!r}, and has not yet")
    ctx.exit(Code.OK if has_ended or not wait else Code.FAILED)


def _ends(saver: LMDBSaver, thread: str, owner: Owner, seconds: float) -> bool:
    """Wait for the end of the run of *owner*; return whether it came."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if saver.owner(thread) != owner:
            return True
        time.sleep(_PERIOD)
    return saver.owner(thread) != owner
