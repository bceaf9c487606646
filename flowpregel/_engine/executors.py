"""Which executor a node runs on; made when first needed, closed with the run."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable
from typing import Any

from flowpregel._core.records import Node
from flowpregel.errors import ConfigurationError
from flowpregel.executors.attempt import async_in_sync_run
from flowpregel.executors.base import Executor
from flowpregel.executors.inline import InlineExecutor
from flowpregel.executors.threads import BodyThreads, ThreadExecutor

NAMES = ("processes", "threads", "inline")
_MOST_KNOWN = 256


def default_executor() -> str:
    """Return the executor of programs that name none: ``FLOWPREGEL_EXECUTOR``, or processes."""
    return os.environ.get("FLOWPREGEL_EXECUTOR") or "processes"


def check_executor(value: Any) -> Any:
    """Return *value* if it can be an executor.

    Raises:
        ConfigurationError: It is no known name, and no executor.
    """
    if value is None or isinstance(value, Executor | concurrent.futures.Executor):
        return value
    if value in NAMES:
        return value
    raise ConfigurationError(
        f"executor={value!r}: use {', '.join(map(repr, NAMES))}, a flowpregel executor, "
        "or any concurrent.futures.Executor"
    )


class Executors:
    """The executors of one outermost run.

    Args:
        inline: Runs what is to run on the OS thread that drives the run.
        loop: The running event loop of an async run; None in a sync one.
        threads: How many tasks may run on OS threads at once; None is the default.
    """

    def __init__(self, inline: InlineExecutor, loop: Any, threads: int | None) -> None:
        self.inline = inline
        self.is_async = loop is not None
        self._loop = loop
        self._on_loop: Executor | None = None
        self._threads_limit = threads
        self._own: dict[str, ThreadExecutor] = {}
        self._adapted: dict[int, Executor] = {}
        # The node is kept beside its executor, so that its id names nothing else meanwhile.
        self._known: dict[int, tuple[Node, Any, Executor]] = {}

    def for_node(self, node: Node, default: Any, *, on_loop: bool = False) -> Executor:
        """Return where an attempt of *node* runs.

        Raises:
            TypeError: An async node, in a sync run that cannot await it.
        """
        known = self._known.get(id(node))
        if known is not None and known[1] is default and not on_loop:
            executor = known[2]
            if executor is self.inline or not executor.is_closed:
                return executor
        executor = self._find(node, default, on_loop)
        if not on_loop:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[id(node)] = node, default, executor
        return executor

    def _find(self, node: Node, default: Any, on_loop: bool) -> Executor:
        is_async = on_loop or any(
            step.is_async or (self.is_async and step.coroutine is not None) for step in node.steps
        )
        if is_async:
            if not self.is_async and node.role == "leaf" and not node.is_task:
                raise async_in_sync_run(node.name)
            return self._coroutines()
        if node.role == "body":
            return self._threads("body", BodyThreads)
        wanted = node.executor if node.executor is not None else default
        if wanted is None:
            wanted = default_executor()
        if wanted == "inline":
            return self.inline
        if wanted == "threads":
            return self._threads("threads", lambda: ThreadExecutor(self._threads_limit))
        if isinstance(wanted, Executor):
            return wanted
        return self._adapt(wanted)

    def check_timeout(self, node: Node, executor: Executor) -> None:
        """Refuse a timeout that cannot be kept.

        Raises:
            ConfigurationError: The executor cannot stop a task.
        """
        if not executor.capabilities.times_out:
            raise ConfigurationError(
                f"node {node.name!r} has a timeout, but {type(executor).__name__} cannot stop a "
                "sync task that takes too long: use executor='processes', or make it async"
            )

    def _coroutines(self) -> Executor:
        if self._on_loop is None:
            from flowpregel.executors.coroutines import (  # noqa: PLC0415 - imports asyncio
                CoroutineExecutor,
            )

            self._on_loop = CoroutineExecutor(self._loop)
        return self._on_loop

    def _threads(self, key: str, make: Callable[[], ThreadExecutor]) -> ThreadExecutor:
        if key not in self._own:
            self._own[key] = make()
        return self._own[key]

    def _adapt(self, wanted: Any) -> Executor:
        check_executor(wanted)
        if wanted == "processes":
            from flowpregel.executors.processes import default_pool  # noqa: PLC0415 - imports loky

            return default_pool()
        if id(wanted) not in self._adapted:
            from flowpregel.executors.futures import FuturesExecutor  # noqa: PLC0415 - seldom used

            self._adapted[id(wanted)] = FuturesExecutor(wanted)
        return self._adapted[id(wanted)]

    def close(self, *, wait: bool) -> None:
        """End what belongs to the run; *wait* for tasks on OS threads."""
        if self._on_loop is not None:
            self._on_loop.close()
        for executor in self._own.values():
            if wait:
                executor.close()
            else:
                executor.abandon()
