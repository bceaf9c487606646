"""The text that the calls of a run have printed and logged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowpregel._core.records import Address
from flowpregel.checkpoint.call_output import CallOutput
from flowpregel.cli import targets

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver


def output_of_last_run(
    saver: DurableSaver,
    thread_id: str,
    *,
    wait: bool,
) -> Iterator[CallOutput]:
    """Yield the output of all calls of a thread's last run, including nested graphs.

    Args:
        saver: The open store.
        thread_id: The id of the thread.
        wait: True to accept a thread that has no checkpoints yet.

    Raises:
        ConfigurationError: There is no such thread, and *wait* is False.
    """
    # Imported here to keep `flowpregel --help` fast.
    from flowpregel._inspection.run_tasks import last_run  # noqa: PLC0415

    history = last_run(saver, Address(thread_id))
    if not history:
        if not wait:
            targets.newest_checkpoint(saver, thread_id)
        return
    first_checkpoint = history[0].checkpoint
    for address in saver.namespaces(thread_id):
        for output in saver.kept_output(address):
            if output.began >= first_checkpoint.at:
                yield output
