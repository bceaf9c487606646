"""Values of another kind than an option takes are refused where they are passed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, InvalidUpdateError
from flowpregel.pregel import PregelNode
from flowpregel.types import Command
from tests.graphs import fan_out, graph


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"retry_policy": 3}, r"retry_policy=3; use RetryPolicy\("),
        ({"retry_policy": [None]}, r"retry_policy=None; use RetryPolicy\("),
        ({"cache_policy": 60}, r"cache_policy=60; use CachePolicy\("),
    ],
)
def test_a_number_is_no_policy(option: Any, says: str) -> None:
    """Neither of a node nor of all of them; a task says so too."""
    with pytest.raises(ConfigurationError, match=says):
        PregelNode(channels="a", triggers=["a"], **option)
    with pytest.raises(ConfigurationError, match=says):
        graph({}, **option)


@pytest.mark.parametrize("thread_id", [7, UUID(int=7)])
def test_a_number_is_the_same_thread_to_a_run_and_to_its_saver(
    saver: BaseCheckpointSaver, thread_id: Any
) -> None:
    """What is to be deleted is deleted."""
    app = fan_out(str, checkpointer=saver)
    config = {"configurable": {"thread_id": thread_id}}
    app.invoke(1, config)

    saver.copy_thread(thread_id, 8)  # type: ignore[arg-type]
    saver.prune([thread_id, 8])  # type: ignore[list-item]
    saver.delete_thread(thread_id)

    assert {} == app.get_state(config).values
    assert {} != app.get_state({"configurable": {"thread_id": "8"}}).values
    with pytest.raises(ConfigurationError, match="thread_id must be text, not None"):
        saver.delete_thread(None)  # type: ignore[arg-type]


def test_a_command_that_updates_what_has_no_name_is_refused(drive: Any) -> None:
    """A number is no channel."""
    app = fan_out(str, checkpointer=InMemorySaver())

    with pytest.raises(
        InvalidUpdateError, match="wrote to channel 1, which does not exist"
    ):
        drive.invoke(app, Command(update={1: 2}), thread_id="1")
