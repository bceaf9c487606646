"""Turns a call of ``invoke`` or ``stream`` into a plan for the engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

from flowpregel._core.program import Options, Program
from flowpregel._core.records import Durability
from flowpregel._core.run import run
from flowpregel._engine.commits import Committers
from flowpregel._engine.engine import RunPlan
from flowpregel._engine.inbox import now
from flowpregel._engine.nested import RunContext
from flowpregel._fault import fault
from flowpregel.checkpoint.base import BaseCheckpointSaver, Lease
from flowpregel.context import RunControl
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.base import PregelBase, Where, names_where
from flowpregel.pregel.config import Parsed
from flowpregel.pregel.progress import MODES as WATCHED
from flowpregel.pregel.progress import View
from flowpregel.pregel.resume import Start, looks_first, result_of, start_of

STREAM_MODES = ("values", "updates", "custom", "progress", "checkpoints", "tasks", "debug")
_HEARD_FROM_INSIDE = {"custom", "progress"}
"""What graphs nested in a run tell its stream, though nobody asked to hear of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asked of one run, checked."""

    given: Any
    parsed: Parsed
    modes: tuple[str, ...]
    labelled: bool = False
    """Whether several modes were asked for, so that each item says its own."""
    subgraphs: bool = False
    context: Any = None
    output_keys: str | Sequence[str] | None = None
    interrupt_before: Where | None = None
    interrupt_after: Where | None = None
    durability: str | None = None
    control: RunControl | None = None
    resume: str | None = None
    on_mismatch: Literal["error", "rerun", "reuse"] = "error"
    printed: tuple[str, ...] = ()
    view: View | None = None
    """Shows how far the run is."""
    shaped: Callable[[Any], Any] = lambda values: values
    """Gives values the form of the graph's output schema."""


def modes_of(
    stream_mode: str | Sequence[str] | None, default: str | Sequence[str]
) -> tuple[str, ...]:
    """Return stream modes as a tuple.

    Raises:
        ConfigurationError: A mode nobody knows.
    """
    wanted = default if stream_mode is None else stream_mode
    modes = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for mode in modes:
        if mode not in STREAM_MODES:
            raise ConfigurationError(
                f"stream_mode {mode!r} is unknown; the modes are: {', '.join(STREAM_MODES)}"
            )
    return modes


def durability_of(value: str | None, saver: BaseCheckpointSaver | None) -> Durability:
    """Return a durability by its name.

    Raises:
        ConfigurationError: There is none of that name.
    """
    if value is None:
        return Durability.ASYNC
    try:
        return Durability(value)
    except ValueError:
        raise ConfigurationError(f"durability={value!r}; use 'sync', 'async' or 'exit'") from None


def saver_of(graph: PregelBase) -> BaseCheckpointSaver | None:
    """Return the saver of an outermost run.

    Raises:
        ConfigurationError: The graph wants its parent's, and has no parent.
    """
    if graph.checkpointer is True:
        raise ConfigurationError(
            "checkpointer=True cannot be used for root graphs: it means the checkpointer of the "
            "graph around; give a saver or a path"
        )
    return graph.checkpointer or None


def plan_of(graph: PregelBase, request: Request) -> RunPlan:
    """Return what the engine is to do for *request*."""
    saver = saver_of(graph)
    if saver is None:
        if request.resume is not None:
            raise ConfigurationError(
                f"resume='auto': graph {graph.name!r} has no checkpointer, so there is nothing "
                "to go on with; pass checkpointer= where it is built"
            )
        return _plan(graph, request, None, None, ExitStack())
    address = request.parsed.address
    resources = ExitStack()
    resources.callback(fault, "lease.released.after")
    fault("lease.taken.before")
    lease = resources.enter_context(saver.lease(address.thread_id, address.namespace))
    fault("lease.taken.after")
    resources.callback(fault, "lease.released.before")
    try:
        return _plan(graph, request, saver, lease, resources)
    except BaseException:
        resources.close()
        raise


