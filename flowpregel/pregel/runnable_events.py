"""LangChain's ``astream_events`` for a graph: events made from the graph's stream.

LangChain makes these events from callbacks, which work only in the process that runs
the nodes. So the callbacks are called here, in the coordinator::

    the graph's stream, with the modes debug, messages and values
      |
      v
    `RunEvents` calls LangChain's callbacks for the start and the end of the run, of
    each task, and of each streamed answer of a model
      |
      v
    LangChain's `astream_events` yields an event for each callback

So the events are the same on every executor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessageChunk
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.config import get_async_callback_manager_for_config

from flowpregel._core.commands import Interrupt
from flowpregel._core.program import names
from flowpregel.errors import GraphInterrupt

_MODES: Final = ("debug", "messages", "values")
"""The stream modes from which the events are made."""
_OF_CALLBACKS: Final = frozenset({"callbacks", "run_id"})
"""The keys of LangChain's config that only this module uses: they are not passed to the
graph.
"""


def event_source(step: Any) -> Runnable[Any, Any]:
    """Return a Runnable that runs a graph or a node, and calls callbacks."""
    if hasattr(type(step), "nested_run"):
        return EventSource(step)
    return RunnableLambda(step.invoke, step.ainvoke, name=step.get_name())


class EventSource(Runnable[Any, Any]):
    """The stand-in for a graph in ``astream_events``: it streams the graph, and calls
    LangChain's callbacks.

    Args:
        graph: The graph or node that is streamed.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def invoke(self, input: Any, config: Any = None, **keywords: Any) -> Any:
        """Run the graph without events."""
        return self._graph.invoke(input, config, **keywords)

    async def astream(
        self,
        input: Any,
        config: Any = None,
        **keywords: Any,
    ) -> AsyncIterator[Any]:
        """Yield the items of the graph's stream.

        Args:
            input: The input of the run.
            config: LangChain's config, with the callbacks.
            keywords: The keywords of the graph's ``astream``.
        """
        graph = self._graph
        requested = _RequestedItems(
            keywords.pop("stream_mode", graph.stream_mode),
            has_namespaces=keywords.pop("subgraphs", False),
        )
        config = dict(config or {})
        events = RunEvents(graph.get_name(), config)
        own_config = {key: config[key] for key in config.keys() - _OF_CALLBACKS}
        stream = graph.astream(
            input,
            own_config,
            stream_mode=[*dict.fromkeys((*requested.modes, *_MODES))],
            subgraphs=True,
            **keywords,
        )
        await events.start(input)
        try:
            async for item in _after_task_ends(stream):
                await events.add(*item)
                if requested.has(*item):
                    yield requested.shaped(*item)
        except BaseException as error:
            await events.fail(error)
            raise
        await events.end()


