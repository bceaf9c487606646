"""What a user asks of one run, checked once, and of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, Unpack, get_args

from flowpregel._core.effects import Steps
from flowpregel._core.program import Options, names
from flowpregel._core.records import Durability, Kind, Task
from flowpregel._core.run_state import Result
from flowpregel._engine.engine import RunPlan
from flowpregel._engine.nested import RunContext
from flowpregel.context import RunControl
from flowpregel.errors import ConfigurationError
from flowpregel.events import StreamMode
from flowpregel.pregel.config import Config, ConfigKeywords, merged, parse
from flowpregel.pregel.definition import GraphDefinition, Where, keys_of
from flowpregel.pregel.node import policies_of
from flowpregel.pregel.progress import MODES as VIEWED
from flowpregel.pregel.progress import ProgressView, progress_is_on
from flowpregel.pregel.runner import GraphRun, inherited, plain_output, run_plan

Version: TypeAlias = Literal["v1", "v2"]
STREAM_MODES: tuple[str, ...] = get_args(StreamMode)


class RunKeywords(ConfigKeywords, total=False):
    """The keywords of `Pregel.invoke` and `Pregel.ainvoke`, beside the input."""

    context: Any
    stream_mode: str | Sequence[str] | None
    print_mode: str | Sequence[str]
    output_keys: str | Sequence[str] | None
    interrupt_before: Where | None
    interrupt_after: Where | None
    durability: Literal["sync", "async", "exit"] | None
    control: RunControl | None
    debug: bool | None
    resume: Literal["auto"] | None
    on_code_change: Literal["keep", "rerun", "error"]
    progress: bool | None
    version: Version


class StreamKeywords(RunKeywords, total=False):
    """The keywords of `Pregel.stream` and `Pregel.astream`."""

    subgraphs: bool


OPTIONS = StreamKeywords.__annotations__.keys() - ConfigKeywords.__annotations__.keys()


def is_quiet(asked: Mapping[str, Any]) -> bool:
    """Return whether an invocation returns the output, and not the items of a stream mode."""
    return asked.get("stream_mode") in (None, "values")


def run_of(
    graph: GraphDefinition,
    given: Any,
    given_config: Config | None,
    asked: Mapping[str, Any],
    *,
    streams: bool = False,
) -> GraphRun:
    """Return the run of *graph* that a user asked for.

    Args:
        graph: Gives the defaults.
        given: The input.
        given_config: LangGraph's config, or None.
        asked: The keywords.
        streams: Whether `Pregel.stream` was called: its items show more than an output.

    Raises:
        ConfigurationError: Something cannot be; the message says what.
        TypeError: A keyword that nobody knows.
    """
    wanted = _wanted(graph, asked, streams=streams)
    settings = {key: value for key, value in asked.items() if key not in OPTIONS}
    config = parse(merged(graph.config, given_config, **settings))
    if config.namespace:
        # The checkpoint of a nested graph is found when that is called: by the map of them.
        config = replace(config, namespace="", checkpoint_id=config.checkpoint_map.get(""))
    modes = names(wanted["stream_mode"]) if streams or not is_quiet(asked) else ()
    printed = ("updates", "values") if wanted["debug"] else names(wanted["print_mode"])
    view = ProgressView(graph.name) if wanted["progress"] else None
    control: RunControl | None = wanted.get("control")
    return GraphRun(
        graph=graph,
        given=given,
        config=config,
        options=Options(
            durability=Durability(wanted["durability"]),
            recursion_limit=config.recursion_limit,
            interrupt_before=wanted["interrupt_before"],
            interrupt_after=wanted["interrupt_after"],
            output_channels=keys_of(wanted["output_keys"]),
            modes=frozenset((*modes, *printed, *(VIEWED if view else ()))),
            step_timeout=graph.step_timeout,
            retry=policies_of(graph.retry_policy),
            cache=graph.cache_policy,
            drain=lambda: None if control is None else control.drain_reason,
            on_code_change=wanted["on_code_change"],
        ),
        context=_context(graph.context_schema, wanted.get("context")),
        control=control,
        resume=wanted["resume"],
        modes=modes,
        labelled=not isinstance(asked.get("stream_mode"), str | None),
        subgraphs=wanted.get("subgraphs", False),
        printed=printed,
        view=view,
        version=wanted["version"],
    )


def own_thread_run(
    graph: GraphDefinition, task: Task, around: RunContext
) -> tuple[Steps, RunContext] | None:
    """Return the run of a graph that *task* calls on another thread; None: it is on the caller's.

    It is an outermost run in all but its engine, and a question ends it for its caller.
    A graph without a saver of its own keeps its state with the caller's, as any other.
    """
    if task.kind is not Kind.CALL or graph.saver is None:
        return None
    given, own = task.input.args[0], task.input.kwargs
    wanted = parse(merged(graph.config, own))
    is_callers = around.thread_id is not None and wanted.thread_id == around.thread_id
    shares_saver = around.committer is not None and around.committer.saver is graph.saver
    if wanted.thread_id is None or (is_callers and (shares_saver or wanted.namespace)):
        return None
    labels = {key: around.config.get(key) for key in ("tags", "metadata")}
    durability = "exit" if around.options.durability is Durability.EXIT else "sync"
    asked = run_of(
        graph, given, merged(labels, own), {"durability": durability, "control": around.control}
    )
    planned = run_plan(asked)
    inside = replace(
        planned.around,
        context=around.context,
        **inherited(graph, task, around),
    )
    return _released(planned), inside


def _released(planned: RunPlan) -> Steps:
    """Return the steps of a run that releases its thread where it ends."""
    with planned.resources:
        return Result(plain_output((yield from planned.steps)))


_CHOICES: Final[dict[str, tuple[tuple[str | None, ...], str]]] = {
    "durability": (("async", "sync", "exit"), "'sync', 'async' or 'exit'"),
    "on_code_change": (("keep", "rerun", "error"), "'keep', 'rerun' or 'error'"),
    "resume": ((None, "auto"), "'auto', or leave it out"),
    "version": (("v1", "v2"), "'v1' or 'v2'"),
}
"""Options that are one of a few words, the default first, and what to use."""


def _wanted(graph: GraphDefinition, asked: Mapping[str, Any], *, streams: bool) -> dict[str, Any]:
    """Return the options of a run, with the defaults filled in.

    Raises:
        ConfigurationError: One cannot be.
    """
    wanted: dict[str, Any] = {
        "stream_mode": graph.stream_mode,
        "print_mode": (),
        "output_keys": graph.stream_channels_asis if streams else graph.output_channels,
        "interrupt_before": graph.interrupt_before_nodes,
        "interrupt_after": graph.interrupt_after_nodes,
        "debug": graph.debug,
        "progress": progress_is_on.get(),
        **{name: choices[0] for name, (choices, _) in _CHOICES.items()},
    }
    wanted |= {
        key: value
        for key, value in asked.items()
        if key in OPTIONS and (value is not None or key == "on_code_change")
    }
    for name, (choices, hint) in _CHOICES.items():
        if wanted[name] not in choices:
            raise ConfigurationError(f"{name}={wanted[name]!r}; use {hint}")
    for mode in (*names(wanted["stream_mode"]), *names(wanted["print_mode"])):
        if mode not in STREAM_MODES:
            raise ConfigurationError(
                f"stream_mode {mode!r} is unknown; the modes are: {', '.join(STREAM_MODES)}"
            )
    for key in names(wanted["output_keys"]):
        if key not in graph.program.channels:
            raise ConfigurationError(
                f"output_keys names {key!r}, which is no channel of {graph.name!r}; "
                f"the channels are: {', '.join(graph.program.channels)}"
            )
    return wanted


def _context(schema: type[Any] | None, context: Any) -> Any:
    """Return *context* in the form that its schema gives it."""
    makes_objects = hasattr(schema, "__dataclass_fields__") or hasattr(schema, "model_validate")
    if schema is None or not makes_objects or not isinstance(context, Mapping):
        return context
    try:
        return schema(**context)
    except TypeError as error:
        raise ConfigurationError(f"context does not fit {schema.__name__}: {error}") from error


# ---------------------------------------------------------------- runs side by side


def batch(
    graph: Any,
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None = None,
    *,
    return_exceptions: bool = False,
    **asked: Unpack[RunKeywords],
) -> list[Any]:
    """Run the graph on each of *inputs*, side by side, and return the outputs in order.

    Args:
        graph: The graph.
        inputs: What each run is given.
        config: One for all, or one for each.
        return_exceptions: Whether to return what a run raises in its place.
        asked: As `Pregel.invoke` takes it.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - seldom needed

    configs, limit = _configs(config, len(inputs))
    limit = limit or min(32, max(1, len(inputs)))
    with ThreadPoolExecutor(limit, thread_name_prefix="flowpregel-batch") as pool:
        invoke = partial(graph.invoke, **asked)
        futures = [pool.submit(invoke, *each) for each in zip(inputs, configs, strict=True)]
    if return_exceptions:
        return [future.exception() or future.result() for future in futures]
    return [future.result() for future in futures]


async def abatch(
    graph: Any,
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None = None,
    *,
    return_exceptions: bool = False,
    **asked: Unpack[RunKeywords],
) -> list[Any]:
    """`batch`, on the running event loop."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    configs, limit = _configs(config, len(inputs))
    slots = asyncio.Semaphore(limit or max(1, len(inputs)))

    async def one(given: Any, own: Config | None) -> Any:
        async with slots:
            return await graph.ainvoke(given, own, **asked)

    runs = [one(given, own) for given, own in zip(inputs, configs, strict=True)]
    return await asyncio.gather(*runs, return_exceptions=return_exceptions)


def _configs(
    config: Config | Sequence[Config] | None, count: int
) -> tuple[list[Config | None], int | None]:
    """Return a config for each run, and how many may run at once, if that is bounded."""
    is_one = config is None or isinstance(config, Mapping)
    configs: list[Any] = [config] * count if is_one else [*(config or ())]
    if len(configs) != count:
        raise ValueError(f"batch got {count} inputs and {len(configs)} configs; give one for each")
    first = configs[0] if configs else None
    return configs, (first or {}).get("max_concurrency")
