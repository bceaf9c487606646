"""A dry replay: what a run would do if it went on with the code as it is now.

::

    Superstep.go() --> Submit, Wait, Commit ... --> _withheld --> the engine
      (as in a run)                                (no calls, nothing kept)

The bodies of the superstep at which the run stands run, and are answered from the
record. Calls that the record does not answer are counted and withheld: a body that
needs the result of one stops there, as at a question.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from typing import TYPE_CHECKING

from flowpregel._code.sources import SOURCES
from flowpregel._core import effects
from flowpregel._core.barrier import plan
from flowpregel._core.effects import Steps
from flowpregel._core.program import Options
from flowpregel._core.recorded_calls import count_unreplayed
from flowpregel._core.records import Interrupted, Saved
from flowpregel._core.run import Result
from flowpregel._core.start import start
from flowpregel._core.superstep import Superstep
from flowpregel._engine.drivers import drive
from flowpregel._engine.engine import Engine, RunPlan
from flowpregel._engine.nested import RunContext, now
from flowpregel._interrupts import held
from flowpregel.checkpoint.base import FLOW, BaseCheckpointSaver
from flowpregel.errors import FlowPregelError
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.outer_runs import is_dry
from flowpregel.pregel.resume import Start, start_of
from flowpregel.pregel.runner import GraphRun
from flowpregel.store.base import BaseStore, Op, PutOp
from flowpregel.store.base import Result as Answer

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

_PATIENCE = 20_000_000
"""Nanoseconds without an event after which bodies are told that calls are withheld:
those that are answered come first, as their results may lead to further calls.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a run would do if it went on now.

    Example:
        >>> print(DryRun(answered=299, would_run={"parse": 201}))
        calls: 299 answered, 201 would run (parse 201), 0 not asked for
    """

    is_done: bool = False
    """Whether it is over: what it returned is kept, and nothing would run."""
    answered: int = 0
    """How many calls the record answers."""
    would_run: Mapping[str, int] = field(default_factory=dict)
    """How many calls, and nodes of a graph, would run, by name: up to the first result
    that is not known, on which it depends what is asked next.
    """
    not_asked: int = 0
    """How many recorded calls would not be asked for up to there."""
    other_code: Mapping[str, int] = field(default_factory=dict)
    """How many results that other code made would be used, by the name of the task."""
    is_changed: bool = False
    """Whether the body has other code, or another input, than when its calls were
    recorded.
    """
    diff: str = ""
    """How the code of these tasks, and of the body, has changed, as far as the store
    has it.
    """
    error: str | None = None
    """What it would fail with at once."""
    changed_files: Sequence[str] = ()
    """A text for each file that recorded calls of finished nodes took, and that has
    other content now.
    """

    @property
    def fits(self) -> bool:
        """Whether it goes on as if the code were what it was."""
        has_changed = bool(self.other_code or self.changed_files)
        return not (self.error or self.not_asked or has_changed)

    def __str__(self) -> str:
        lines = ["done: its result is kept"]
        if not self.is_done:
            would_run = sum(self.would_run.values())
            lines = [
                f"calls: {self.answered:,} answered, {would_run:,} would run"
                f"{_counts_text(self.would_run)}, {self.not_asked:,} not asked for"
            ]
        if self.other_code:
            lines.append(
                f"answers of other code than now{_counts_text(self.other_code)}"
            )
        lines += self.changed_files
        if self.is_changed:
            lines.append("its body has other code or another input now")
        lines += self.diff.splitlines()
        if self.error:
            lines.append(f"it would fail: {self.error}")
        return "\n".join(lines)


def _counts_text(numbers: Mapping[str, int]) -> str:
    """Return numbers by name as text in parentheses, if there are any."""
    text = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
    return text and f" ({text})"


def dry_replay(asked: GraphRun) -> DryRun:
    """Return what the run that is *asked* for would do; no task runs, and nothing is
    written.

    Raises:
        FlowPregelError: It cannot start.
    """
    graph, config = asked.graph, asked.config
    begun = start_of(
        graph.program,
        graph.saver,
        asked.given,
        config,
        resume=asked.resume,
        options=asked.options,
    )
    changes = () if begun.kept is None else begun.kept.changes
    changed_files = () if begun.kept is None else begun.kept.changed_files
    earlier = {change.name: (change.recorded, change.now) for change in changes}
    results = Counter({change.name: change.results for change in changes})
    if begun.over is not None:
        diff = _diff(earlier, graph.saver) if graph.saver else ""
        return DryRun(
            is_done=True,
            other_code=dict(results),
            diff=diff,
            changed_files=changed_files,
        )
    adopts = begun.adopts_input
    loaded = begun.loaded or (None,)
    options = replace(
        asked.options, adopts_input=adopts, loaded=loaded, now=now(), on_unmatched=None
    )
    token = is_dry.set(True)
    try:
        around = RunContext(
            config={**config.shown, "run_id": begun.run_id},
            context=asked.context,
            store=None if graph.store is None else _ReadOnlyStore(graph.store),
            thread_id=config.thread_id,
            run_id=begun.run_id,
            has_saver=True,
        )
        steps = _superstep(begun, options, graph.saver)
        engine = Engine(
            RunPlan(
                steps=steps,
                around=around,
                open_cache=graph.open_cache,
                resources=ExitStack(),
            )
        )
        with held():
            deque(drive(engine), maxlen=0)
    finally:
        is_dry.reset(token)
    assert engine.result is not None
    found: DryRun = replace(engine.result.values, changed_files=changed_files)
    if not changes or graph.saver is None:
        return found
    # Nodes of earlier supersteps, whose results are used.
    diff = "\n".join(filter(None, (_diff(earlier, graph.saver), found.diff)))
    return replace(
        found, other_code=dict(results + Counter(found.other_code)), diff=diff
    )


def _superstep(
    begun: Start, options: Options, saver: BaseCheckpointSaver | None
) -> Steps:
    """Go the steps of the superstep at which a run stands; its `Result` has a
    `DryRun`.
    """
    run = yield from start(begun.program, options, begun.given)
    setting = run.step_context()
    tasks = plan(run.program, run.state, run.state.updated, setting)
    for task in tasks:
        task.node = replace(task.node, retry=())  # what fails here is not waited for
    superstep, withheld, error = Superstep(run, tasks, setting), Counter[str](), None
    known = run.replay.report
    try:
        yield from _withheld(superstep.go(), withheld)
        count_unreplayed(run)
        known.is_changed |= known.unreplayed > 0
    except Exception as problem:  # noqa: BLE001 - what the run would fail with is the answer
        error = f"{type(problem).__name__}: {problem}"
    nodes = sum(bool(task.attempt.writes) for task in tasks if task.node.role != "body")
    return Result(
        DryRun(
            is_done=not tasks,
            answered=known.answered + nodes,
            would_run=dict(withheld),
            not_asked=known.unreplayed,
            other_code=dict(known.of_other_code),
            diff=_diff(known.codes, saver) if saver else "",
            is_changed=known.is_changed,
            error=error,
        )
    )


def _diff(codes: Mapping[str, tuple[str, str]], saver: BaseCheckpointSaver) -> str:
    """Return how the sources of tasks and bodies have changed that had other
    *codes*.
    """
    lines = list[str]()
    for name, (was, present) in codes.items():
        if kept := saver.source_of(was).splitlines():
            shown = SOURCES.get(present, "").splitlines()
            lines += unified_diff(
                kept, shown, f"{name}, recorded", f"{name}, now", lineterm=""
            )
    return "\n".join(lines)


def _withheld(steps: Steps, names: Counter[str]) -> Steps:
    """Go *steps*, but start bodies alone; count the *names* of other tasks, which end
    as asking.
    """
    reply, ends = None, list[effects.Event]()
    while True:
        try:
            effect = steps.send(reply)
        except StopIteration as stop:
            return stop.value
        match effect:
            case effects.Submit(tasks, setting):
                bodies = [task for task in tasks if task.node.role == "body"]
                others = [task for task in tasks if task.node.role != "body"]
                names.update(task.name for task in others if not task.node.hidden)
                ends += [
                    effects.Ended(task.id, task.attempt.number, Interrupted(()))
                    for task in others
                ]
                reply = (yield effects.Submit(bodies, setting)) if bodies else None
            case effects.CacheLookup():
                reply = {}  # what other runs share may be gone by then
            case effects.Wait() if ends:
                reply = yield effects.Wait(time.monotonic_ns() + _PATIENCE)
                if not reply.events:
                    reply.events, ends = ends, []
            case _:
                reply = yield effect


class _ReadOnlyStore(BaseStore):
    """A long-term store, of which a body is told that it took what it was given."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def batch(self, ops: Iterable[Op]) -> list[Answer]:
        """Answer what reads."""
        asked = list(ops)
        answers = iter(
            self._store.batch([op for op in asked if not isinstance(op, PutOp)])
        )
        return [None if isinstance(op, PutOp) else next(answers) for op in asked]


