"""The command ``recover``, which resumes the runs whose process has died."""

from __future__ import annotations

from typing import Any, Final

import click

from flowpregel.cli import console, targets
from flowpregel.cli.console import Code
from flowpregel.cli.job_limit import seconds_of_job
from flowpregel.cli.options import RUN_OPTIONS
from flowpregel.cli.run_choices import AbandonedRuns
from flowpregel.cli.working import RunWorker

_PERIOD: Final = 1.0
"""Seconds between two reads of the store, if the command runs until no run remains."""
_COMMAND_OPTIONS: Final = ("store", "quiet", "on_conflict")
"""The options of the command that are not options of the runs."""


@console.store_command("recover", *RUN_OPTIONS)
@click.option(
    "--jobs",
    type=console.COUNT,
    metavar="N",
    default=1,
    show_default=True,
    help="Resume at most N runs at a time.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Keep looking for such runs at this interval, until stopped.",
)
@click.option(
    "--flow",
    metavar="MODULE:FLOW",
    help="The flow of runs that did not record theirs.",
)
def recover_command(
    jobs: int,
    every: float | None,
    flow: str | None,
    **options: Any,
) -> Code:
    """Resume the runs whose process has died, on any machine.

    A run counts as dead when its lease has expired (PostgresSaver(lease_ttl=...)), and
    the oldest run is resumed first. Recorded work is not done again. The program of the
    run is needed: its flow is imported here.

    With --every, the command waits while the store's server does not answer. After
    SIGTERM no more runs are resumed, and those under way have 20 seconds to end. A run
    that has failed is not resumed again, because a person must check it.
    """
    store = options["store"]
    for name in _COMMAND_OPTIONS:
        options.pop(name)
    # The store is opened for writing first. A process that has opened a store for
    # reading only cannot open it for writing afterwards.
    with targets.open_to_write(store) as saver, targets.open_to_read(store) as reader:
        worker = RunWorker(AbandonedRuns(reader, flow), saver, options=options)
        # ``--stop-after`` limits each run. The time limit of a cluster job limits the
        # whole command.
        job_seconds = None
        if options["stop_after"] is None:
            job_seconds = seconds_of_job(options)
        return worker.work(
            jobs,
            every or _PERIOD,
            until_empty=every is None,
            stop_after=job_seconds,
        )