def _plan(
    graph: PregelBase,
    request: Request,
    saver: BaseCheckpointSaver | None,
    lease: Lease | None,
    resources: ExitStack,
) -> RunPlan:
    fault("run.start.before")
    start = _start(graph, request, saver)
    fault("run.start.after")
    parsed = request.parsed
    if start.run_id != parsed.run_id:
        parsed = replace(parsed, run_id=start.run_id)
        request = replace(request, parsed=parsed)
    options = options_of(graph, request, saver, None if lease is None else lease.fence)
    if start.loaded is not None or start.metadata:
        metadata = {**start.metadata, **options.metadata}
        options = replace(options, loaded=start.loaded, metadata=metadata)
    committers = Committers()
    around = RunContext(
        config=parsed.shown(),
        context=context_of(graph, request.context),
        store=graph.store,
        control=request.control,
        committer=None if saver is None else committers.of(saver, options.durability),
        committers=committers,
        thread_id=parsed.thread_id,
        run_id=str(options.metadata.get("run_id")),
        namespace=parsed.namespace,
        executor=graph.executor,
        modes=options.modes if request.subgraphs else options.modes & _HEARD_FROM_INSIDE,
        options=options,
        replayed_before=parsed.checkpoint_id if request.given is None else None,
    )
    steps = run(graph.program, options, start.given)
    if start.over is not None:
        steps = result_of(graph.program, start.over, options.output_channels, options.modes)
    return RunPlan(
        steps=steps,
        around=around,
        cache=graph.cache,
        max_concurrency=parsed.max_concurrency,
        resources=resources,
        lease=lease,
    )


def _start(graph: PregelBase, request: Request, saver: BaseCheckpointSaver | None) -> Start:
    """Return how the run starts; the thread is looked at first if that depends on it."""
    given, resume, parsed = request.given, request.resume, request.parsed
    looks = looks_first(given, resume, parsed.run_id) and parsed.checkpoint_id is None
    if saver is None or not looks:
        return Start(given=given, run_id=parsed.run_id)
    return start_of(
        graph.program, saver, parsed.address, given, resume=resume, run_id=parsed.run_id
    )


def options_of(
    graph: PregelBase, request: Request, saver: BaseCheckpointSaver | None, fence: int | None
) -> Options:
    """Return the options of an outermost run."""
    parsed, control = request.parsed, request.control
    before, after = request.interrupt_before, request.interrupt_after
    options = Options(
        address=None if saver is None else parsed.address,
        namespace=parsed.namespace,
        durability=durability_of(request.durability, saver),
        recursion_limit=parsed.recursion_limit,
        interrupt_before=names_where(graph.interrupt_before_nodes if before is None else before),
        interrupt_after=names_where(graph.interrupt_after_nodes if after is None else after),
        output_channels=_output_keys(graph.program, request.output_keys),
        modes=frozenset(
            (*request.modes, *request.printed, *(() if request.view is None else WATCHED))
        ),
        step_timeout=graph.step_timeout,
        retry=graph.retry_policy,
        cache=graph.cache_policy,
        metadata={**parsed.metadata, "run_id": parsed.run_id or str(uuid.uuid4())},
        fence=fence,
        on_mismatch=request.on_mismatch,
        now=now(),
    )
    if control is not None:
        options = replace(options, drain=lambda: control.drain_reason)
    return with_saver(options, saver)


def with_saver(options: Options, saver: BaseCheckpointSaver | None) -> Options:
    """Return *options* for what *saver* can keep, and for the versions it makes."""
    if saver is None:
        return options
    if not saver.owns_versions:
        return replace(options, keeps_deltas=saver.keeps_deltas)
    return replace(
        options,
        keeps_deltas=saver.keeps_deltas,
        next_version=lambda newest, _: saver.get_next_version(newest, None),
    )


def _output_keys(program: Program, keys: str | Sequence[str] | None) -> str | tuple[str, ...]:
    if keys is None:
        return program.output_channels
    wanted = (keys,) if isinstance(keys, str) else tuple(keys)
    for key in wanted:
        if key not in program.channels:
            raise ConfigurationError(
                f"output_keys names {key!r}, which is no channel of {program.name!r}; "
                f"the channels are: {', '.join(program.channels)}"
            )
    return keys if isinstance(keys, str) else wanted


def context_of(graph: PregelBase, context: Any) -> Any:
    """Return *context* in the form its schema gives it.

    Raises:
        ConfigurationError: A dict that does not fit the schema.
    """
    schema = graph.context_schema
    if schema is None or not isinstance(context, Mapping):
        return context
    if hasattr(schema, "__dataclass_fields__") or hasattr(schema, "model_validate"):
        try:
            return schema(**context)
        except TypeError as error:
            raise ConfigurationError(f"context does not fit {schema.__name__}: {error}") from error
    return context
