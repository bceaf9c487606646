"""Runs a graph: ``invoke``, ``stream``, ``batch`` and their async forms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

from flowpregel._engine.drivers import adrive, drive, result_of, running_loop
from flowpregel._engine.engine import Engine
from flowpregel.context import current
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.config import Settings, merged, of_keywords, parse
from flowpregel.pregel.output import GraphOutput, print_item, wrap
from flowpregel.pregel.progress import awatched, view_of, watched
from flowpregel.pregel.request import Request, modes_of, plan_of
from flowpregel.pregel.threads import Threads

if TYPE_CHECKING:
    from flowpregel.context import RunControl
    from flowpregel.pregel.base import Where

Config = Mapping[str, Any]
Version = Literal["v1", "v2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The arguments that all four ways to run a graph share."""

    context: Any = None
    stream_mode: str | Sequence[str] | None = None
    print_mode: str | Sequence[str] = ()
    output_keys: str | Sequence[str] | None = None
    interrupt_before: Where | None = None
    interrupt_after: Where | None = None
    durability: str | None = None
    control: RunControl | None = None
    subgraphs: bool = False
    debug: bool | None = None
    resume: Literal["auto"] | None = None
    on_mismatch: Literal["error", "rerun", "reuse"] = "error"
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.resume not in (None, "auto"):
            raise ConfigurationError(f"resume={self.resume!r}; use 'auto', or leave it out")
        if self.on_mismatch not in ("error", "rerun", "reuse"):
            raise ConfigurationError(
                f"on_mismatch={self.on_mismatch!r}; use 'error', 'rerun' or 'reuse'"
            )


class RunKeywords(Settings, total=False):
    """The keywords of `Running.invoke` and `Running.ainvoke`, beside the input."""

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
    on_mismatch: Literal["error", "rerun", "reuse"]
    progress: bool | None


class StreamKeywords(RunKeywords, total=False):
    """The keywords of `Running.stream` and `Running.astream`."""

    subgraphs: bool


