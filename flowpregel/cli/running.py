"""Runs a flow as a command does: shows its progress, prints its end, returns an exit code."""

from __future__ import annotations

import shlex
import sys
import time
import traceback
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowpregel.cli.codes import Code, is_refusal
from flowpregel.cli.flows import FLOW, load_flow
from flowpregel.cli.output import note, tell, tell_json
from flowpregel.cli.preview import FULL, Limits, one_line, plain
from flowpregel.cli.stores import existing, making, newest, reading
from flowpregel.cli.view import view_of
from flowpregel.errors import ConfigurationError, TaskCancelled

if TYPE_CHECKING:
    from flowpregel.pregel.pregel import Pregel

_RESULT = Limits(depth=6, count=50, size=2_000, total=2_000)


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What a command was asked to run, and how it is to tell of it."""

    flow: str
    """``MODULE:FLOW``."""
    thread_id: str
    store: str | None
    as_json: bool
    quiet: bool
    traceback: bool
    max_concurrency: int | None


def errand_of(flow: str, thread_id: str, options: dict[str, Any]) -> Errand:
    """Return what the options of `run_options` ask for."""
    return Errand(flow=flow, thread_id=thread_id, **options)


def with_store(flow: Pregel, store: str | None) -> Pregel:
    """Return *flow* with the store at *store*, or its own if that is None."""
    return flow if store is None else flow.copy({"checkpointer": making(store)})


def recorded_flow(thread_id: str, flow: str | None, store: str | None) -> str:
    """Return the flow that a thread's run is of: *flow*, or what the run recorded.

    Raises:
        ConfigurationError: It was not started by the command, so nothing is recorded.
    """
    if flow is not None:
        if store is not None:
            existing(store)
        return flow
    with reading(store) as saver:
        found = newest(saver, thread_id).checkpoint.metadata.get(FLOW)
    if not isinstance(found, str):
        raise ConfigurationError(
            f"thread {thread_id!r} does not say which flow it is of: pass --flow MODULE:FLOW"
        )
    return found


def perform(errand: Errand, given: Any, **asked: Any) -> Code:
    """Run the flow of *errand* on *given*, tell how it went, and return the exit code."""
    from flowpregel.checkpoint.base import BaseCheckpointSaver  # noqa: PLC0415 - keeps --help fast

    flow = with_store(load_flow(errand.flow), errand.store)
    keeps = isinstance(flow.checkpointer, BaseCheckpointSaver)
    if keeps:
        asked |= {"thread_id": errand.thread_id}
    else:
        asked.pop("resume", None)
        note("no store: what this run does is not kept (pass --store PATH to keep it)")
    if errand.max_concurrency is not None:
        asked["max_concurrency"] = errand.max_concurrency
    end = _End(errand, keeps)
    try:
        return end.reached(*_followed(flow, errand, given, asked))
    except KeyboardInterrupt:
        return end.stopped()
    except TaskCancelled as error:
        return end.stopped(error.reason)
    except Exception as error:
        if is_refusal(error):
            raise
        return end.failed(error)
    finally:
        if errand.store is not None and isinstance(flow.checkpointer, BaseCheckpointSaver):
            flow.checkpointer.close()


def _followed(
    flow: Pregel, errand: Errand, given: Any, asked: dict[str, Any]
) -> tuple[Any, tuple[Any, ...]]:
    """Run to the end; return the output, and what waits for an answer."""
    output, interrupts = None, ()
    parts = flow.stream(
        given,
        version="v2",
        stream_mode=["debug", "custom", "progress", "values"],
        output_keys=flow.output_channels,
        metadata={FLOW: errand.flow},
        **asked,
    )
    # What tasks print is no result: stdout is for that alone.
    with redirect_stdout(sys.stderr), view_of(time.monotonic, quiet=errand.quiet) as view:
        try:
            for part in parts:
                if part["type"] == "values":
                    output, interrupts = part["data"], tuple(part["interrupts"])
                else:
                    view.event(part["type"], part["data"])
        finally:
            parts.close()  # type: ignore[attr-defined]
    return output, interrupts


class _End:
    """Tells how a run ended, as text or as JSON."""

    def __init__(self, errand: Errand, keeps: bool) -> None:
        self._errand = errand
        self._keeps = keeps

    def reached(self, output: Any, interrupts: tuple[Any, ...]) -> Code:
        """Tell of a run that ended, or that waits."""
        if not interrupts:
            self._tell("done", output=plain(output, FULL))
            if not self._errand.as_json:
                tell(one_line(output, _RESULT))
            return Code.OK
        asked = [{"id": each.id, "value": plain(each.value, FULL)} for each in interrupts]
        self._tell("interrupted", interrupts=asked)
        if not self._errand.as_json:
            for each in interrupts:
                tell(f"waits for an answer to {each.id}: {one_line(each.value)}")
        note(f"answer with: {self._command('answer', 'VALUE')}")
        return Code.WAITING

    def failed(self, error: Exception) -> Code:
        """Tell of a run that raised."""
        notes = getattr(error, "__notes__", [])
        told = {"type": type(error).__name__, "message": str(error), "notes": [*notes]}
        self._tell("failed", error=told)
        if self._errand.traceback:
            note("".join(traceback.format_exception(error)).rstrip())
        else:
            for line in (f"failed: {type(error).__name__}: {error}", *notes):
                note(str(line))
        if self._keeps:
            note(f"what finished is kept; go on with: {self._command('resume')}")
        return Code.FAILED

    def stopped(self, why: str = "") -> Code:
        """Tell of a run that Ctrl-C ended, or *why* another did."""
        self._tell("stopped")
        if why:
            note(why)
        kept = f"what finished is kept; go on with: {self._command('resume')}"
        note(f"stopped; {kept}" if self._keeps else "stopped; nothing is kept")
        return Code.STOPPED

    def _tell(self, status: str, **more: Any) -> None:
        if self._errand.as_json:
            thread_id = self._errand.thread_id if self._keeps else None
            tell_json({"status": status, "thread_id": thread_id, **more})

    def _command(self, name: str, *more: str) -> str:
        errand = self._errand
        words = ["flowpregel", name, errand.thread_id, *more]
        # Without a store to look into, the flow must be named: it brings its own.
        words += ["--flow", errand.flow] if errand.store is None else ["--store", errand.store]
        return shlex.join(words)
