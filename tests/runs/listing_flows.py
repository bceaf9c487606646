"""A flow and a graph whose tasks list the modules that their worker has imported.

They are apart from the tests, since a worker imports the module of a task.
"""

from __future__ import annotations

import sys
from typing import Any

from flowpregel import StateGraph, entrypoint, task
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.executors import ProcessExecutor


@task
def modules() -> list[str]:
    """Return the names of the modules in this process."""
    return list(sys.modules)


def node(state: dict[str, Any]) -> dict[str, Any]:
    """Write the names of the modules in this process to the state."""
    return {"modules": list(sys.modules)}


def modules_of_task(saver: BaseCheckpointSaver, pool: ProcessExecutor) -> list[str]:
    """Run a flow with one task; return the modules of the task's worker."""

    @entrypoint(checkpointer=saver, executor=pool)
    def flow(_: str) -> list[str]:
        return modules().result()

    return flow.invoke("list", thread_id="flow")


def modules_of_node(saver: BaseCheckpointSaver, pool: ProcessExecutor) -> list[str]:
    """Run a graph with one node; return the modules of the node's worker."""
    builder = StateGraph(dict).add_node("node", node).add_edge("__start__", "node")
    graph = builder.compile(checkpointer=saver, executor=pool)
    return graph.invoke({}, thread_id="graph")["modules"]
