"""``flowpregel fork``: a thread copied, as it is or as it was."""

from __future__ import annotations

import click

from flowpregel.cli.flows import FLOW, load_flow
from flowpregel.cli.options import flow_option, json_option, store_option, thread_argument
from flowpregel.cli.output import tell, tell_json
from flowpregel.cli.points import find
from flowpregel.cli.running import recorded_flow
from flowpregel.cli.stores import newest, writing


@click.command()
@thread_argument
@click.argument("new_thread")
@click.option(
    "--at",
    "checkpoint",
    metavar="CHECKPOINT",
    help="Go on from here: a step, or an id's beginning.",
)
@flow_option("With --at, the flow; by default the one that `flowpregel run` recorded.")
@store_option
@json_option
def command(
    thread: str,
    new_thread: str,
    checkpoint: str | None,
    flow: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Copy a thread, with its history, to NEW_THREAD.

    With --at, what the copy does next is what came after that checkpoint.
    """
    name = None if checkpoint is None else recorded_flow(thread, flow, store)
    found = None if name is None else load_flow(name)
    with writing(store) as saver:
        newest(saver, thread)
        point = None if checkpoint is None else find(saver, thread, checkpoint).checkpoint.id
        saver.copy_thread(thread, new_thread)
        if found is not None and point is not None:
            copied = found.copy({"checkpointer": saver})
            copied.update_state(
                thread_id=new_thread,
                checkpoint_id=point,
                as_node="__copy__",
                metadata={FLOW: name},
            )
        made = newest(saver, new_thread).checkpoint
    if as_json:
        tell_json({"thread_id": new_thread, "checkpoint": made.id, "step": made.step})
    else:
        tell(f"thread {new_thread} stands at step {made.step}, checkpoint {made.id}")
