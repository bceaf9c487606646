"""The callback handlers of a run, and the calls of their methods.

A handler has the methods of LangChain's handlers, or some of them. A method may be a
coroutine function. In an async run, coroutines are awaited on the event loop, one after
the other. In a sync run, each is run to its end at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Final

from flowpregel._core.effects import HandlerCall
from flowpregel._engine.lifecycle import LIFECYCLE_METHODS
from flowpregel._loggers import run_log
from flowpregel.context import current

_FLAGS: Final = {
    "on_agent_action": "ignore_agent",
    "on_agent_finish": "ignore_agent",
    "on_chain_end": "ignore_chain",
    "on_chain_error": "ignore_chain",
    "on_chain_start": "ignore_chain",
    "on_chat_model_start": "ignore_chat_model",
    "on_custom_event": "ignore_custom_event",
    "on_llm_end": "ignore_llm",
    "on_llm_error": "ignore_llm",
    "on_llm_new_token": "ignore_llm",
    "on_llm_start": "ignore_llm",
    "on_retriever_end": "ignore_retriever",
    "on_retriever_error": "ignore_retriever",
    "on_retriever_start": "ignore_retriever",
    "on_retry": "ignore_retry",
    "on_text": "",
    "on_tool_end": "ignore_agent",
    "on_tool_error": "ignore_agent",
    "on_tool_start": "ignore_agent",
}
"""The methods of LangChain's callback handlers, each with the attribute of a handler
that switches it off.
"""
_BASE_CLASS: Final = "langchain_core.callbacks.base"
"""The module that defines a callback handler's method if the handler has not overridden
it. Such a method does nothing.
"""


@dataclass(frozen=True, slots=True)
class Handlers:
    """Callback handlers, whose errors are logged. A handler may lack methods.

    Args:
        handlers: The handlers, each with some of LangChain's methods.
        queue: The queue of coroutines in an async run, or None.
        make_manager: A function that returns a callback manager of LangChain for the
            code of a node, or None.
    """

    handlers: Sequence[Any] = ()
    queue: HandlerQueue | None = None
    make_manager: Callable[..., Any] | None = None

    def call(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call *method* of each callback handler that has it."""
        for handler in self.handlers:
            self.call_one(handler, method, args, kwargs)

    def call_one(
        self, handler: Any, method: str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        """Call *method* of *handler*, if it has the method. An error is logged."""
        try:
            function = _callable_method(handler, method)
            if function is None:
                return
            reply = function(*args, **kwargs)
            if inspect.isawaitable(reply):
                self._await(reply, method)
        except Exception:  # noqa: BLE001 - a run does not depend on its handlers
            _log_failure(method)

    def _await(self, reply: Awaitable[Any], method: str) -> None:
        """Await a *reply*, which *method* returned, on the event loop of the run if it
        has one.
        """
        if self.queue is not None and self.queue.is_here():
            self.queue.add(reply, method)
        else:
            await_on_own_loop(reply)

    def with_values(self, value: Any, recorded: Any) -> Iterator[tuple[Handlers, Any]]:
        """Yield each callback handler with the value that it gets: *recorded* for
        LangChain's tracers, which record it, and *value* for any other handler.
        """
        if recorded is value:
            yield self, value
            return
        tracers = [item for item in self.handlers if hasattr(item, "run_map")]
        others = [item for item in self.handlers if not hasattr(item, "run_map")]
        yield replace(self, handlers=others), value
        yield replace(self, handlers=tracers), recorded

    def with_more(self, handlers: Sequence[Any]) -> Handlers:
        """Return these callback handlers, followed by those of the given *handlers*
        that are not among them.
        """
        more = [*self.handlers]
        for handler in handlers:
            is_known = any(handler is other for other in more)
            if not is_known and not getattr(handler, "is_forwarder", False):
                more.append(handler)
        return replace(self, handlers=more)

    def observe_nodes(self) -> bool:
        """Return whether any callback handler has one of the methods that are called
        during a run.
        """
        for handler in self.handlers:
            for method in (*_FLAGS, *LIFECYCLE_METHODS):
                if _callable_method(handler, method) is not None:
                    return True
        return False

    def forwarded(self) -> Handlers:
        """Return stand-ins for these callback handlers, to be used by code in another
        process.
        """
        forwarders: list[Forwarder] = []
        for position, handler in enumerate(self.handlers):
            methods = [name for name in _FLAGS if _callable_method(handler, name)]
            ignored = {flag for flag in _FLAGS.values() if getattr(handler, flag, 0)}
            forwarder = Forwarder(position, frozenset(methods), frozenset(ignored))
            forwarders.append(forwarder)
        return Handlers(forwarders, None, self.make_manager)


def _callable_method(handler: Any, method: str) -> Any:
    """Return the method of *handler*, or None if the handler lacks it, inherits one
    that does nothing, or has switched it off.
    """
    flag = _FLAGS.get(method)
    if flag and getattr(handler, flag, False):
        return None
    function = getattr(handler, method, None)
    return None if getattr(function, "__module__", "") == _BASE_CLASS else function


def _log_failure(method: str) -> None:
    run_log.exception("%s of a callback failed", method)


@dataclass(frozen=True, slots=True)
class Forwarder:
    """The stand-in for a callback handler in a worker process. It sends calls to the
    coordinator, which calls the handler.

    Args:
        position: The position of the handler among the handlers of the run.
        methods: The methods that the handler has.
        ignored: The attributes of the handler that are true and switch methods off.
    """

    position: int
    methods: frozenset[str]
    ignored: frozenset[str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.methods:
            raise AttributeError(name)

        def forward(*args: Any, **kwargs: Any) -> None:
            scope = current.get()
            if scope is not None:
                call = HandlerCall(self.position, name, args, kwargs)
                scope.run_client.emit(call)

        return forward


class HandlerQueue:
    """The coroutines of callback handlers of an async run, which the run's event loop
    awaits one after the other.

    Args:
        loop: The event loop of the run.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._last: Any = None
        """The asyncio task that awaits the last coroutine, or None."""

    def is_here(self) -> bool:
        """Return whether the calling OS thread runs the event loop."""
        return _running_loop() is self._loop

    def add(self, reply: Awaitable[Any], method: str) -> None:
        """Await *reply*, which *method* returned, after the earlier coroutines."""
        self._last = self._loop.create_task(self._after(self._last, reply, method))

    async def _after(self, earlier: Any, reply: Awaitable[Any], method: str) -> None:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        if earlier is not None:
            await asyncio.wait({earlier})
        try:
            await reply
        except Exception:  # noqa: BLE001 - a run does not depend on its handlers
            _log_failure(method)

    def is_empty(self) -> bool:
        """Return whether all coroutines of the queue have ended."""
        return self._last is None or self._last.done()

    async def drain(self) -> None:
        """Wait until all coroutines of the queue have ended."""
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        while not self.is_empty():
            await asyncio.wait({self._last})

    def wait(self) -> None:
        """Wait, on an OS thread other than that of the event loop, until all coroutines
        have ended.
        """
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        if not self.is_empty() and not self.is_here():
            asyncio.run_coroutine_threadsafe(self.drain(), self._loop).result()


def await_on_own_loop(reply: Awaitable[Any]) -> None:
    """Await *reply* on a new event loop that runs only for it."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    async def awaited() -> None:
        await reply

    if _running_loop() is None:
        asyncio.run(awaited())
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(copy_context().run, asyncio.run, awaited()).result()


def _running_loop() -> Any:
    """Return the event loop that runs on the calling OS thread, or None."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