class Running(Threads):
    """The part of `Pregel` that runs it."""

    def invoke(
        self,
        input: Any,
        config: Config | None = None,
        *,
        version: Version = "v1",
        **asked: Unpack[RunKeywords],
    ) -> Any:
        """Run the graph, and return what its output channels hold at the end.

        Args:
            input: What the input channels are given: a dict, or the bare value
                of a single input channel. None goes on where the thread stopped;
                a `Command` answers an interrupt, writes, or goes somewhere.
            config: LangGraph's config dict; the same as keywords is
                ``thread_id=``, ``checkpoint_id=``, ``run_id=``,
                ``recursion_limit=``, ``max_concurrency=``, ``tags=``,
                ``metadata=``, ``configurable=``.
            version: ``"v2"`` returns a `GraphOutput`, with interrupts beside the value.
            asked: What `stream` takes as well: ``context``, ``stream_mode``,
                ``output_keys``, ``interrupt_before``, ``interrupt_after``,
                ``durability``, ``control``, ``print_mode``.
                ``resume="auto"`` goes on with the thread's unfinished run if there
                is one, which must have been given equal input, and starts one
                otherwise. A ``run_id`` names a run: asked for again, it goes on, or
                returns what it returned. ``on_mismatch`` says what to do when a
                resumed body makes another call than the recorded one: ``"error"``
                (default), ``"rerun"`` it, or ``"reuse"`` what is recorded.
                ``progress=True`` shows a live view on stderr.

        Returns:
            The output; with an ``__interrupt__`` key if the run waits for
            answers; for a stream mode but ``values``, the list of its items.

        Raises:
            EmptyInputError: There is nothing to run on.
            GraphRecursionError: The run used up its supersteps.
            InputMismatchError: The run to go on with was started with other input.
            ReplayMismatchError: A resumed body made another call than before.
            Exception: What a task raised when it would not be tried again.

        Example:
            >>> app.invoke({"a": "foo"}, thread_id="1")  # doctest: +SKIP
            {'b': 'foofoo'}
        """
        plain = asked.get("stream_mode") in (None, "values") and not asked.get("print_mode")
        if plain and current.get() is not None:
            return self.call_nested(input, config, asked).result()
        engine, request = self._engine(input, config, asked, quiet=plain)
        items = watched(drive(engine), request.view)
        if plain:
            for _ in items:
                continue
            return _output(engine, version, request)
        return [wrap(item, request, version) for item in items if _shown(item, request)]

    async def ainvoke(
        self,
        input: Any,
        config: Config | None = None,
        *,
        version: Version = "v1",
        **asked: Unpack[RunKeywords],
    ) -> Any:
        """`invoke`, on the running event loop; async nodes run on it too."""
        plain = asked.get("stream_mode") in (None, "values") and not asked.get("print_mode")
        if plain and current.get() is not None:
            return await self.call_nested(input, config, asked)
        engine, request = self._engine(input, config, asked, quiet=plain, loop=running_loop())
        items = awatched(adrive(engine), request.view)
        if plain:
            async for _ in items:
                continue
            return _output(engine, version, request)
        return [wrap(item, request, version) async for item in items if _shown(item, request)]

    def stream(
        self,
        input: Any,
        config: Config | None = None,
        *,
        version: Version = "v1",
        **asked: Unpack[StreamKeywords],
    ) -> Iterator[Any]:
        """Run the graph, and yield what happens while it happens.

        A reader that stops early ends the run: what is running is cancelled
        where it can be, what finished is kept, and ``invoke(None)`` goes on.

        Args:
            input, config: As `invoke` takes them.
            version: ``"v2"`` yields dicts with ``type``, ``ns`` and ``data``.
            asked: ``stream_mode`` (``values``, ``updates``, ``custom``,
                ``progress``, ``checkpoints``, ``tasks``, ``debug``, or a list of them),
                ``subgraphs=True`` to hear of nested graphs too, ``output_keys``,
                ``interrupt_before``, ``interrupt_after``, ``durability``,
                ``context``, ``control``, ``print_mode``, and the settings.

        Yields:
            Payloads; with a list of modes ``(mode, payload)``; with
            ``subgraphs=True`` the namespace comes first.
        """
        engine, request = self._engine(input, config, self._streaming(asked))
        items = watched(drive(engine), request.view)
        try:
            for item in items:
                if _shown(item, request):
                    yield wrap(item, request, version)
        finally:
            items.close()  # type: ignore[attr-defined]

    async def astream(
        self,
        input: Any,
        config: Config | None = None,
        *,
        version: Version = "v1",
        **asked: Unpack[StreamKeywords],
    ) -> AsyncIterator[Any]:
        """`stream`, on the running event loop."""
        engine, request = self._engine(input, config, self._streaming(asked), loop=running_loop())
        items = awatched(adrive(engine), request.view)
        try:
            async for item in items:
                if _shown(item, request):
                    yield wrap(item, request, version)
        finally:
            await items.aclose()  # type: ignore[attr-defined]

    def batch(
        self,
        inputs: Sequence[Any],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: bool = False,
        **asked: Unpack[RunKeywords],
    ) -> list[Any]:
        """Run the graph on each of *inputs*, side by side, and return the outputs in order.

        Args:
            inputs: What each run is given.
            config: One for all, or one for each.
            return_exceptions: Whether to return what a run raises in its place.
            asked: As `invoke` takes it.
        """
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - seldom needed

        configs = _configs(config, len(inputs))
        if not inputs:
            return []
        limit = (configs[0] or {}).get("max_concurrency") or min(32, len(inputs))
        with ThreadPoolExecutor(limit, thread_name_prefix="flowpregel-batch") as pool:
            futures = [
                pool.submit(self.invoke, given, own, **asked)
                for given, own in zip(inputs, configs, strict=True)
            ]
        if return_exceptions:
            return [future.exception() or future.result() for future in futures]
        return [future.result() for future in futures]

    async def abatch(
        self,
        inputs: Sequence[Any],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: bool = False,
        **asked: Unpack[RunKeywords],
    ) -> list[Any]:
        """`batch`, on the running event loop."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        configs = _configs(config, len(inputs))
        limit = (configs[0] or {}).get("max_concurrency") if configs else None
        gate = asyncio.Semaphore(limit or max(1, len(inputs)))

        async def one(given: Any, own: Config | None) -> Any:
            async with gate:
                return await self.ainvoke(given, own, **asked)

        runs = [one(given, own) for given, own in zip(inputs, configs, strict=True)]
        return await asyncio.gather(*runs, return_exceptions=return_exceptions)

    def _streaming(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what was asked of a stream, which shows more than a run returns."""
        if asked.get("output_keys") is not None:
            return asked
        return {**asked, "output_keys": self.stream_channels_asis}

    def _engine(
        self,
        given: Any,
        config: Config | None,
        asked: Mapping[str, Any],
        *,
        quiet: bool = False,
        loop: Any = None,
    ) -> tuple[Engine, Request]:
        """Return an engine for one run, and what was asked of it."""
        options, settings = _split(asked)
        parsed = parse(merged(self.config, config, of_keywords(settings))).outermost()
        ask = Ask(**options)
        printed = modes_of(ask.print_mode, ())
        if ask.debug or (ask.debug is None and self.debug):
            printed = ("updates", "values")
        request = Request(
            given=given,
            parsed=parsed,
            modes=() if quiet else modes_of(ask.stream_mode, self.stream_mode),
            labelled=isinstance(ask.stream_mode, Sequence) and not isinstance(ask.stream_mode, str),
            subgraphs=ask.subgraphs,
            context=ask.context,
            output_keys=ask.output_keys,
            interrupt_before=ask.interrupt_before,
            interrupt_after=ask.interrupt_after,
            durability=ask.durability,
            control=ask.control,
            resume=ask.resume,
            on_mismatch=ask.on_mismatch,
            view=view_of(self.name, ask.progress),
            printed=printed,
            shaped=self.shaped,
        )
        return Engine(plan_of(self, request), loop), request

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse to be called: a graph is run by `invoke` and its kin."""
        raise TypeError(f"graph {self.name!r} is not a function; use .invoke(...) or .stream(...)")


_OPTIONS = frozenset(Ask.__dataclass_fields__)


def _split(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    options = {key: value for key, value in asked.items() if key in _OPTIONS}
    return options, {key: value for key, value in asked.items() if key not in _OPTIONS}


def _configs(config: Config | Sequence[Config] | None, count: int) -> list[Config | None]:
    if config is None or isinstance(config, Mapping):
        return [config] * count
    if len(config) != count:
        raise ValueError(f"batch got {count} inputs and {len(config)} configs; give one for each")
    return list(config)


def _shown(item: tuple[tuple[str, ...], str, Any], request: Request) -> bool:
    if item[1] in request.printed:
        print_item(item)
    return item[1] in request.modes


def _output(engine: Engine, version: Version, request: Request) -> Any:
    result = result_of(engine)
    if version == "v2":
        return GraphOutput(request.shaped(result.values), result.interrupts)
    if not result.interrupts:
        return result.values
    values = result.values if isinstance(result.values, dict) else {}
    return {**values, "__interrupt__": list(result.interrupts)}
