"""A run: load, plan, superstep, update, commit, repeat, stop. A generator.

It yields effects and is sent their replies (see `effects`); it does no I/O, so
it can be stopped at any ``yield``, and is tested by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowpregel._core.begin import begin
from flowpregel._core.effects import Effect
from flowpregel._core.narrator import task_entry
from flowpregel._core.plan import breaks_before, plan
from flowpregel._core.program import Options, Program
from flowpregel._core.progress import Result, Run, Steps
from flowpregel._core.records import Task
from flowpregel._core.state import read
from flowpregel._core.superstep import Superstep
from flowpregel._core.update import Applied, apply, barrier_of, changing
from flowpregel.errors import (
    GraphDrained,
    GraphRecursionError,
    InvalidUpdateError,
    ParentCommand,
)

__all__ = ["Result", "run"]


def run(program: Program, options: Options, given: Any) -> Steps:
    """Run *program* on *given* until no task is due; return its `Result`.

    Args:
        program: The nodes and channels.
        options: Where it keeps what, how long it may take, who listens.
        given: The input; None goes on; a `Command` answers, writes or goes somewhere.

    Raises:
        GraphRecursionError: It used up its supersteps.
        GraphDrained: It was asked to stop at a barrier.
        TaskCancelled: It was told to stop at once.
        ParentCommand: A node commands the graph around this one.
        InvalidUpdateError: A node wrote what cannot be, or commands a graph around that is not.
        Exception: What a task raised when it would not be tried again.
    """
    now = yield from begin(program, options, given)
    try:
        return (yield from _repeat(now))
    except GeneratorExit:
        raise
    except BaseException as error:
        # What has not been kept by now, nobody may hear of.
        now.after.clear()
        yield from now.leave()
        if isinstance(error, ParentCommand) and options.nested is None:
            raise InvalidUpdateError(
                f"There is no parent graph: a node of the outermost graph returned {error.command}"
            ) from None
        raise


def _repeat(run: Run) -> Steps:
    """Repeat supersteps until none is due, or the run stops to ask."""
    options, wants_checkpoints = run.options, run.narrator.wants_checkpoints
    while True:
        if run.step > run.stop:
            if wants_checkpoints:
                yield from _tell_checkpoint(run, ())
            raise GraphRecursionError(options.recursion_limit)
        setting = run.setting()
        tasks = plan(run.program, run.state, run.updated, setting)
        if wants_checkpoints:
            yield from _tell_checkpoint(run, tasks)
        if not tasks:
            break
        if options.interrupt_before and breaks_before(run.state, tasks, options.interrupt_before):
            return (yield from _pause(run))
        if (reason := options.drain()) is not None:
            raise GraphDrained(reason)
        # Not by name: what is alive while a commit is awaited, the collector has to look at.
        paused = yield from Superstep(run, tasks, setting).go()
        if paused:
            return (yield from _ask(run, tasks))
        yield from _end(run, tasks)
        if options.interrupt_after and breaks_before(run.state, tasks, options.interrupt_after):
            return (yield from _pause_after(run))
        run.hand_back, run.resuming = True, False
    result = run.result()
    yield from run.leave()
    return result


def _end(run: Run, tasks: list[Task]) -> Iterable[Effect]:
    """Apply what the tasks wrote; return what keeps it, and what waits for that."""
    try:
        _barrier(run, tasks)
    except BaseException as error:  # noqa: BLE001 - it is raised when they are kept
        return _failed(run, error)
    return run.save("loop")


def _failed(run: Run, error: BaseException) -> Steps:
    """Keep what the tasks wrote, which are done all the same, and raise *error*."""
    yield from run.flush()
    raise error


def _barrier(run: Run, tasks: list[Task]) -> None:
    """Apply what the tasks wrote, or leave the state as it was; show it."""
    brought = barrier_of(tasks)
    before = run.state
    if run.recorder.at_exit:
        # Its one checkpoint is made at the end, and a barrier that fails is no part of it.
        before = run.state.copy(changing(run.program, run.state, brought))
    version = run.options.next_version(run.state.newest, run.tick())
    try:
        applied = apply(run.program, run.state, brought, version)
    except BaseException:
        run.state = before
        raise
    run.note(applied)
    run.updated = applied.updated
    if _shows(run, applied):
        run.say()


def _shows(run: Run, applied: Applied) -> bool:
    """Return whether an output channel was written and changed."""
    outputs = run.narrator.outputs
    return not (applied.written.isdisjoint(outputs) or applied.updated.isdisjoint(outputs))


def _pause(run: Run) -> Steps:
    """Stop at a breakpoint."""
    _tell_breakpoint(run)
    result = run.result(paused=True)
    yield from run.leave()
    return result


def _pause_after(run: Run) -> Steps:
    """Stop at a breakpoint after a task, and tell of the checkpoint that it left."""
    if run.narrator.wants_checkpoints:
        yield from _tell_checkpoint(run, None)
    return (yield from _pause(run))


def _tell_breakpoint(run: Run) -> None:
    """Tell that the run stops, and nobody asks: once, also if a graph inside of it stopped."""
    if run.options.nested is None:
        told = run.narrator.interrupted((), {})
        run.after.extend(effect for effect in told if effect.mode == "updates")


def _ask(run: Run, tasks: list[Task]) -> Steps:
    """Stop at interrupts, and show what the tasks that are done wrote."""
    brought = barrier_of(task for task in tasks if task.writes)
    if brought:
        before = run.state.copy(changing(run.program, run.state, brought))
        version = run.options.next_version(run.state.newest, run.tick())
        try:
            applied = apply(run.program, run.state, brought, version)
            if _shows(run, applied):
                run.say(run.state.channels)
        finally:
            run.state = before
    if not run.interrupts:
        _tell_breakpoint(run)
    result = run.result(paused=True)
    yield from run.leave()
    return result


def _tell_checkpoint(run: Run, tasks: list[Task] | tuple[Task, ...] | None) -> Steps:
    """Tell the stream of the checkpoint that the run is at."""
    address = run.recorder.address
    if address is None:
        return
    if tasks is None:
        tasks = plan(run.program, run.state, run.updated, run.place)
    values = read(run.state.channels, run.program.stream_channels)
    payload = {
        "config": config_of(address.thread_id, address.namespace, run.checkpoint_id),
        "parent_config": run.parent_id
        and config_of(address.thread_id, address.namespace, run.parent_id),
        "values": values,
        "metadata": {"source": run.source, "step": run.step - 1, **run.options.metadata},
        "next": [task.name for task in tasks],
        "tasks": [task_entry(task, run.pending.get(task.id, ()), run.narrator) for task in tasks],
    }
    yield from run.narrator.checkpoint(payload, run.step, run.now)


def config_of(thread_id: str, namespace: str, checkpoint_id: str | None) -> dict[str, Any]:
    """Return the config that addresses a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }
