"""The reasons that the command `why` shows: whether the next run uses the result of a
call or a node, or computes it again, and which part of the code has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flowpregel._core.provenance import code_of_node
from flowpregel._inspection.code_changes import difference_in, version_changes

if TYPE_CHECKING:
    from flowpregel.checkpoint.base import BaseCheckpointSaver
    from flowpregel.checkpoint.work import Work
    from flowpregel.pregel.pregel import Pregel


def next_run_text(work: Work, flow: Pregel, saver: BaseCheckpointSaver) -> str:
    """Return a sentence about the next run: whether it uses the recorded result of a
    call or a node, or computes it again.

    Args:
        work: The call or the node.
        flow: The workflow or graph that the run belongs to.
        saver: The store of the run.
    """
    if work.state == "failed":
        return "it is tried again, unless the flow handled the failure"
    if work.state != "done":
        return "it runs, or continues"
    if work.call_key is None:
        return _node_text(work, flow, saver)
    name = work.call_key.name.removesuffix(".map")
    tasks = [task for task in tasks_beside(flow) if task.name == name]
    if not tasks:
        return (
            "the recorded result is used; its code cannot be compared, because the "
            f"flow's module has no task {name!r}"
        )
    recorded = work.call_key.code
    codes = {task.code for task in tasks}
    if recorded in codes:
        return _unchanged_text(saver, recorded)
    policy = tasks[0].options.on_code_change
    return _changed_text(saver, recorded, tasks[0].code, policy)


def _node_text(work: Work, flow: Pregel, saver: BaseCheckpointSaver) -> str:
    """Return the sentence of `next_run_text` for a node that has ended."""
    node = flow.definition.program_now().nodes.get(str(work.name))
    recorded = "" if work.ran is None else work.ran.code
    now = "" if node is None else code_of_node(node)
    if not (recorded and now):
        return "the recorded result is used; its code cannot be compared"
    if recorded == now:
        return _unchanged_text(saver, recorded)
    return _changed_text(saver, recorded, now, None)


def _unchanged_text(saver: BaseCheckpointSaver, code: str) -> str:
    """Return the sentence of `next_run_text` for a result whose code has not
    changed.
    """
    text = "the recorded result is used; the code is unchanged"
    versions = version_changes(saver, code)
    if not versions:
        return text
    return f"{text}; {'; '.join(versions)} (versions of packages do not count)"


def _changed_text(
    saver: BaseCheckpointSaver, recorded: str, now: str, policy: str | None
) -> str:
    """Return the sentence of `next_run_text` for a result whose code has changed, with
    the changes.
    """
    difference = difference_in(saver, recorded, now)
    changes = f": {difference}" if difference else ""
    if policy == "rerun":
        return f"it is computed again, because the code has changed{changes}"
    if policy == "error":
        return f"the run fails, because the code has changed{changes}"
    return (
        f"the recorded result is used, although the code has changed{changes}; "
        "on_code_change='rerun' computes it again"
    )


def tasks_beside(flow: Pregel) -> Iterator[Any]:
    """Yield the tasks that are global variables in the modules of a flow's
    functions.
    """
    for node in flow.nodes.values():
        for step in node.steps:
            for value in getattr(step, "__globals__", {}).values():
                if hasattr(type(value), "call_here"):
                    yield value
