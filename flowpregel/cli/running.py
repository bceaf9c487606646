"""The commands that run something, or stop it: run, resume, answer, cancel."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from flowpregel._core.commands import Command
from flowpregel.cli import console, targets
from flowpregel.cli.console import Code
from flowpregel.cli.preview import one_line
from flowpregel.cli.runs import RunRequest, perform
from flowpregel.errors import ConfigurationError, EmptyInputError

_PERIOD = 0.05
_WAIT = "Wait for its end this many seconds; 0 only asks."
_INPUT = "What the flow is given: JSON, @FILE with JSON in it, or @- for stdin."
_FLOW = "The flow; by default the one that `flowpregel run` recorded."
_FLOW_OPTION = click.Option(["--flow"], metavar="MODULE:FLOW", help=_FLOW)
_RUN_OPTIONS = (
    click.Option(["--quiet"], is_flag=True, help="Show no progress."),
    click.Option(["--traceback"], is_flag=True, help="Show where a failed run failed."),
    click.Option(
        ["--max-concurrency"],
        type=click.IntRange(min=1),
        metavar="N",
        help="At most N tasks at a time.",
    ),
)


@console.store_command(*_RUN_OPTIONS)
@click.argument("flow", metavar="MODULE:FLOW")
@click.option("--input", "given", metavar="JSON|@FILE", required=True, help=_INPUT)
@click.option("--thread-id", metavar="THREAD", help="The thread; by default the flow's name.")
def run(flow: str, given: str, thread_id: str | None, **options: Any) -> Code:
    """Run a flow, or go on with its thread's unfinished run.

    MODULE:FLOW is package.module:flow or path/to/file.py:flow. A run that was
    stopped or killed is run again by the same command: it goes on, and what
    had finished is not done again.
    """
    value = _input(given)
    if thread_id is None:
        thread_id = targets.load_flow(flow).name
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


@console.store_command(_FLOW_OPTION, *_RUN_OPTIONS)
@click.argument("thread")
def resume(thread: str, flow: str | None, **options: Any) -> Code:
    """Go on with a thread's unfinished run."""
    found = targets.recorded_flow(thread, flow, options["store"])
    try:
        return perform(RunRequest(flow=found, thread_id=thread, **options), None)
    except EmptyInputError as error:
        raise ConfigurationError(f"thread {thread!r} has no run to go on with") from error


@console.store_command(_FLOW_OPTION, *_RUN_OPTIONS)
@click.argument("thread")
@click.argument("value")
@click.option("--id", "interrupt_id", metavar="ID", help="Which question, if there are several.")
@click.option("--text", is_flag=True, help="VALUE is text, even where it looks like JSON.")
def answer(
    thread: str, value: str, interrupt_id: str | None, text: bool, flow: str | None, **options: Any
) -> Code:
    """Answer what a thread's run asks, and go on.

    VALUE is JSON; what is not JSON is text.
    """
    found = targets.recorded_flow(thread, flow, options["store"])
    with targets.flow_on(found, options["store"]) as app:
        questions = {each.id: each.value for each in app.get_state(thread_id=thread).interrupts}
    question = _chosen(questions, interrupt_id, thread)
    request = RunRequest(flow=found, thread_id=thread, **options)
    return perform(request, Command(resume={question: value if text else _json_or_text(value)}))


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _chosen(questions: dict[str, Any], interrupt_id: str | None, thread_id: str) -> str:
    if not questions:
        raise ConfigurationError(f"thread {thread_id!r} asks nothing")
    shown = "\n".join(f"  {key}  {one_line(value)}" for key, value in questions.items())
    if interrupt_id is None and len(questions) > 1:
        raise ConfigurationError(f"{len(questions)} questions wait; say which by --id:\n{shown}")
    chosen = next(iter(questions)) if interrupt_id is None else interrupt_id
    if chosen not in questions:
        raise ConfigurationError(f"no question has the id {chosen!r}; there are:\n{shown}")
    return chosen


@console.store_command()
@click.argument("thread")
@click.option("--wait", type=click.FloatRange(min=0), default=30.0, show_default=True, help=_WAIT)
def cancel(thread: str, wait: float, store: str | None) -> Code:
    """Stop a thread's run, in whatever process it is.

    What finished is kept. Tasks in worker processes are stopped. One that runs on an
    OS thread of the program ends first.
    """
    with targets.reading(store) as saver:
        targets.newest(saver, thread)
        owner = saver.cancel(thread)
        if owner is None:
            raise ConfigurationError(f"nothing runs on thread {thread!r}")
        deadline = time.monotonic() + wait
        while (runs := saver.owner(thread) == owner) and time.monotonic() < deadline:
            time.sleep(_PERIOD)
    told = {"thread_id": thread, "status": "asked" if runs else "stopped", "owner": str(owner)}
    if not runs or console.wants_json():
        console.print_result(told, f"stopped: {thread}; what finished is kept")
    else:
        console.note(f"{owner} was asked to stop {thread!r}, and has not yet")
    return Code.FAILED if runs and wait else Code.OK
