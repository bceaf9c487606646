"""``flowpregel answer``: answer what a run asks, and go on with it."""

from __future__ import annotations

import json
from typing import Any

import click

from flowpregel.cli.flows import load_flow
from flowpregel.cli.options import flow_option, run_options, thread_argument
from flowpregel.cli.preview import one_line
from flowpregel.cli.running import errand_of, perform, recorded_flow
from flowpregel.cli.stores import reading
from flowpregel.errors import ConfigurationError


@click.command()
@thread_argument
@click.argument("value")
@click.option("--id", "interrupt_id", metavar="ID", help="Which question, if there are several.")
@click.option("--text", is_flag=True, help="VALUE is text, even where it looks like JSON.")
@flow_option("The flow; by default the one that `flowpregel run` recorded.")
@run_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    thread: str,
    value: str,
    interrupt_id: str | None,
    text: bool,
    flow: str | None,
    **options: Any,
) -> None:
    """Answer what a thread's run asks, and go on.

    VALUE is JSON; what is not JSON is text.
    """
    from flowpregel._core.commands import Command  # noqa: PLC0415 - keeps --help fast

    found = recorded_flow(thread, flow, options["store"])
    answer = value if text else _value_of(value)
    asked = _asked(found, options["store"], thread)
    given: Command[Any] = Command(resume={_chosen(asked, interrupt_id, thread): answer})
    ctx.exit(perform(errand_of(found, thread, options), given))


def _value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _asked(flow: str, store: str | None, thread_id: str) -> dict[str, Any]:
    """Return the pending questions of a thread by their ids."""
    from flowpregel._core.records import Address  # noqa: PLC0415 - keeps --help fast
    from flowpregel.checkpoint.base import BaseCheckpointSaver  # noqa: PLC0415 - keeps --help fast
    from flowpregel.cli.status import work_of  # noqa: PLC0415 - keeps --help fast

    saved = None
    if store is not None:
        with reading(store) as saver:
            saved = saver.load(Address(thread_id))
    elif isinstance(own := load_flow(flow).checkpointer, BaseCheckpointSaver):
        saved = own.load(Address(thread_id))
    if saved is None:
        raise ConfigurationError(f"there is no thread {thread_id!r} to answer")
    return {item.id: item.value for work in work_of(saved) for item in work.interrupts}


def _chosen(asked: dict[str, Any], interrupt_id: str | None, thread_id: str) -> str:
    if not asked:
        raise ConfigurationError(f"thread {thread_id!r} asks nothing")
    shown = "\n".join(f"  {key}  {one_line(value)}" for key, value in asked.items())
    if interrupt_id is None:
        if len(asked) > 1:
            raise ConfigurationError(f"{len(asked)} questions wait; say which by --id:\n{shown}")
        return next(iter(asked))
    if interrupt_id not in asked:
        raise ConfigurationError(f"no question has the id {interrupt_id!r}; there are:\n{shown}")
    return interrupt_id
