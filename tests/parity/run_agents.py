"""Runs the programs of `agent_programs` on one engine, and prints what they show.

Run ``python -m tests.parity.run_agents ENGINE DRIVE [NAME ...]``, where ENGINE is
``langgraph``, or ``flowpregel`` for the executor in ``FLOWPREGEL_EXECUTOR``, and
DRIVE is ``sync`` or ``async``. The engine is chosen for the whole process, before
LangChain is imported.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from typing import Any

from tests.parity.langchain import outcome, shown


class Runner:
    """Runs agents, sync or async.

    Args:
        is_async: Whether to run them on an event loop.
    """

    def __init__(self, is_async: bool) -> None:
        self._is_async = is_async

    def values(
        self, agent: Any, given: Any, thread: str | None = None, context: Any = None
    ) -> Any:
        """Return the output of *agent* for *given*, on a thread."""
        options = {
            "config": {"configurable": {"thread_id": thread}},
            "context": context,
        }
        if self._is_async:
            return asyncio.run(agent.ainvoke(given, **options))
        return agent.invoke(given, **options)

    def invoke(
        self, agent: Any, given: Any, thread: str | None = None, context: Any = None
    ) -> Any:
        """Return the output of *agent* with its questions, shown; or its error."""

        def run() -> Any:
            output = self.values(agent, given, thread, context)
            questions = [item.value for item in output.get("__interrupt__", ())]
            return [output, questions]

        return outcome(run)

    def stream(self, agent: Any, given: Any, mode: str, **options: Any) -> Any:
        """Return the items of a stream of *agent*, shown, without ids of tasks."""

        async def read() -> list[Any]:
            return [item async for item in agent.astream(given, **options)]

        options |= {"stream_mode": mode, "version": "v2"}
        items = (
            asyncio.run(read()) if self._is_async else agent.stream(given, **options)
        )
        return [
            [
                [part.split(":")[0] for part in item["ns"]],
                _shown_item(mode, item["data"]),
            ]
            for item in items
        ]

    def events(self, agent: Any, given: Any, projection: str) -> Any:
        """Return the items of a projection of *agent*'s events, and the output."""

        async def read() -> list[Any]:
            reader = await agent.astream_events(given, version="v3")
            items = [
                await _content_later(item) async for item in getattr(reader, projection)
            ]
            return [items, shown(await reader.output())]

        if self._is_async:
            return asyncio.run(read())
        reader = agent.stream_events(given, version="v3")
        items = [_content_of(item) for item in getattr(reader, projection)]
        return [items, shown(reader.output)]


def _content_of(item: Any) -> Any:
    """Return what an item of a projection shows."""
    if hasattr(item, "tool_name"):
        deltas = list(item.output_deltas)
        return [item.tool_name, item.input, deltas, shown(item.output), item.error]
    if hasattr(item, "text"):
        return ["".join(item.text), item.node]
    return _without_ids(item)


async def _content_later(item: Any) -> Any:
    if hasattr(item, "tool_name"):
        deltas = [delta async for delta in item.output_deltas]
        return [item.tool_name, item.input, deltas, shown(item.output), item.error]
    if hasattr(item, "text"):
        return ["".join([part async for part in item.text]), item.node]
    return _without_ids(item)


def _without_ids(item: Any) -> Any:
    """Return a state, or the event, the graph and the nodes of a payload of a
    lifecycle.
    """
    if "namespace" not in item:
        return shown(item)
    nodes = [part.split(":")[0] for part in item["namespace"]]
    return [item["event"], item.get("graph_name"), item.get("cause"), nodes]


def _shown_item(mode: str, data: Any) -> Any:
    """Return the payload of an item, shown. Of a message, the node stands for its
    metadata; its name is left out, which LangChain sets after the message was streamed.
    """
    if mode == "messages":
        message, metadata = data
        kind, _, *parts = shown(message)
        return [kind, *parts, metadata["langgraph_node"]]
    return shown(data)


def main() -> None:
    """Print what each program shows, as JSON."""
    engine, drive, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    if engine == "flowpregel":
        from flowpregel.plugins.langgraph import install

        install()
    from tests.parity.agent_programs import PROGRAMS

    run = Runner(drive == "async")
    results = {
        program.__name__: outcome(lambda: program(run))  # noqa: B023
        for program in PROGRAMS
        if not names or program.__name__ in names
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
