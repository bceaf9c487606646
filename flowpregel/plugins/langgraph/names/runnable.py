"""`RunnableCallable`: a function, in its sync and async forms, as a Runnable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableLike as ChainPart
from langchain_core.runnables.base import coerce_to_runnable as chain_part

from flowpregel.errors import ConfigurationError
from flowpregel.plugins.langgraph.names.config import ensure_config
from flowpregel.runtime import Runtime, get_runtime, is_inside_run

__all__ = [
    "RunnableCallable",
    "RunnableLike",
    "coerce_to_runnable",
    "is_async_callable",
]

RunnableLike: TypeAlias = ChainPart[Any, Any] | Callable[..., Any]
"""A Runnable, a function, or a dict of these."""

_RUN_VALUES: Final = {
    "previous": "previous",
    "store": "store",
    "writer": "stream_writer",
}
"""The fields of a `Runtime`, by the names of the parameters that get them."""


class RunnableCallable(Runnable[Any, Any]):
    """A function as a Runnable, with the values of the run that its parameters name.

    Args:
        func: The sync function, or None.
        afunc: The async function. None runs *func* on an OS thread.
        name: The name; by default that of the function.
        tags: Tags, which are only stored.
        trace: Only stored; flowpregel traces nodes.
        recurse: Whether a Runnable that the function returns is called with the same
            input.
        explode_args: Whether the input is a pair of positional and keyword arguments.
        kwargs: Keyword arguments of the function.

    Raises:
        ConfigurationError: Both functions are None.
    """

    def __init__(  # noqa: PLR0913 - LangGraph's signature
        self,
        func: Callable[..., Any] | None,
        afunc: Callable[..., Coroutine[Any, Any, Any]] | None = None,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        trace: bool = True,
        recurse: bool = True,
        explode_args: bool = False,
        **kwargs: Any,
    ) -> None:
        function = func or afunc
        if function is None:
            raise ConfigurationError("give RunnableCallable a function")
        own_name = getattr(function, "__name__", None)
        self.name: str | None = name or (None if own_name == "<lambda>" else own_name)
        self.func = func
        self.afunc = afunc
        self.tags = tags
        self.trace = trace
        self.recurse = recurse
        self.explode_args = explode_args
        self.kwargs = kwargs
        self._parameters = _named_parameters(function)

    def invoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        """Return the result of the sync function.

        Raises:
            ConfigurationError: There is only an async function.
        """
        if self.func is None:
            raise ConfigurationError(
                f'No synchronous function provided to "{self.name}": use ainvoke'
            )
        result = self._bound(self.func, input, config, kwargs)()
        if self.recurse and isinstance(result, Runnable):
            return result.invoke(input, config)
        return result

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        """Return the result of the async function, or else of the sync one."""
        if self.afunc is None:
            return await asyncio.to_thread(self.invoke, input, config, **kwargs)
        result = await self._bound(self.afunc, input, config, kwargs)()
        if self.recurse and isinstance(result, Runnable):
            return await result.ainvoke(input, config)
        return result

    def _bound(
        self,
        function: Callable[..., Any],
        input: Any,
        config: RunnableConfig | None,
        kwargs: dict[str, Any],
    ) -> Callable[[], Any]:
        """Return *function* as a partial with all arguments, including the values of
        the run that its parameters name.
        """
        arguments: Sequence[Any] = (input,)
        keywords: dict[str, Any] = {}
        if self.explode_args:
            arguments, keywords = input
        keywords = {**self.kwargs, **keywords, **kwargs}
        runtime: Runtime[Any] = get_runtime() if is_inside_run() else Runtime()
        values: dict[str, Any] = {"runtime": runtime}
        for name, field_name in _RUN_VALUES.items():
            values[name] = getattr(runtime, field_name)
        values["config"] = ensure_config() if config is None else config
        for name in self._parameters & values.keys() - keywords.keys():
            keywords[name] = values[name]
        return partial(function, *arguments, **keywords)


def _named_parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of *function* that can be passed by name."""
    by_name = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    parameters = [*inspect.signature(function).parameters.values()]
    return frozenset(
        parameter.name for parameter in parameters[1:] if parameter.kind in by_name
    )


def coerce_to_runnable(
    thing: Any, *, name: str | None = None, trace: bool = True
) -> Runnable[Any, Any]:
    """Return *thing*, a Runnable, a function or a dict of these, as a Runnable."""
    if isinstance(thing, Runnable) or not callable(thing):
        part: Runnable[Any, Any] = chain_part(thing)
        return part
    if is_async_callable(thing):
        return RunnableCallable(None, thing, name=name, trace=trace)
    return RunnableCallable(thing, name=name, trace=trace)


def is_async_callable(function: Any) -> bool:
    """Return whether calling *function* gives a coroutine."""
    call = getattr(function, "__call__", None)  # noqa: B004 - the method is inspected
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
