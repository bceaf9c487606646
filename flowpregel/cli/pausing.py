"""The commands that pause runs: pause, unpause."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from flowpregel._inspection.inert import InertCodec
from flowpregel._text import in_one_line
from flowpregel.checkpoint.base import FLOW
from flowpregel.checkpoint.paused import PausedRuns
from flowpregel.cli import console, targets
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

_THREADS = click.argument("threads", metavar="[RUN]...", nargs=-1)


@console.store_command("pause")
@_THREADS
@click.option(
    "--flow",
    "flows",
    multiple=True,
    metavar="MODULE:FLOW",
    help="Pause all runs of this flow, also later ones; repeatable.",
)
@click.option("--all", "everything", is_flag=True, help="Pause all runs.")
def pause_command(
    threads: tuple[str, ...],
    flows: tuple[str, ...],
    everything: bool,
    store: str | None,
) -> None:
    """Keep `work` from taking runs.

    The runs are single ones, those of a flow (--flow), or all (--all). A process of
    `work` that runs one of them lets its running calls end, and stops the run. What
    finished is kept. `unpause` ends the pause. Programs that call `flow.run` are not
    affected.
    """
    _check_selection(threads, flows, everything=everything)
    with targets.open_to_write(store, InertCodec()) as saver:
        for thread in threads:
            targets.newest_checkpoint(saver, thread)
        saver.pause(threads, flows=flows, everything=everything)
        record = _paused_record(saver.paused())
        unknown = _flows_without_runs(saver, flows)
    console.print_result(record, f"paused: {_selected(threads, flows, everything)}")
    for flow in unknown:
        console.print_note(f"no run of {flow!r} is in the store yet; later ones pause")


@console.store_command("unpause")
@_THREADS
@click.option(
    "--flow",
    "flows",
    multiple=True,
    metavar="MODULE:FLOW",
    help="End the pause of this flow; repeatable.",
)
@click.option(
    "--all", "everything", is_flag=True, help="End all pauses, of flows and runs too."
)
def unpause_command(
    threads: tuple[str, ...],
    flows: tuple[str, ...],
    everything: bool,
    store: str | None,
) -> None:
    """Let `work` take runs that were paused or cancelled.

    A run that `cancel` has stopped is paused until then, too.
    """
    _check_selection(threads, flows, everything=everything)
    with targets.open_to_write(store, InertCodec()) as saver:
        infos = [targets.newest_checkpoint(saver, thread) for thread in threads]
        paused_flows = saver.paused().flows
        saver.unpause(threads, flows=flows, everything=everything)
        paused = saver.paused()
    console.print_result(
        _paused_record(paused),
        f"unpaused: {_selected(threads, flows, everything)}",
    )
    for flow in flows:
        if flow not in paused_flows:
            console.print_note(f"the flow {flow!r} was not paused")
    for saved in infos:
        thread = saved.address.thread_id
        metadata = saved.checkpoint.metadata
        match paused.reason(thread, metadata):
            case "all":
                console.print_note("all runs are still paused: `unpause --all`")
            case "flow":
                flow = metadata[FLOW]
                name = in_one_line(thread)
                console.print_note(f"{name}: its flow is still paused: {flow}")


def end_pause(
    saver: Any,
    thread: str,
) -> None:
    """End the pause of a single run that the user resumes."""
    from flowpregel.checkpoint.durable import (  # noqa: PLC0415 - keeps --help fast
        DurableSaver,
    )

    if isinstance(saver, DurableSaver) and thread in saver.paused().threads:
        saver.unpause([thread])


def _flows_without_runs(saver: DurableSaver, flows: Collection[str]) -> list[str]:
    """Return those of *flows* of which the store has no run."""
    if not flows:
        return []
    known = [thread.metadata.get(FLOW) for thread in saver.threads()]
    return [flow for flow in flows if flow not in known]


def _check_selection(
    threads: tuple[str, ...],
    flows: tuple[str, ...],
    *,
    everything: bool,
) -> None:
    """Raise an error unless the arguments select either some runs or all runs.

    Raises:
        ConfigurationError: They select nothing, or everything and something more.
    """
    is_some = bool(threads or flows)
    if is_some == everything:
        raise ConfigurationError("which runs? pass RUN, --flow MODULE:FLOW, or --all")


def _selected(
    threads: tuple[str, ...],
    flows: tuple[str, ...],
    everything: bool,
) -> str:
    """Return the selected runs as text."""
    if everything:
        return "all runs"
    return ", ".join(map(in_one_line, [*threads, *flows]))


def _paused_record(paused: PausedRuns) -> dict[str, Any]:
    """Return what is paused in a store, for JSON."""
    return {
        "all": paused.everything,
        "flows": sorted(paused.flows),
        "runs": sorted(paused.threads),
    }