# ---------------------------------------------------------------- the runs of a store


def check_runs(
    saver: DurableSaver,
    flow_of: Callable[[Saved], GraphDefinition | None],
    *,
    finished: bool = False,
) -> Iterator[tuple[str, DryRun]]:
    """Yield what each run would do that nobody has now, by its id.

    The flow of a run is imported before what it has recorded is read: the classes of
    that may be there only then. What cannot be read, or imported, is the `DryRun.error`
    of its run.

    Args:
        saver: Keeps them.
        flow_of: Returns the flow of a run, by the metadata of its newest checkpoint;
            None leaves it out.
        finished: Whether finished runs count too; one whose flow cannot be imported
            does not.
    """
    for address in [*saver.namespaces()]:
        if address.namespace or saver.owner(address.thread_id) is not None:
            continue
        try:
            found = _checked(saver, flow_of, address.thread_id, finished=finished)
        except FlowPregelError as error:
            found = DryRun(error=f"{type(error).__name__}: {error}")
        if found is not None and (finished or not found.is_done):
            yield address.thread_id, found


def _checked(
    saver: DurableSaver,
    flow_of: Callable[[Saved], GraphDefinition | None],
    thread_id: str,
    *,
    finished: bool,
) -> DryRun | None:
    """Return what a run would do; None: it is left out."""
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
    asked = GraphRun(
        graph.copy({"checkpointer": saver}), None, None, {"thread_id": thread_id}
    )
    asked.resume = graph.once
    return dry_replay(asked)


def owns(graph: GraphDefinition, saved: Saved) -> bool:
    """Return whether a run is one of *graph*; one that does not record whose it is, may
    be.
    """
    recorded = saved.checkpoint.metadata.get(FLOW)
    if recorded is None or graph.once is None:
        return recorded in (None, (graph.config or {}).get("metadata", {}).get(FLOW))
    return graph.once.owns(recorded)
