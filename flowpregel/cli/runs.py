"""Runs a flow for a command: shows its progress, prints its end, returns an exit code."""

from __future__ import annotations

import shlex
import sys
import time
import traceback
from contextlib import closing, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flowpregel.cli.console import Code, is_refusal, note, print_json, print_line, wants_json
from flowpregel.cli.preview import FULL, Limits, one_line, plain
from flowpregel.cli.targets import FLOW, flow_on
from flowpregel.errors import TaskCancelled

if TYPE_CHECKING:
    from flowpregel.pregel.pregel import Pregel

_RESULT = Limits(depth=6, count=50, size=2_000, total=2_000)


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a command was asked to run, and how."""

    flow: str
    """``MODULE:FLOW``."""
    thread_id: str | None
    """None: the run keeps nothing."""
    store: str | None
    quiet: bool
    traceback: bool
    max_concurrency: int | None

    def command(self, name: str, *words: str) -> str:
        """Return the command line that goes on with this run."""
        # Without --store the flow must be named: its own checkpointer is the store.
        store = ["--flow", self.flow] if self.store is None else ["--store", self.store]
        return shlex.join(["flowpregel", name, str(self.thread_id), *words, *store])

    @property
    def kept(self) -> str:
        """What is said of a run that did not come to its end."""
        if self.thread_id is None:
            return "nothing is kept"
        return f"what finished is kept; go on with: {self.command('resume')}"


def perform(request: RunRequest, given: Any, **asked: Any) -> Code:
    """Run a flow on *given*, print how it ended, and return the exit code."""
    from flowpregel.checkpoint.base import BaseCheckpointSaver  # noqa: PLC0415 - keeps --help fast

    if request.max_concurrency is not None:
        asked["max_concurrency"] = request.max_concurrency
    try:
        with flow_on(request.flow, request.store) as flow:
            if isinstance(flow.checkpointer, BaseCheckpointSaver):
                asked["thread_id"] = request.thread_id
            else:
                asked.pop("resume", None)
                request = replace(request, thread_id=None)
                note("no store: what this run does is not kept (pass --store PATH to keep it)")
            output, interrupts = _followed(flow, request, given, asked)
    except KeyboardInterrupt:
        return _stopped(request)
    except TaskCancelled as error:
        return _stopped(request, error.reason)
    except Exception as error:
        if is_refusal(error):
            raise
        return _failed(request, error)
    return _waiting(request, interrupts) if interrupts else _done(request, output)


def _followed(
    flow: Pregel, request: RunRequest, given: Any, asked: dict[str, Any]
) -> tuple[Any, tuple[Any, ...]]:
    """Run to the end; return the output, and the questions that wait for an answer."""
    from flowpregel.cli.progress import RunView  # noqa: PLC0415 - keeps --help fast

    output, interrupts = None, ()
    parts: Any = flow.stream(
        given,
        version="v2",
        stream_mode=["debug", "custom", "progress", "values"],
        output_keys=flow.output_channels,
        metadata={FLOW: request.flow},
        **asked,
    )
    # What tasks print is no result: stdout is for that alone.
    shown = nullcontext() if request.quiet else RunView(time.monotonic)
    with redirect_stdout(sys.stderr), shown as view, closing(parts):
        for part in parts:
            if part["type"] == "values":
                output, interrupts = part["data"], tuple(part["interrupts"])
            elif view is not None:
                view.event(part["type"], part["data"])
    return output, interrupts


def _done(request: RunRequest, output: Any) -> Code:
    _print_status(request, "done", output=plain(output, FULL))
    if not wants_json():
        print_line(one_line(output, _RESULT))
    return Code.OK


def _waiting(request: RunRequest, interrupts: tuple[Any, ...]) -> Code:
    questions = [{"id": each.id, "value": plain(each.value, FULL)} for each in interrupts]
    _print_status(request, "interrupted", interrupts=questions)
    if not wants_json():
        for each in interrupts:
            print_line(f"waits for an answer to {each.id}: {one_line(each.value)}")
    note(f"answer with: {request.command('answer', 'VALUE')}")
    return Code.WAITING


def _failed(request: RunRequest, error: Exception) -> Code:
    notes = [str(line) for line in getattr(error, "__notes__", [])]
    told = {"type": type(error).__name__, "message": str(error), "notes": notes}
    _print_status(request, "failed", error=told)
    if request.traceback:
        note("".join(traceback.format_exception(error)).rstrip())
    else:
        note("\n".join([f"failed: {type(error).__name__}: {error}", *notes]))
    if request.thread_id is not None:
        note(request.kept)
    return Code.FAILED


def _stopped(request: RunRequest, why: str = "") -> Code:
    """Print that the run was ended by Ctrl-C, or by another process for the reason *why*."""
    _print_status(request, "stopped")
    if why:
        note(why)
    note(f"stopped; {request.kept}")
    return Code.STOPPED


def _print_status(request: RunRequest, status: str, **more: Any) -> None:
    if wants_json():
        print_json({"status": status, "thread_id": request.thread_id, **more})
