"""The command that tells before a run whether the code still fits what is kept: check."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from flowpregel._core.records import Saved
from flowpregel.cli import console, targets
from flowpregel.cli.console import Code

if TYPE_CHECKING:
    from flowpregel.pregel.pregel import Pregel


@click.command
@click.argument("store", envvar="FLOWPREGEL_STORE")
@click.argument("flow", metavar="[MODULE:FLOW]", required=False)
def check(store: str, flow: str | None) -> Code:
    """Show what unfinished runs would do with the code as it is now.

    The body of each is gone through with the recorded results; no task runs, and nothing
    is written. With MODULE:FLOW only its runs are, and those that do not record a flow.
    A run that a process has now is left out.

    The exit code is 1 if one would not go on as before: it would fail, use results of other
    code, or not ask for recorded calls.
    """
    from flowpregel.pregel.dry_replay import check_runs, owns  # noqa: PLC0415 - keeps --help fast

    given = None if flow is None else targets.load_flow(flow)

    def flow_of(saved: Saved) -> Pregel | None:
        if given is None:
            return targets.recorded_flow(saved)
        return given if owns(given, saved) else None

    # What bodies print is no result.
    with targets.writing(store) as saver, redirect_stdout(sys.stderr):
        found = dict(check_runs(saver, flow_of))
    rows = [{"thread_id": key, "fits": run.fits, **asdict(run)} for key, run in found.items()]
    misfits = sum(not run.fits for run in found.values())
    lines = [f"{key}\n{run}".replace("\n", "\n  ") for key, run in found.items()]
    console.print_result(
        rows, *lines, f"unfinished runs: {len(found):,}; do not fit the code: {misfits:,}"
    )
    return Code.FAILED if misfits else Code.OK


check.params += [console.TRUST, console.AS_JSON]
