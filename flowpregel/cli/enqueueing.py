"""The command ``enqueue``, which hands a run to the processes of ``work``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from flowpregel._shell import command_line, command_words
from flowpregel._stores import store_plugin_at
from flowpregel._text import in_one_line
from flowpregel.checkpoint.base import FLOW
from flowpregel.cli import console, targets
from flowpregel.cli.console import Code, print_note
from flowpregel.cli.consumers import (
    consumer_records,
    consumer_text,
    consumers_of,
    refusals,
)
from flowpregel.cli.options import INPUT_OPTIONS
from flowpregel.cli.starting import flow_arguments
from flowpregel.cli.typed_arguments import load_flow_with_input
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver, QueueConsumer
    from flowpregel.pregel.pregel import Pregel

_NEXT_COMMANDS = ("watch", "logs", "cancel")
"""The commands for a run that was enqueued, in the order in which they are printed."""


@console.store_command("enqueue", *INPUT_OPTIONS)
@click.argument("flow", metavar="MODULE:FLOW")
@click.option(
    "--id",
    "thread_id",
    metavar="ID",
    help="The id of the run; by default the flow's name.",
)
@click.option(
    "--priority",
    type=int,
    default=0,
    show_default=True,
    help="A run with a greater number begins first.",
)
@click.option(
    "--remote",
    is_flag=True,
    help="Refuse a store that only this machine can reach.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Follow the run until it ends, and exit with the code for its status.",
)
def enqueue_command(
    flow: str,
    thread_id: str | None,
    priority: int,
    remote: bool,
    wait: bool,
    store: str | None,
    **options: Any,
) -> Code:
    """Record a run of a workflow, for a `work` process to begin.

    If the store has a run with this id and the same input, nothing is changed. If the
    store is a database that other machines can reach, the run needs neither this
    command nor this machine any longer: --remote refuses any other store. Ctrl-C ends
    --wait, but not the run.
    """
    loaded, run_input = load_flow_with_input(flow, options)
    if not hasattr(loaded, "enqueue"):
        raise ConfigurationError(f"{flow} is a graph, and only workflows are enqueued")
    arguments = flow_arguments(loaded, run_input)
    with targets.flow_on(loaded, store) as flow_on_store:
        saver = _shared_saver(flow_on_store, remote=remote)
        stored: Any = flow_on_store
        enqueued = stored.enqueue(
            *arguments.args,
            **arguments.kwargs,
            id=loaded.name if thread_id is None else thread_id,
            priority=priority,
        )
        run = _EnqueuedRun(saver, enqueued, store or saver.location)
        if not wait:
            console.print_result(run.to_json(), *run.lines())
            return Code.OK
        # These lines go to stderr, because stdout shows only how the run has ended.
        for line in run.lines():
            print_note(line)
        return run.follow()


def _shared_saver(flow: Pregel, *, remote: bool) -> DurableSaver:
    """Return the store of a flow.

    Raises:
        ConfigurationError: The flow has no store on disk, or *remote* is true and only
            this machine can reach the store.
    """
    from flowpregel.checkpoint.durable import (  # noqa: PLC0415 - keeps --help fast
        DurableSaver,
    )

    saver = flow.checkpointer
    if not isinstance(saver, DurableSaver):
        raise ConfigurationError(
            "no process of `flowpregel work` could take the run, because the flow has "
            "no store on disk: pass --store"
        )
    if remote and store_plugin_at(saver.location).is_local(saver.location):
        raise ConfigurationError(
            f"only this machine can reach the store at {saver.path}, so no other "
            "machine can take the run: pass --store postgresql://user@host/database, "
            "or leave --remote out"
        )
    return saver


@dataclass(frozen=True, slots=True)
class _EnqueuedRun:
    """A run that was enqueued, or that the store had already."""

    saver: DurableSaver
    thread_id: str
    store: str
    """The store to name in commands."""

    @property
    def status(self) -> str:
        """The status of the run."""
        thread = self.saver.thread(self.thread_id)
        return "enqueued" if thread is None else thread.status

    @property
    def consumers(self) -> list[QueueConsumer]:
        """The processes of `work` that take the run."""
        thread = self.saver.thread(self.thread_id)
        flow = None if thread is None else thread.metadata.get(FLOW)
        return consumers_of(self.saver, flow)

    def command(self, name: str, *arguments: str) -> str:
        """Return the line of a command on the store of the run."""
        words = command_words(name, *arguments)
        return command_line(words, ["--store", self.store])

    def commands(self) -> dict[str, str]:
        """Return the command lines that the user may need next, by command name."""
        return {name: self.command(name, self.thread_id) for name in _NEXT_COMMANDS}

    def to_json(self) -> dict[str, Any]:
        """Return the facts about the run, as values for JSON."""
        return {
            "thread_id": self.thread_id,
            "status": self.status,
            "store": self.saver.path,
            "consumers": consumer_records(self.consumers),
            "commands": self.commands(),
        }

    def lines(self) -> list[str]:
        """Return the status of the run, the process that will begin it, and the
        commands for it.
        """
        status = self.status
        lines = [f"{status}: {in_one_line(self.thread_id)}"]
        consumers = self.consumers
        if status == "enqueued" and consumers:
            lines.append(f"taken by: {consumer_text(consumers)}")
            lines += refusals(consumers, self.thread_id)
        elif status == "enqueued":
            work = self.command("work")
            lines.append(f"no process of `flowpregel work` takes it now: {work}")
        lines += [f"{name}: {command}" for name, command in self.commands().items()]
        return lines

    def follow(self) -> Code:
        """Show the run until it ends, and return the exit code for its status."""
        from flowpregel.cli.watching import (  # noqa: PLC0415 - keeps --help fast
            follow_run,
        )

        try:
            return follow_run(self.saver, self.thread_id, self.store)
        except KeyboardInterrupt:
            watch = self.command("watch", self.thread_id)
            print_note(f"the run continues; watch it: {watch}")
            raise
