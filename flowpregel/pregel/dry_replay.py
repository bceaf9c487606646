"""Dry replays of one run, or of all runs of a store. A dry replay executes the body of
a run with the recorded results, and runs no task; see `_inspection.dry_replay`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flowpregel._core.program import Options
from flowpregel._core.provenance import CodeChange
from flowpregel._core.records import Saved
from flowpregel._engine.drivers import drive
from flowpregel._engine.engine import Engine, RunPlan
from flowpregel._engine.inbox import now
from flowpregel._engine.nested import RunContext
from flowpregel._inspection.code_changes import changes_by_name
from flowpregel._inspection.dry_replay import (
    DryRun,
    ReadOnlyStore,
    code_differences,
    dry_superstep,
)
from flowpregel._inspection.time_left import PlannedTime
from flowpregel._interrupts import defer_interrupts
from flowpregel.checkpoint.base import FLOW, BaseCheckpointSaver
from flowpregel.errors import FlowPregelError
from flowpregel.pregel.outer_runs import is_dry
from flowpregel.pregel.resume import Start, start_of
from flowpregel.pregel.runner import GraphRun

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.pregel.pregel import Pregel


def dry_replay(run: GraphRun) -> DryRun:
    """Return a report of what *run* would do. No task runs, and nothing is written.

    Raises:
        FlowPregelError: The run cannot start.
    """
    definition = run.definition
    begun = start_of(
        definition.program,
        definition.saver,
        run.input,
        run.config,
        resume=run.resume,
        options=run.options,
    )
    report = DryRun(is_done=True)
    if begun.finished is None:
        report = _unfinished_report(run, begun)
    if begun.stored is None:
        return report
    report = replace(report, changed_files=begun.stored.changed_files)
    return _with_changes(report, begun.stored.changes, definition.saver)


def _unfinished_report(
    run: GraphRun,
    begun: Start,
) -> DryRun:
    """Replay an unfinished run without running tasks, and return the report."""
    options = replace(
        run.options,
        adopts_input=begun.adopts_input,
        loaded=begun.loaded or (None,),
        now=now(),
        on_unmatched=None,
    )
    token = is_dry.set(True)
    try:
        plan = _dry_plan(run, begun, options)
        engine = Engine(plan)
        with defer_interrupts():
            deque(drive(engine), maxlen=0)
    finally:
        is_dry.reset(token)
    assert engine.result is not None
    report: DryRun = engine.result.values
    return replace(report, time=_planned_time(run, report.would_run))


def _planned_time(
    run: GraphRun,
    counts: Mapping[str, int],
) -> PlannedTime | None:
    """Return the estimated time of the calls that *run* would make, or None if it is
    unknown.

    Args:
        run: The run whose calls are counted.
        counts: The number of calls of each task, by name.
    """
    # These modules are imported inside the function, because workers import this module
    # but need no store.
    from flowpregel._inspection.earlier_durations import planned_time  # noqa: PLC0415
    from flowpregel._inspection.reader import StoreReader  # noqa: PLC0415
    from flowpregel.checkpoint.durable import DurableSaver  # noqa: PLC0415

    saver = run.definition.saver
    if not counts or not isinstance(saver, DurableSaver):
        return None
    is_same_flow = partial(is_recorded_flow, run.definition)
    with closing(StoreReader(saver)) as reader:
        return planned_time(
            reader,
            run.config.thread_id or "",
            is_same_flow,
            counts,
        )


def _dry_plan(
    run: GraphRun,
    begun: Start,
    options: Options,
) -> RunPlan:
    """Return the plan with which the engine executes a dry replay."""
    definition = run.definition
    store = definition.store
    run_context = RunContext(
        config={**run.config.run_config, "run_id": begun.run_id},
        context=run.context,
        store=None if store is None else ReadOnlyStore(store),
        thread_id=run.config.thread_id,
        run_id=begun.run_id,
        has_saver=True,
    )
    return RunPlan(
        steps=dry_superstep(
            begun.program,
            options,
            begun.input,
            definition.saver,
        ),
        run_context=run_context,
        open_cache=definition.open_cache,
        resources=ExitStack(),
    )


def _with_changes(
    report: DryRun,
    changes: Sequence[CodeChange],
    saver: BaseCheckpointSaver | None,
) -> DryRun:
    """Return *report* with the code changes of those nodes whose stored results the run
    would use.
    """
    if not changes or saver is None:
        return report
    codes = {change.name: (change.recorded, change.now) for change in changes}
    differences = [code_differences(codes, saver), report.diff]
    results = Counter({change.name: change.results for change in changes})
    results.update(report.other_code)
    return replace(
        report,
        other_code=dict(results),
        changes={**changes_by_name(saver, codes), **report.changes},
        diff="\n".join(filter(None, differences)),
    )


# ---------------------------------------------------------------- the runs of a store


def check_runs(
    saver: DurableSaver,
    flow_of: Callable[[Saved], Pregel | None],
    *,
    finished: bool = False,
) -> Iterator[tuple[str, DryRun]]:
    """Yield the id of each run that no process is executing, with the report of a dry
    replay.

    The flow of a run is imported before the run's records are read, because the import
    may define the classes of the records. If a flow cannot be imported or a record
    cannot be read, the report contains the error.

    Args:
        saver: The store of the runs.
        flow_of: A function that takes the newest checkpoint of a run, and returns the
            flow of the run, or None to leave the run out.
        finished: Whether to include finished runs whose flow can be imported.
    """
    for address in list(saver.namespaces()):
        if address.namespace or saver.owner(address.thread_id) is not None:
            continue
        try:
            report = _checked(
                saver,
                flow_of,
                address.thread_id,
                finished=finished,
            )
        except FlowPregelError as error:
            report = DryRun(error=f"{type(error).__name__}: {error}")
        if report is not None and (finished or not report.is_done):
            yield address.thread_id, report


def _checked(
    saver: DurableSaver,
    flow_of: Callable[[Saved], Pregel | None],
    thread_id: str,
    *,
    finished: bool,
) -> DryRun | None:
    """Return the report of a run, or None if the run is left out."""
    glance = saver.glance(thread_id)
    if glance is None or not (finished or glance.is_begun):
        return None
    try:
        graph = flow_of(glance.saved)
    except FlowPregelError:
        if glance.is_begun:
            raise
        return None
    if graph is None:
        return None
    on_store = graph.copy({"checkpointer": saver})
    run = GraphRun(
        on_store,
        None,
        None,
        {"thread_id": thread_id},
    )
    run.resume = graph.once
    return dry_replay(run)


def owns(
    graph: Any,
    saved: Saved,
) -> bool:
    """Return whether a run belongs to *graph*, or may belong because no flow was
    recorded.

    Args:
        graph: A `Pregel`.
        saved: The newest checkpoint of the run.
    """
    recorded = saved.checkpoint.metadata.get(FLOW)
    if recorded is None:
        return True
    return is_recorded_flow(graph.definition, recorded)


def is_recorded_flow(
    definition: Any,
    recorded: str,
) -> bool:
    """Return whether the flow that a run has recorded is that of *definition*."""
    if definition.once is not None:
        return bool(definition.once.owns(recorded))
    metadata = definition.config.get("metadata", {})
    return bool(recorded == metadata.get(FLOW))
