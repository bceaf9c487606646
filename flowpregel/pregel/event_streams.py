"""The events of a run for the readers of LangGraph's package `langgraph.stream`.

::

    Pregel.stream(version="v3") --parts--> StreamMux --> transformers --> projections
                                           `-------- langgraph.stream --------------'

The readers and the transformers are LangGraph's, which must be installed. They do not
depend on LangGraph's engine: they take the parts of the stream of a run and of the
graphs nested in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from flowpregel.errors import ConfigurationError
from flowpregel.pregel.runnables import RunnableMethods

_BUILT_IN: Final = (
    "ValuesTransformer",
    "MessagesTransformer",
    "LifecycleTransformer",
    "SubgraphTransformer",
)
"""The transformers of every reader, by their names in ``langgraph.stream``."""
_OWN_OPTIONS: Final = ("stream_mode", "subgraphs", "version")
"""The options of a stream that follow from the transformers, so that users cannot pass
them.
"""


class EventMethods(RunnableMethods):
    """A mixin with `stream_events` and `astream_events`. With ``version="v3"``, they
    return LangGraph's objects for reading the events of a run.
    """

    stream: Callable[..., Any]
    astream: Callable[..., Any]
    stream_transformers: Any

    def stream_events(
        self,
        input: Any,
        config: Any = None,
        *,
        version: str,
        transformers: Sequence[Callable[..., Any]] = (),
        **keywords: Any,
    ) -> Any:
        """Run the graph, and return LangGraph's reader of the run's events, a
        ``langgraph.stream.GraphRunStream``.

        The reader has ``values``, ``messages``, ``lifecycle``, ``subgraphs`` and the
        projections of other transformers, which you iterate over, and ``output``. The
        run continues while you read. LangGraph must be installed.

        Args:
            input, config: As `invoke` takes them.
            version: The version of the events, ``"v3"``.
            transformers: Transformers in addition to those of the graph: classes, or
                functions that take a namespace.
            keywords: As `stream` takes them, without ``stream_mode`` and ``subgraphs``,
                which follow from the transformers.

        Raises:
            ConfigurationError: The version is unknown, or LangGraph is not installed.
            TypeError: An option follows from the transformers, or a transformer is an
                instance.

        Example:
            >>> reader = app.stream_events({"a": "foo"}, version="v3")  # doctest: +SKIP
            >>> list(reader.values), reader.output  # doctest: +SKIP
            ([{'b': 'foofoo'}], {'b': 'foofoo'})
        """
        if version != "v3":
            raise ConfigurationError(
                f"stream_events has version='v3' only, not {version!r}"
            )
        events = EventStream((*self.stream_transformers, *transformers))
        return events.reader(self.stream(input, config, **events.options(keywords)))

    def astream_events(
        self,
        input: Any,
        config: Any = None,
        *,
        version: str = "v2",
        transformers: Sequence[Callable[..., Any]] = (),
        **options: Any,
    ) -> Any:
        """Run on the running event loop, and yield LangChain's events.

        With ``version="v3"``, the result is an awaitable of LangGraph's reader of the
        run's events, a ``langgraph.stream.AsyncGraphRunStream``; see `stream_events`.

        Args:
            input, config: As `invoke` takes them.
            version: The version of the events.
            transformers: Transformers of version ``"v3"``, in addition to those of the
                graph.
            options: The options of LangChain's ``astream_events``, and the keywords of
                `stream`.

        Example:
            >>> import asyncio
            >>> from flowpregel import entrypoint
            >>> @entrypoint()
            ... def double(number: int) -> int:
            ...     return 2 * number
            >>> async def names() -> list[str]:
            ...     events = double.astream_events(4)
            ...     return [event["event"] async for event in events]
            >>> asyncio.run(names())[-1]
            'on_chain_end'
        """
        if version != "v3":
            return super().astream_events(input, config, version=version, **options)
        return self._event_reader(input, config, transformers, options)

    async def _event_reader(
        self,
        input: Any,
        config: Any,
        transformers: Sequence[Callable[..., Any]],
        options: Mapping[str, Any],
    ) -> Any:
        events = EventStream((*self.stream_transformers, *transformers), is_async=True)
        return events.reader(self.astream(input, config, **events.options(options)))


class EventStream:
    """A stream of events that is not begun yet.

    Args:
        transformers: Functions that take a namespace and return a transformer.
        is_async: Whether the reader is async.

    Raises:
        ConfigurationError: LangGraph is not installed.
        TypeError: A transformer is an instance, and not a class or a function that
            would make one for each nested graph.
    """

    def __init__(
        self,
        transformers: Sequence[Callable[..., Any]],
        *,
        is_async: bool = False,
    ) -> None:
        self._is_async = is_async
        self._modes: dict[str, None] = {}
        base = _stream_module("_types").StreamTransformer
        for transformer in transformers:
            if isinstance(transformer, base):
                raise TypeError(
                    f"a transformer is an instance of {type(transformer).__name__}; "
                    "pass the class, or a function of the namespace, because each "
                    "nested graph has its own"
                )
        built_in = _stream_module("transformers")
        factories = [getattr(built_in, name) for name in _BUILT_IN]
        self._mux = _stream_module("_mux").StreamMux(
            factories=[
                self._with_modes(factory) for factory in (*factories, *transformers)
            ],
            is_async=is_async,
        )

    def _with_modes(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls *factory*, and records the stream modes that the
        transformer reads.
        """

        def make(namespace: tuple[str, ...]) -> Any:
            transformer = factory(namespace)
            modes = getattr(transformer, "required_stream_modes", ())
            self._modes.update(dict.fromkeys(modes))
            return transformer

        return make

    def options(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords of `Pregel.stream` for the transformers.

        Raises:
            TypeError: *keywords* have an option that depends on the transformers.
        """
        for name in _OWN_OPTIONS:
            if name in keywords:
                raise TypeError(f"stream_events sets {name} itself: leave it out")
        return {
            **keywords,
            "stream_mode": list(self._modes),
            "subgraphs": True,
            "version": "v3",
        }

    def reader(self, items: Any) -> Any:
        """Return LangGraph's reader of *items*: a `GraphRunStream`, or its async
        form.
        """
        module = _stream_module("run_stream")
        if self._is_async:
            return module.AsyncGraphRunStream(items, self._mux)
        return module.GraphRunStream(items, self._mux)


def _stream_module(name: str) -> Any:
    """Return a module of LangGraph's package ``langgraph.stream``.

    Raises:
        ConfigurationError: LangGraph is not installed.
    """
    try:
        return import_module(f"langgraph.stream.{name}")
    except ImportError as error:
        raise ConfigurationError(
            "stream_events(version='v3') returns a reader of LangGraph's package "
            "langgraph.stream, which is not installed; get it with: pip install "
            "'langgraph>=1.2'"
        ) from error
