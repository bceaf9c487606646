"""The loop of a run, a generator: load, plan, superstep, update, commit, repeat, stop.

The loop yields effects and is sent their replies (see `effects`). It does no I/O, so it
can be stopped at any ``yield``, and tests can feed it by hand.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

from flowpregel._core import tracing
from flowpregel._core.barrier import barrier_of, breaks_before, changing, plan
from flowpregel._core.effects import CacheStore, Steps
from flowpregel._core.program import Options, Program
from flowpregel._core.provenance import replay_notices
from flowpregel._core.recorded_calls import end_replay
from flowpregel._core.records import (
    DRAWING,
    DURABILITY,
    LIMIT_REACHED,
    NOTHING_DUE,
    PAUSED,
    TASKS_DUE,
    Address,
    Task,
)
from flowpregel._core.run import Result, Run
from flowpregel._core.start import start
from flowpregel._core.stream_events import checkpoint_config
from flowpregel._core.superstep import Superstep
from flowpregel.errors import (
    GraphDrained,
    GraphRecursionError,
    InvalidUpdateError,
    ParentCommand,
)

_NODE = attrgetter("node")


def run_program(program: Program, options: Options, user_input: Any) -> Steps:
    """Return the steps that run *program* until no task is due, and that then return
    the `Result` of the run. If there is a tracer, it follows the steps.

    Args:
        program: The nodes and channels of the graph or workflow.
        options: The address and the limits of the run, and the stream modes that are
            read.
        user_input: The input. None resumes the run. A `Command` answers questions,
            writes to channels, or determines the next nodes.

    Raises:
        GraphRecursionError: The run used up its supersteps.
        GraphDrained: The run was asked to stop at a barrier.
        TaskCancelled: The run was stopped at once.
        ParentCommand: A node commands the graph around this one.
        InvalidUpdateError: A node wrote to a channel that does not exist, or commands a
            parent graph that does not exist.
        Exception: A task raised the error, and is not tried again.
    """
    steps = _steps(program, options, user_input)
    make_tracer = tracing.make_tracer
    if make_tracer is None:
        return steps
    return tracing.traced_steps(steps, make_tracer, program, options)


def _steps(program: Program, options: Options, user_input: Any) -> Steps:
    """Repeat supersteps until no task is due, or until the run stops at a question or a
    breakpoint, and return the `Result`.
    """
    run = yield from start(program, options, user_input)
    superstep = None
    result = None
    try:
        while result is None:
            superstep = _next_superstep(run)
            result = yield from _stop_before(run, superstep.tasks)
            if result is None:
                yield from superstep.start()
                while superstep.open_tasks:
                    wakeup = yield superstep.next_wait()
                    yield from superstep.handle(wakeup)
                result = yield from _end_step(run, superstep)
    except GeneratorExit:
        raise
    except BaseException as error:
        yield from _fail(run, superstep, error)
        if isinstance(error, ParentCommand) and options.nested is None:
            raise InvalidUpdateError(
                "There is no parent graph: a node of the outermost graph returned "
                f"{error.command}"
            ) from None
        raise
    yield from replay_notices(run.replay.report)
    return result


def _fail(run: Run, superstep: Superstep | None, error: BaseException) -> Steps:
    """Stop the tasks of a run that ends with *error*, release the run's claims on
    shared results, and store results that are not stored yet.
    """
    if superstep is not None:
        yield from superstep.abandon()
    # An effect may be performed only after its cause was stored. So the effects in the
    # outbox, which wait for a commit that will not follow, are dropped.
    run.outbox.effects.clear()
    if run.outbox.claims:
        # The claims are released now, because tasks of other runs may wait for the
        # shared results. This run may be a nested one that its outer run tries again
        # only later, and the other tasks must not wait until then.
        yield CacheStore(dict.fromkeys(run.outbox.claims))
    follows = TASKS_DUE
    if isinstance(error, GraphRecursionError):
        follows = LIMIT_REACHED
    yield from run.store_rest(follows)
    yield from replay_notices(run.replay.report)


def _next_superstep(run: Run) -> Superstep:
    """Return the next superstep. It has no tasks if the recursion limit is reached."""
    step = run.step_context()
    cursor = run.cursor
    state = run.state
    tasks: list[Task] = []
    if cursor.step <= cursor.stop:
        tasks = plan(run.program, state, state.updated, step, cursor.triggered)
    cursor.triggered = None
    return Superstep(run, tasks, step)


def _stop_before(run: Run, tasks: list[Task]) -> Steps:
    """Show the checkpoint from which *tasks* start. Return the `Result` if the run ends
    or stops at this checkpoint, or None.
    """
    if run.stream_events.wants_checkpoints:
        # Tasks may be due that the recursion limit does not allow to start. They are
        # not in *tasks*, so they are planned for the stream.
        is_limited = run.cursor.step > run.cursor.stop
        yield from _show_checkpoint(run, None if is_limited else tasks)
    if not tasks:
        return (yield from _finish(run))
    if _pauses_before(run, tasks):
        return (yield from _pause(run))
    return None


def _pauses_before(run: Run, tasks: list[Task]) -> bool:
    """Return whether a breakpoint stops the run before *tasks*.

    Raises:
        GraphDrained: The run was asked to stop at a barrier.
        TaskCancelled: The run was stopped.
    """
    options = run.options
    before = options.interrupt_before
    if before and breaks_before(run.state, map(_NODE, tasks), before):
        return True
    reason = options.drain()
    if reason is not None:
        raise GraphDrained(reason)
    if run.stopped is not None:
        raise run.stopped.error
    return False


def _finish(run: Run) -> Steps:
    """Return the `Result` of a run that has nothing left to do, or raise an error for a
    run that has used up its supersteps.
    """
    options = run.options
    if run.cursor.step > run.cursor.stop:
        raise GraphRecursionError(options.recursion_limit)
    is_nested = options.nested is not None and ":" in options.namespace
    # With durability="exit", a nested run is not stored. Its result is stored as the
    # result of the task that ran it.
    if not (run.outbox.is_deferred and is_nested):
        yield from run.store_rest(NOTHING_DUE)
    return Result(run.read_output(), tuple(run.answers.interrupts.values()))


def _end_step(run: Run, superstep: Superstep) -> Steps:
    """Apply the writes of the tasks, show the new state, and store it. Return the
    `Result` if the run stops at a question or a breakpoint, or None.

    If a write cannot be applied, the state stays unchanged.

    Raises:
        BaseException: The error that ends the superstep, if there is one.
    """
    tasks = superstep.tasks
    failure = superstep.ending_error()
    if failure is not None or superstep.end.is_paused:
        yield from run.flush()
    if failure is not None:
        raise failure
    if superstep.end.is_paused:
        return (yield from _stop_at_questions(run, tasks))
    if run.replay.report.is_changed or run.replay.pending:
        end_replay(run, tasks)
    outputs = barrier_of(tasks)
    before = run.state
    if run.outbox.is_deferred:
        # With durability="exit", the only checkpoint of the run is made at its end. It
        # must not contain changes by a barrier that failed, so a copy of the state is
        # kept.
        before = run.state.copy(changing(run.program, run.state, outputs))
    try:
        update = run.apply(outputs)
    except BaseException:
        # Although the barrier has failed, the tasks have finished, so their writes are
        # stored.
        run.state = before
        yield from run.flush()
        raise
    run.state.updated = update.updated
    run.show(update)
    yield from run.save_checkpoint("loop", map(_NODE, tasks))
    run.replay.reuses_writes = True
    run.replay.is_resuming = False
    after = run.options.interrupt_after
    if after and breaks_before(run.state, map(_NODE, tasks), after):
        yield from _show_checkpoint(run, None)
        return (yield from _pause(run))
    return None


def _pause(run: Run) -> Steps:
    """Store the state of a run that stops at a breakpoint or an interrupt, and return
    its `Result`.
    """
    answers = run.answers
    # If a run, outermost or nested, stops at a breakpoint and asks no question, the
    # stream shows that only once: for the outermost run.
    if not answers.interrupts and run.options.nested is None:
        run.outbox.effects.extend(run.stream_events.breakpoint())
    yield from run.store_rest(PAUSED)
    interrupts = tuple(answers.interrupts.values())
    questions = tuple(answers.questions.values())
    return Result(run.read_output(), interrupts, paused=True, questions=questions)


def _stop_at_questions(run: Run, tasks: list[Task]) -> Steps:
    """Stop because tasks have asked questions, and show the writes of the tasks that
    have finished.
    """
    outputs = barrier_of(task for task in tasks if task.attempt.writes)
    if outputs:
        before = run.state.copy(changing(run.program, run.state, outputs))
        try:
            run.show(run.apply(outputs))
            run.read_output()
        finally:
            run.state = before
    return (yield from _pause(run))


def _show_checkpoint(run: Run, tasks: list[Task] | None) -> Steps:
    """Add the run's present checkpoint to the stream.

    Args:
        run: The run whose stream gets the checkpoint.
        tasks: The tasks that are due. If they are None, this function plans them.
    """
    address = run.options.address
    if address is None or not run.stream_events.wants_checkpoints:
        return
    if tasks is None:
        tasks = plan(run.program, run.state, run.state.updated, run.step_context())
    payload = _shown_checkpoint(run, tasks, address)
    step = run.cursor.step - 1
    yield from run.stream_events.wrapped(
        "checkpoints", "checkpoint", payload, step, run.now
    )


def _shown_checkpoint(run: Run, tasks: list[Task], address: Address) -> dict[str, Any]:
    """Return the run's present checkpoint, in the form that the stream shows.

    Args:
        run: The run whose checkpoint is shown.
        tasks: The tasks that are due after the checkpoint.
        address: The address of the run's checkpoints.
    """
    cursor = run.cursor
    parents = run.options.metadata.get("parents", {})
    present = replace(address, checkpoint_id=cursor.checkpoint_id)
    parent_config = None
    if cursor.parent_id is not None:
        parent = replace(address, checkpoint_id=cursor.parent_id)
        parent_config = checkpoint_config(parent, parents)
    entries: list[dict[str, Any]] = []
    for task in tasks:
        pending = run.replay.pending.get(task.id, ())
        entry = run.stream_events.task_entry(task, pending, address.thread_id)
        entries.append(entry)
    return {
        "config": checkpoint_config(present, parents),
        "parent_config": parent_config,
        "values": run.state.read(run.program.stream_channels),
        "metadata": _metadata_of_checkpoint(run),
        "next": [task.name for task in tasks],
        "tasks": entries,
    }


def _metadata_of_checkpoint(run: Run) -> dict[str, Any]:
    """Return the metadata of the run's present checkpoint with LangGraph's keys."""
    cursor = run.cursor
    metadata = {
        "source": cursor.source,
        "step": cursor.step - 1,
        "parents": {},
        **run.options.metadata,
    }
    metadata.pop(DURABILITY, None)
    metadata.pop(DRAWING, None)
    return metadata
