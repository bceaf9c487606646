"""The preparation of an outermost run, which is not nested in another run: its thread
is leased, the checkpoint or input from which it starts is chosen, and the generator of
the run's effects is created.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

from flowpregel._core.effects import Emit, Steps
from flowpregel._core.ids import time_from_id
from flowpregel._core.program import Options
from flowpregel._core.records import DRAWING, DURABILITY
from flowpregel._core.run_loop import run_program
from flowpregel._engine.commits import Committers
from flowpregel._engine.engine import RunPlan
from flowpregel._engine.inbox import now
from flowpregel._engine.nested import RunContext
from flowpregel._fault import fault
from flowpregel.cache.base import BaseCache
from flowpregel.checkpoint.base import BaseCheckpointSaver, Lease, OnConflict
from flowpregel.pregel import outer_runs
from flowpregel.pregel.config import ParsedConfig
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.graph_drawing import STORED_DRAWINGS, GraphDrawing, store_drawing
from flowpregel.pregel.invocation import options_for_saver
from flowpregel.pregel.naming import RunIdentity
from flowpregel.pregel.pool_sizes import pools_of_run
from flowpregel.pregel.resume import Start, start_of, stored_result
from flowpregel.pregel.used_outputs import notice_of_gone_outputs
from flowpregel.runtime import RunControl

_NESTED_MODES = frozenset({"custom", "progress"})
"""The stream modes whose events nested graphs emit even if the stream does not show
nested graphs.
"""


class PlannedRun(Protocol):
    """The parts of a checked request for a run, from which the plan of the run is made.
    `GraphRun` implements this protocol.
    """

    definition: GraphDefinition
    saver: BaseCheckpointSaver | None
    input: Any
    config: ParsedConfig
    resume: Literal["auto"] | RunIdentity | None
    options: Options
    stop_after: float | None
    on_conflict: OnConflict
    labels: dict[str, str]
    context: Any
    control: RunControl | None
    subgraphs: bool

    def open_cache(self, resources: ExitStack) -> BaseCache | None:
        """Return the cache of the run, which *resources* closes if this call has opened
        it.
        """


def plan_of(run: PlannedRun) -> RunPlan:
    """Lease the thread of a run, and return the plan with which the engine executes the
    run.
    """
    options = run.options
    lease: Lease | None = None
    with ExitStack() as resources:
        if run.saver is not None:
            lease = _leased(run, run.saver, resources)
            fault("lease.taken.after")
            resources.callback(fault, "lease.released.before")
            options = replace(options, address=run.config.address, fence=lease.fence)
            options = options_for_saver(options, run.saver)
        fault("run.start.before")
        start = start_of(
            run.definition.program_now(),
            run.saver,
            run.input,
            run.config,
            resume=run.resume,
            options=options,
        )
        fault("run.start.after")
        run_id = start.run_id or str(uuid.uuid4())
        options = _begun(run, options, start, run_id)
        run_context = _context_of(run, options, start, run_id)
        return RunPlan(
            steps=_steps_of(start, options, run.saver),
            run_context=run_context,
            open_cache=run.open_cache,
            max_concurrency=run.config.max_concurrency,
            resources=resources.pop_all(),
            lease=lease,
            stop_after=run.stop_after,
            stop_grace=options.stop_grace,
        )


def _leased(
    run: PlannedRun,
    saver: BaseCheckpointSaver,
    resources: ExitStack,
) -> Lease:
    """Lease a run's thread, and register the release of the lease in *resources*."""
    address = run.config.address
    outer_runs.refuse_inside_itself(saver, (address.thread_id, address.namespace))
    resources.callback(fault, "lease.released.after")
    fault("lease.taken.before")
    lease = resources.enter_context(
        saver.lease(
            address.thread_id,
            address.namespace,
            on_conflict=run.on_conflict,
        )
    )
    drawing = GraphDrawing(run.definition)
    lease.drawing = lambda: drawing.graph().outline()
    lease.pools = partial(pools_of_run, saver, address.thread_id)
    return lease


def _begun(
    run: PlannedRun,
    options: Options,
    start: Start,
    run_id: str,
) -> Options:
    """Return *options* completed for a run that starts now: with its checkpoint, its
    metadata and the time.
    """
    began = now()
    if start.after is not None:
        began = max(began, time_from_id(start.after) + 1)
    metadata = {
        **run.labels,
        **start.metadata,
        **run.config.metadata,
        "run_id": run_id,
    }
    if run.saver is not None:
        metadata[DURABILITY] = options.durability.value
        drawing = STORED_DRAWINGS.get(run.definition)
        if drawing is None:
            drawing = store_drawing(run.definition)
        if drawing:
            metadata[DRAWING] = drawing
    if run.config.checkpoint_map:
        # The run starts from a checkpoint of a nested graph. The checkpoints of this
        # run record the id of that checkpoint, so that a later run that replays them
        # starts from it, too.
        metadata["parents"] = dict(run.config.checkpoint_map)
    return replace(
        options,
        address=start.address or options.address,
        adopts_input=start.adopts_input,
        loaded=start.loaded,
        metadata=metadata,
        now=began,
    )


def _context_of(
    run: PlannedRun,
    options: Options,
    start: Start,
    run_id: str,
) -> RunContext:
    """Return the context that the engine passes to the tasks of a run."""
    definition = run.definition
    variables: Context = copy_context()
    if options.messages:
        variables = options.messages.variables()
    committers = Committers()
    committer = None
    if run.saver is not None:
        address = run.config.address
        thread = (address.thread_id, address.namespace)
        variables.run(outer_runs.enter_run, run.saver, thread)
        committer = committers.of(run.saver, options.durability)
    modes = options.modes
    if not run.subgraphs:
        modes &= _NESTED_MODES
    return RunContext(
        config={**run.config.run_config, "run_id": start.run_id},
        context=run.context,
        store=definition.store,
        control=run.control,
        committer=committer,
        committers=committers,
        thread_id=run.config.thread_id,
        run_id=run_id,
        has_saver=run.saver is not None,
        checks_mutations=options.checks_mutations,
        outer_runs=variables.run(outer_runs.outer_runs_of_tasks),
        executor=definition.executor,
        modes=modes,
        options=options,
        variables=variables,
        replayed_before=start.replayed_before,
        is_finished=start.finished is not None,
    )


def _steps_of(
    start: Start,
    options: Options,
    saver: BaseCheckpointSaver | None,
) -> Steps:
    """Return a generator of a run's effects (requests to the engine), preceded by
    notices on the stored results that the run uses.

    Args:
        start: The start of the run.
        options: The options of the run.
        saver: The saver of the run, if it has one.
    """
    stored = start.stored
    if start.finished is not None:
        steps = stored_result(start.program, start.finished, options)
    else:
        steps = run_program(start.program, options, start.input)
    notices: list[Any] = []
    if stored is not None and start.finished is None:
        notices.extend(stored.node_notices())
    elif stored is not None and saver is not None:
        notices.append(stored.notice(saver))
    used = start.used
    if used is not None and saver is not None:
        notices.append(notice_of_gone_outputs(saver, used.address))
    if not any(notices):
        return steps
    return _after_notices(notices, steps)


def _after_notices(notices: Sequence[Any], steps: Steps) -> Steps:
    """Emit the *notices* that are not empty, and then yield the effects (requests to
    the engine) in *steps*.
    """
    for notice in notices:
        if notice:
            yield Emit("notices", notice)
    return (yield from steps)
