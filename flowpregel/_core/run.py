"""A run: load, plan, superstep, update, commit, repeat, stop. A generator.

It yields effects and is sent their replies (see `effects`); it does no I/O, so
it can be stopped at any ``yield``, and is tested by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from flowpregel._core.barrier import barrier_of, breaks_before, changing, plan
from flowpregel._core.effects import CacheStore, Steps
from flowpregel._core.program import Options, Program
from flowpregel._core.records import LIMIT_REACHED, NOTHING_DUE, PAUSED, TASKS_DUE, Task
from flowpregel._core.replay import count_unreplayed
from flowpregel._core.run_state import Result, Run
from flowpregel._core.start import start
from flowpregel._core.superstep import Superstep
from flowpregel.channels.base import read
from flowpregel.errors import (
    GraphDrained,
    GraphRecursionError,
    InvalidUpdateError,
    ParentCommand,
)

_NODE = attrgetter("node")

observer: Callable[[Steps, Program, Options], Steps] | None = None
"""What sees the effects of each run pass, and their replies; None: nothing does."""


def run_program(
    program: Program, options: Options, given: Any, *, observed: bool = False
) -> Steps:
    """Run *program* on *given* until no task is due; return its `Result`.

    Args:
        program: The nodes and channels.
        options: Its address and limits, and the stream modes that are read.
        given: The input; None goes on; a `Command` answers, writes or goes somewhere.
        observed: Whether the `observer` sees it already.

    Raises:
        GraphRecursionError: It used up its supersteps.
        GraphDrained: It was asked to stop at a barrier.
        TaskCancelled: It was stopped at once.
        ParentCommand: A node commands the graph around this one.
        InvalidUpdateError: A node wrote what cannot be, or commands a graph around that
            is not.
        Exception: What a task raised when it would not be tried again.
    """
    if observer is not None and not observed:
        steps = run_program(program, options, given, observed=True)
        return (yield from observer(steps, program, options))
    now = yield from start(program, options, given)
    try:
        result = yield from _repeat(now)
    except GeneratorExit:
        raise
    except BaseException as error:
        # What has not been kept by now is shown to nobody.
        now.after.clear()
        if now.claimed:
            # The outermost run may go on, and try again: nobody may wait for this one's
            # results.
            yield CacheStore(dict.fromkeys(now.claimed))
        is_over = isinstance(error, GraphRecursionError)
        yield from now.leave(LIMIT_REACHED if is_over else TASKS_DUE)
        yield from now.replay_report.notices()
        if isinstance(error, ParentCommand) and options.nested is None:
            raise InvalidUpdateError(
                "There is no parent graph: a node of the outermost graph returned "
                f"{error.command}"
            ) from None
        raise
    yield from now.replay_report.notices()
    return result


def _repeat(run: Run) -> Steps:
    """Repeat supersteps until none is due, or the run stops to ask."""
    options = run.options
    while True:
        setting, is_over = run.setting(), run.step > run.stop
        tasks = [] if is_over else plan(run.program, run.state, run.updated, setting)
        if run.stream_events.wants_checkpoints:
            yield from _show_checkpoint(run, tasks)
        if is_over:
            raise GraphRecursionError(options.recursion_limit)
        if not tasks:
            return (yield from _finish(run))
        before, after = options.interrupt_before, options.interrupt_after
        if before and breaks_before(run.state, map(_NODE, tasks), before):
            return (yield from _pause(run))
        if (reason := options.drain()) is not None:
            raise GraphDrained(reason)
        if run.stopped is not None:
            raise run.stopped.error
        if (yield from Superstep(run, tasks, setting).go()):
            return (yield from _ask(run, tasks))
        yield from _end(run, tasks)
        if after and breaks_before(run.state, map(_NODE, tasks), after):
            yield from _show_checkpoint(run, None)
            return (yield from _pause(run))
        run.hand_back, run.resuming = True, False


def _finish(run: Run) -> Steps:
    """End a run that has nothing left to do."""
    options = run.options
    # At exit, nobody looks at a nested run that is over: its result is its task's.
    if not (run.at_exit and options.nested is not None and ":" in options.namespace):
        yield from run.leave(NOTHING_DUE)
    return Result(run.output, tuple(run.interrupts.values()))


def _end(run: Run, tasks: list[Task]) -> Steps:
    """Apply what the tasks wrote, or leave the state as it was; show it, and keep
    it.
    """
    if run.replay_report.is_changed:
        count_unreplayed(run)
    outputs = barrier_of(tasks)
    before = run.state
    if run.at_exit:
        # Its one checkpoint is made at the end, and a barrier that fails is no part of
        # it.
        before = run.state.copy(changing(run.program, run.state, outputs))
    try:
        applied = run.apply(outputs)
    except BaseException:
        # The tasks are done all the same, and what they wrote is kept.
        run.state = before
        yield from run.flush()
        raise
    run.updated = applied.updated
    run.show(applied)
    yield from run.save("loop", run.follows(map(_NODE, tasks)))


def _pause(run: Run) -> Steps:
    """Stop at a breakpoint or an interrupt."""
    # A run that stops and asks nothing is shown once, also if a graph inside of it
    # stopped.
    if not run.interrupts and run.options.nested is None:
        run.after.extend(run.stream_events.breakpoint())
    yield from run.leave(PAUSED)
    asked, questions = tuple(run.interrupts.values()), tuple(run.questions.values())
    return Result(run.output, asked, paused=True, questions=questions)


def _ask(run: Run, tasks: list[Task]) -> Steps:
    """Stop at interrupts, and show what the tasks that are done wrote."""
    outputs = barrier_of(task for task in tasks if task.writes)
    if outputs:
        before, unsaved = (
            run.state.copy(changing(run.program, run.state, outputs)),
            run.unsaved,
        )
        try:
            run.show(run.apply(outputs))
        finally:
            run.state, run.unsaved = before, unsaved
    return (yield from _pause(run))


def _show_checkpoint(run: Run, tasks: list[Task] | None) -> Steps:
    """Show the stream the checkpoint that the run is at; None: its *tasks* are to be
    planned.
    """
    address = run.options.address
    if address is None or not run.stream_events.wants_checkpoints:
        return
    if tasks is None:
        tasks = plan(run.program, run.state, run.updated, run.setting())
    parent = run.parent_id and checkpoint_config(
        address.thread_id, address.namespace, run.parent_id
    )
    metadata = {"parents": {}, **run.options.metadata}
    payload = {
        "config": checkpoint_config(
            address.thread_id, address.namespace, run.checkpoint_id
        ),
        "parent_config": parent,
        "values": read(run.state.channels, run.program.stream_channels),
        "metadata": {"source": run.source, "step": run.step - 1} | metadata,
        "next": [task.name for task in tasks],
        "tasks": [
            run.stream_events.task_entry(
                task, run.pending.get(task.id, ()), address.thread_id
            )
            for task in tasks
        ],
    }
    shown = run.stream_events.wrapped(
        "checkpoints", "checkpoint", payload, run.step - 1, run.now
    )
    yield from shown


def checkpoint_config(
    thread_id: str, namespace: str, checkpoint_id: str | None
) -> dict[str, Any]:
    """Return the config that addresses a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }
