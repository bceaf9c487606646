"""Requests to run a flow, and their execution.

`run_flow` shows the progress of a run, prints the result, and returns an exit code.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from flowpregel import errors
from flowpregel._core.commands import Interrupt
from flowpregel._inspection.preview import (
    FULL,
    PreviewLimits,
    one_line,
    question_to_json,
    to_json,
)
from flowpregel._inspection.situations import is_pause
from flowpregel._shell import command_line, command_words
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.cli import console, targets
from flowpregel.cli.console import Code, exit_code_of, print_note
from flowpregel.cli.job_limit import print_limit, seconds_of_job
from flowpregel.cli.pausing import end_pause
from flowpregel.runtime import SLEEPS_UNTIL

if TYPE_CHECKING:
    from flowpregel.pregel.pregel import Pregel

_RESULT = PreviewLimits(
    depth=6,
    count=50,
    size=2_000,
    total=2_000,
)
"""The limits on the size of a result that is printed as text."""
_COMMAND_OPTIONS = ("store", "quiet", "traceback")
"""The options of the command that are not options of the run."""


@dataclass(frozen=True)
class RunRequest:
    """A flow to run, and the options of the run."""

    flow: Pregel
    name: str | None
    """``MODULE:FLOW`` from the command line, or None for the flow that the run
    recorded.
    """
    thread_id: str | None
    """The id of the thread, or None if the run is not stored."""
    options: Mapping[str, Any]
    """The ``store``, and the values of `RUN_OPTIONS`."""

    def command(self, name: str, *arguments: str) -> str:
        """Return the command line of a command for this run.

        Args:
            name: The name of the command.
            arguments: The arguments that follow the thread's id.
        """
        # Without ``--store``, the advice must name the flow, because the store is the
        # flow's checkpointer.
        store = self.options["store"]
        location = ["--store", store]
        if store is None:
            location = ["--flow", str(self.name)]
        words = command_words(name, str(self.thread_id), *arguments)
        return command_line(words, location)

    @property
    def advice(self) -> str:
        """Advice on how to resume a run that did not finish."""
        if self.thread_id is None:
            return "nothing is kept"
        return f"finished work is kept; resume with: {self.command('resume')}"

    def print_end(self, code: Code, *texts: str, **more: Any) -> Code:
        """Print the status with which the run ended, and return *code*.

        Args:
            code: The exit code of the command.
            texts: The lines to print without ``--json``.
            more: Further fields of the JSON object that ``--json`` prints.
        """
        record = {
            "status": console.STATUSES[code],
            "thread_id": self.thread_id,
            **more,
        }
        console.print_result(record, *texts)
        return code


def run_flow(
    request: RunRequest,
    flow_input: Any,
    *,
    resume: Any = None,
) -> Code:
    """Run a flow, print its result or error, and return the exit code.

    Args:
        request: The flow and the options.
        flow_input: The input of the flow.
        resume: ``"auto"`` or the flow's `RunIdentity`, with which a stored run of this
            id is resumed. None if only *flow_input* decides whether it is.

    Raises:
        click.exceptions.Exit: This command was stopped, and not only the run, so it
            must not start another run.
    """
    from flowpregel.cli.watching import run_to_end  # noqa: PLC0415 - keeps --help fast

    try:
        with targets.flow_on(request.flow, request.options["store"]) as flow:
            if not isinstance(flow.checkpointer, BaseCheckpointSaver):
                resume = None
                request = replace(request, thread_id=None)
                print_note(
                    "no store: this run is not recorded (pass --store PATH to record "
                    "it)"
                )
            else:
                end_pause(flow.checkpointer, str(request.thread_id))
            output, interrupts = run_to_end(
                flow,
                flow_input,
                _run_options(request),
                resume,
                is_quiet=request.options["quiet"],
            )
    except (KeyboardInterrupt, errors.TaskCancelled) as error:
        return _print_stopped(request, error)
    except Exception as error:
        if exit_code_of(error) is not Code.FAILED:
            raise
        return _print_failed(request, error)
    if interrupts:
        return _print_waiting(request, interrupts)
    return request.print_end(
        Code.OK,
        one_line(output, _RESULT),
        output=to_json(output, FULL),
    )


def _run_options(request: RunRequest) -> dict[str, Any]:
    """Return the options of the run that *request* describes."""
    options = dict(request.options)
    for name in _COMMAND_OPTIONS:
        options.pop(name, None)
    options["thread_id"] = request.thread_id
    own_limit = request.flow.definition.run_options.get("stop_after")
    if options.get("stop_after") is None and own_limit is None:
        options["stop_after"] = seconds_of_job(options)
        if options["stop_after"] is not None and not request.options["quiet"]:
            print_limit(options["stop_after"])
    return options


def _print_stopped(request: RunRequest, error: BaseException) -> Code:
    """Print that a run was stopped, and return the exit code.

    Raises:
        click.exceptions.Exit: This command was stopped, and not only the run.
    """
    code = Code.STOPPED
    if isinstance(error, errors.RunStopped):
        code = Code.AGAIN
    request.print_end(code)
    text = f"stopped; {request.advice}"
    reason = getattr(error, "reason", "")
    if reason:
        text = f"{reason}\n{text}"
    print_note(text)
    if type(error) is errors.TaskCancelled:
        # Another process has stopped only this run, by `flowpregel cancel`. So this
        # command does not exit here: it may have more runs to resume.
        return code
    raise click.exceptions.Exit(code) from error


def _print_failed(request: RunRequest, error: Exception) -> Code:
    """Print that a run failed, and return the exit code."""
    kind = type(error).__name__
    notes = [str(line) for line in getattr(error, "__notes__", [])]
    request.print_end(
        Code.FAILED,
        error={"type": kind, "message": str(error), "notes": notes},
    )
    if request.options["traceback"]:
        text = "".join(traceback.format_exception(error)).rstrip()
    else:
        text = "\n".join([f"failed: {kind}: {error}", *notes])
    print_note(text)
    if request.thread_id is not None:
        print_note(request.advice)
    return Code.FAILED


def _print_waiting(request: RunRequest, interrupts: Sequence[Interrupt]) -> Code:
    """Print the interrupts for which a run waits, and return the exit code."""
    lines = [_waiting_text(interrupt, request) for interrupt in interrupts]
    questions = [question_to_json(interrupt, FULL) for interrupt in interrupts]
    request.print_end(Code.WAITING, *lines, interrupts=questions)
    if not all(is_pause(interrupt.value) for interrupt in interrupts):
        print_note(f"answer with: {request.command('answer', 'VALUE')}")
    return Code.WAITING


def _waiting_text(interrupt: Interrupt, request: RunRequest) -> str:
    """Return a line about the question, time or signal for which a run waits."""
    if not is_pause(interrupt.value):
        return f"waits for an answer to {interrupt.id}: {one_line(interrupt.value)}"
    (kind, value) = next(iter(interrupt.value.items()))
    if kind == SLEEPS_UNTIL:
        return f"sleeps until {value}"
    return f"waits for a signal: {request.command('signal', str(value), 'VALUE')}"
