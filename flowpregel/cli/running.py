"""The commands that run something, or stop it: run, resume, answer, cancel."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flowpregel._core.records import Address
from flowpregel.cli.console import (
    Code,
    Function,
    flow_option,
    note,
    print_result,
    store_command,
    thread_argument,
    wants_json,
)
from flowpregel.cli.preview import one_line
from flowpregel.cli.runs import RunRequest, perform
from flowpregel.cli.status import work_of
from flowpregel.cli.targets import load_flow, newest, reading, recorded_flow
from flowpregel.errors import ConfigurationError, EmptyInputError

if TYPE_CHECKING:
    from flowpregel.checkpoint.lmdb import LMDBSaver

_PERIOD = 0.05
_recorded = flow_option("The flow; by default the one that `flowpregel run` recorded.")


def _run_options(function: Function) -> Function:
    for option in (
        click.option("--quiet", is_flag=True, help="Show no progress."),
        click.option("--traceback", is_flag=True, help="Show where a failed run failed."),
        click.option(
            "--max-concurrency",
            type=click.IntRange(min=1),
            metavar="N",
            help="Run at most N tasks at a time.",
        ),
    ):
        function = option(function)
    return function


@store_command
@click.argument("flow", metavar="MODULE:FLOW")
@click.option(
    "--input",
    "given",
    metavar="JSON|@FILE",
    required=True,
    help="What the flow is given: JSON, @FILE with JSON in it, or @- for stdin.",
)
@click.option(
    "--thread-id", metavar="THREAD", help="The thread to run on; by default the flow's name."
)
@_run_options
def run(flow: str, given: str, thread_id: str | None, **options: Any) -> Code:
    """Run a flow, or go on with its thread's unfinished run.

    MODULE:FLOW is package.module:flow or path/to/file.py:flow. A run that was
    stopped or killed is run again by the same command: it goes on, and what
    had finished is not done again.
    """
    value = _input(given)
    if thread_id is None:
        thread_id = load_flow(flow).name
    return perform(RunRequest(flow=flow, thread_id=thread_id, **options), value, resume="auto")


def _input(given: str) -> Any:
    """Return the value that ``--input`` names."""
    try:
        if given == "@-":
            given = sys.stdin.read()
        elif given.startswith("@"):
            given = Path(given[1:]).read_text("utf-8")
        value = json.loads(given)
    except OSError as error:
        raise ConfigurationError(f"--input: {error}") from error
    except ValueError as error:
        raise ConfigurationError(
            f"--input is not JSON: {error}; a text needs quotes of its own: '\"text\"'"
        ) from error
    if value is None:
        raise ConfigurationError(
            "--input is null, and a run needs input to start with; `flowpregel resume` goes on"
        )
    return value


@store_command
@thread_argument
@_recorded
@_run_options
def resume(thread: str, flow: str | None, **options: Any) -> Code:
    """Go on with a thread's unfinished run."""
    found = recorded_flow(thread, flow, options["store"])
    try:
        return perform(RunRequest(flow=found, thread_id=thread, **options), None)
    except EmptyInputError as error:
        raise ConfigurationError(f"thread {thread!r} has no run to go on with") from error


@store_command
@thread_argument
@click.argument("value")
@click.option("--id", "interrupt_id", metavar="ID", help="Which question, if there are several.")
@click.option("--text", is_flag=True, help="VALUE is text, even where it looks like JSON.")
@_recorded
@_run_options
def answer(
    thread: str, value: str, interrupt_id: str | None, text: bool, flow: str | None, **options: Any
) -> Code:
    """Answer what a thread's run asks, and go on.

    VALUE is JSON; what is not JSON is text.
    """
    from flowpregel._core.commands import Command  # noqa: PLC0415 - keeps --help fast

    found = recorded_flow(thread, flow, options["store"])
    question = _chosen(_questions(found, options["store"], thread), interrupt_id, thread)
    reply: Any = value
    if not text:
        try:
            reply = json.loads(value)
        except ValueError:
            reply = value
    command: Command[Any] = Command(resume={question: reply})
    return perform(RunRequest(flow=found, thread_id=thread, **options), command)


def _questions(flow: str, store: str | None, thread_id: str) -> dict[str, Any]:
    """Return the pending questions of a thread by their ids."""
    from flowpregel.checkpoint.base import BaseCheckpointSaver  # noqa: PLC0415 - keeps --help fast

    saved = None
    if store is not None:
        with reading(store) as saver:
            saved = saver.load(Address(thread_id))
    elif isinstance(own := load_flow(flow).checkpointer, BaseCheckpointSaver):
        saved = own.load(Address(thread_id))
    if saved is None:
        raise ConfigurationError(f"there is no thread {thread_id!r} to answer")
    return {item.id: item.value for work in work_of(saved) for item in work.interrupts}


def _chosen(questions: dict[str, Any], interrupt_id: str | None, thread_id: str) -> str:
    if not questions:
        raise ConfigurationError(f"thread {thread_id!r} asks nothing")
    shown = "\n".join(f"  {key}  {one_line(value)}" for key, value in questions.items())
    if interrupt_id is None:
        if len(questions) > 1:
            raise ConfigurationError(
                f"{len(questions)} questions wait; say which by --id:\n{shown}"
            )
        return next(iter(questions))
    if interrupt_id not in questions:
        raise ConfigurationError(f"no question has the id {interrupt_id!r}; there are:\n{shown}")
    return interrupt_id


@store_command
@thread_argument
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait this long for its end; 0 only asks.",
)
def cancel(thread: str, wait: float, store: str | None) -> Code:
    """Stop a thread's run, in whatever process it is; what finished is kept.

    Tasks in worker processes are stopped. One that runs on an OS thread of the
    program ends first.
    """
    with reading(store) as saver:
        newest(saver, thread)
        owner = saver.cancel(thread)
        if owner is None:
            raise ConfigurationError(f"nothing runs on thread {thread!r}")
        has_ended = _wait_for_end(saver, thread, owner, wait)
    told = {"thread_id": thread, "status": "stopped" if has_ended else "asked", "owner": str(owner)}
    if has_ended or wants_json():
        print_result(told, f"stopped: {thread}; what finished is kept")
    else:
        note(f"{owner} was asked to stop {thread!r}, and has not yet")
    return Code.OK if has_ended or not wait else Code.FAILED


def _wait_for_end(saver: LMDBSaver, thread: str, owner: Any, seconds: float) -> bool:
    """Wait for the end of the run of *owner*; return whether it came."""
    deadline = time.monotonic() + seconds
    while saver.owner(thread) == owner:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PERIOD)
    return True