async def _after_task_ends(stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the items of *stream*, with the update of each task after its end.

    The stream has the update first, LangChain's events have the end first.
    """
    updates: list[Any] = []
    async for item in stream:
        if item[1] == "updates":
            updates.append(item)
            continue
        yield item
        for update in updates:
            yield update
        updates.clear()
    for update in updates:
        yield update


class _RequestedItems:
    """The items of a graph's stream that the caller asked for, and their shape.

    Args:
        mode: The stream mode of the call, or a list of modes.
        has_namespaces: Whether the items of nested graphs are included.
    """

    def __init__(self, mode: Any, *, has_namespaces: bool) -> None:
        self.modes = names(mode)
        self._has_modes = not isinstance(mode, str)
        self._has_namespaces = has_namespaces

    def has(
        self,
        namespace: Sequence[str],
        mode: str,
        _: Any,
    ) -> bool:
        """Return whether the caller asked for an item."""
        is_included = self._has_namespaces or not namespace
        return is_included and mode in self.modes

    def shaped(
        self,
        namespace: Sequence[str],
        mode: str,
        payload: Any,
    ) -> Any:
        """Return an item in the shape that the caller asked for."""
        parts: list[Any] = []
        if self._has_namespaces:
            parts.append(namespace)
        if self._has_modes:
            parts.append(mode)
        return (*parts, payload) if parts else payload


class RunEvents:
    """The calls of LangChain's callbacks for one run of a graph.

    Args:
        name: The name of the graph.
        config: LangChain's config of the run.
    """

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any],
    ) -> None:
        self._name = config.get("run_name") or name
        self._run_id = config.get("run_id")
        run_config: Any = dict(config)
        self._manager: Any = get_async_callback_manager_for_config(run_config)
        self._run: Any = None
        self._tasks: dict[str, Any] = {}
        """The callbacks of each running task, by task id."""
        self._nested: set[str] = set()
        """The ids of the tasks that run a nested graph."""
        self._models: dict[str, ModelEvents] = {}
        """The events of each answer that is being streamed, by message id."""
        self._output: Any = None

    async def start(self, input: Any) -> None:
        """Call the callbacks for the start of the run."""
        self._run = await self._manager.on_chain_start(
            None, input, name=self._name, run_id=self._run_id
        )

    async def end(self) -> None:
        """Call the callbacks for the end of the run."""
        await self._end_models()
        for task_id, task in reversed(self._tasks.items()):
            # A task that is still open did not run, because its result was stored, or
            # its graph has stopped at a breakpoint.
            if task_id in self._nested:
                await task.on_chain_error(GraphInterrupt())
        await self._run.on_chain_end(self._output)

    async def fail(self, error: BaseException) -> None:
        """Call the callbacks for the failure of the run."""
        await self._run.on_chain_error(error)

    async def add(
        self,
        namespace: Sequence[str],
        mode: str,
        payload: Any,
    ) -> None:
        """Call the callbacks for an item of the graph's stream.

        Args:
            namespace: The namespace of the graph that the item comes from.
            mode: The stream mode.
            payload: The content of the item.
        """
        if mode == "debug":
            parent = self._run
            if namespace:
                parent = self._parent(namespace[-1])
                self._nested.add(_task_id(namespace[-1]))
            await self._add_task(parent, payload)
        elif mode == "messages":
            await self._add_message(*payload)
        elif mode == "values" and not namespace:
            self._output = payload

    def _parent(self, namespace: str) -> Any:
        """Return the callbacks of the task at the end of *namespace*, or those of the
        run if the task is not shown.
        """
        return self._tasks.get(_task_id(namespace), self._run)

    async def _add_task(
        self,
        parent: Any,
        event: Mapping[str, Any],
    ) -> None:
        """Call the callbacks for the start or the end of a task.

        Args:
            parent: The callbacks of the graph's run.
            event: An item of the mode ``debug``.
        """
        if event["type"] == "task":
            await self._start_task(parent, event["step"], event["payload"])
        elif event["type"] == "task_result":
            await self._end_task(event["payload"])

    async def _start_task(self, parent: Any, step: int, task: dict[str, Any]) -> None:
        """Call the callbacks for the start of a task in the superstep *step*."""
        manager = parent.get_child(f"graph:step:{step}")
        metadata = {
            "langgraph_step": step,
            "langgraph_node": task["name"],
            "langgraph_triggers": task["triggers"],
        }
        manager.add_metadata(metadata)
        self._tasks[task["id"]] = await manager.on_chain_start(
            None, task["input"], name=task["name"]
        )

    async def _end_task(self, task: dict[str, Any]) -> None:
        """Call the callbacks for the end of a task, or for its error. A task that asks
        has not ended, and LangChain has no event for that: it gets a `GraphInterrupt`.
        """
        run = self._tasks.pop(task["id"], None)
        if run is None:
            return
        error = task["error"]
        questions: list[Interrupt] = []
        for fields in task["interrupts"]:
            question = Interrupt(**fields)
            questions.append(question)
        if questions:
            error = GraphInterrupt(tuple(questions))
        if error is not None:
            await run.on_chain_error(error)
            return
        result = task["result"]
        await self._end_models(run)
        await _tap(run, result)
        await run.on_chain_end(result)

    async def _add_message(
        self,
        message: Any,
        metadata: Mapping[str, Any],
    ) -> None:
        """Call the callbacks for a part of a model's answer. A message that a node has
        written, or that was not streamed, has no event.
        """
        if not isinstance(message, BaseMessageChunk):
            return
        model = self._models.get(str(message.id))
        if model is None:
            parent = self._parent(metadata.get("langgraph_checkpoint_ns", ""))
            model = ModelEvents(parent, metadata)
            self._models[str(message.id)] = model
            await model.start()
        await model.add(message)

    async def _end_models(self, task: Any = None) -> None:
        """Call the callbacks for the ends of the model answers that a task has
        streamed.

        Args:
            task: The callbacks of the task that has ended, or None for all tasks.
        """
        for message_id, model in list(self._models.items()):
            if task is None or model.task is task:
                del self._models[message_id]
                await model.end()


class ModelEvents:
    """The calls of LangChain's callbacks for one answer of a chat model.

    Args:
        task: The callbacks of the task that calls the model.
        metadata: The metadata of the answer.
    """

    def __init__(
        self,
        task: Any,
        metadata: Mapping[str, Any],
    ) -> None:
        self.task = task
        self._metadata = metadata
        self._run: Any = None
        self._answer: Any = None

    async def start(self) -> None:
        """Call the callbacks for the start of the answer."""
        manager = self.task.get_child()
        manager.add_metadata(dict(self._metadata))
        (self._run,) = await manager.on_chat_model_start({}, [[]], name="model")

    async def add(self, chunk: Any) -> None:
        """Call the callbacks for a part of the answer."""
        self._answer = chunk if self._answer is None else self._answer + chunk
        await self._run.on_llm_new_token(
            chunk.text, chunk=ChatGenerationChunk(message=chunk)
        )

    async def end(self) -> None:
        """Call the callbacks for the end of the answer."""
        generation = ChatGenerationChunk(message=self._answer)
        await self._run.on_llm_end(LLMResult(generations=[[generation]]))


def _task_id(namespace: str) -> str:
    """Return the id of the task at the end of *namespace*."""
    *_, last = namespace.split("|")
    _, _, task_id = last.partition(":")
    return task_id


async def _tap(run: Any, output: Any) -> None:
    """Pass the output of a task to the callback handlers that listen to streamed
    output.
    """

    async def outputs() -> AsyncIterator[Any]:
        yield output

    for handler in run.handlers:
        tap = getattr(handler, "tap_output_aiter", None)
        if tap is not None:
            async for _ in tap(run.run_id, outputs()):
                pass
