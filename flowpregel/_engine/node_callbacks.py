"""The callback handlers, as the code of a node reaches them.

::

    coordinator                              the node's code
    -----------                              ---------------
    `GraphCallbacks`  -- context variable -> `NodeCallbacks`
                                               |  LangChain's callback manager, for
                                               |  models, tools and chains
                                               v  functions of conditional edges
    handler  <------ in the same process -- handler
    handler  <-- event `HandlerCall` ------ `Forwarder`, in a worker process
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from flowpregel._engine.handlers import Handlers
from flowpregel.context import (
    NodeCallbacks,
    PathRun,
    Scope,
    callback_manager,
    config_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCallbacks(NodeCallbacks):
    """The callback handlers for the code of one attempt of a node."""

    handlers: Handlers
    run_id: UUID
    """The id of the attempt, which callback handlers get as the parent's id."""
    tags: tuple[str, ...]
    """The tags that are passed on to models, tools and chains."""
    metadata: Mapping[str, Any]

    def __reduce__(self) -> Any:
        return _in_worker, (
            self.handlers.forwarded(),
            self.run_id,
            self.tags,
            self.metadata,
        )

    def enter(
        self, scope: Scope, call: Callable[..., Any], *, on_loop: bool
    ) -> Generator[Awaitable[None], None, Callable[..., Any]]:
        """Make the callback handlers available to the code of an attempt that begins.

        Args:
            scope: The objects that the code of the attempt can reach.
            call: A function that calls one of the node's callables (its steps).
            on_loop: Whether the attempt runs on an event loop.

        Yields:
            The objects that the attempt must await before it calls the node.

        Returns:
            The function to use in place of *call*.
        """
        queue = self.handlers.queue
        # The queue is emptied first, so that callback handlers get the start of the
        # node before the node calls a model.
        if queue is not None and not queue.is_empty():
            if on_loop:
                yield queue.drain()
            else:
                queue.wait()
        if self.handlers.make_manager is None:
            return call
        node = scope.job.task.node

        def call_step(callee: Any, *args: Any, **options: Any) -> Any:
            """Call *callee*, a step of the node, with a callback manager of its own."""
            position = node.steps.index(callee) + 1
            tag = f"seq:step:{position}"
            self._pass_on(scope, self.run_id, tag, on_loop=on_loop)
            return call(callee, *args, **options)

        return call_step

    def _pass_on(
        self, scope: Scope, run_id: UUID, tag: str | None, *, on_loop: bool
    ) -> None:
        """Give the code of the attempt a callback manager.

        Args:
            scope: The objects that the code of the attempt can reach.
            run_id: The id that models and tools get as the parent's id.
            tag: The tag of the (traced) runs that the code starts, or None. With a tag,
                the config that the code gets contains the manager too.
            on_loop: Whether the code is awaited on an event loop.
        """
        make_manager = self.handlers.make_manager
        if make_manager is None:
            return
        parent = replace(self, run_id=run_id)
        config = config_of(scope)
        manager = make_manager(
            self.handlers.handlers, parent, tag, config, on_loop=on_loop
        )
        if tag is not None:
            callback_manager.set(manager)

    @contextmanager
    def path(
        self, scope: Scope, name: str | None, tag: str, state: Any, *, on_loop: bool
    ) -> Iterator[PathRun]:
        """Call the callback handlers when the path function of a conditional edge
        starts and ends.

        Args:
            scope: The objects that the code of the attempt can reach.
            name: The name of the function, or None for a ``Runnable``, which calls the
                handlers itself.
            tag: The tag with which the function's run is reported.
            state: The input of the function.
            on_loop: Whether the function is awaited on an event loop.
        """
        path_run = PathRun()
        self._pass_on(scope, self.run_id, tag, on_loop=on_loop)
        if name is None:
            yield path_run
            return
        handlers = self.handlers
        run_id = uuid4()
        tags = [tag, *self.tags]
        identity = {"run_id": run_id, "parent_run_id": self.run_id, "tags": tags}
        labels = {"metadata": dict(self.metadata), "name": name}
        handlers.call("on_chain_start", None, state, **identity, **labels)
        if on_loop and handlers.queue is not None:
            path_run.delay = handlers.queue.drain()
        self._pass_on(scope, run_id, None, on_loop=on_loop)
        try:
            yield path_run
        except BaseException as error:
            handlers.call("on_chain_error", error, **identity)
            raise
        handlers.call("on_chain_end", path_run.output, **identity)


def _in_worker(
    handlers: Handlers, run_id: UUID, tags: tuple[str, ...], metadata: Any
) -> AttemptCallbacks:
    return AttemptCallbacks(
        handlers=handlers, run_id=run_id, tags=tags, metadata=metadata
    )
