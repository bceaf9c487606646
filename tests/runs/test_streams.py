"""What a run streams, in which shape and order, and what a reader that stops early leaves."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from tests.graphs import fan_out

# -------------------------------------------------------------------- ctrl-c


def press_ctrl_c(_: Any) -> None:
    """Do what Ctrl-C does in the middle of a node."""
    raise KeyboardInterrupt


def test_ctrl_c_in_an_inline_node_ends_the_run_and_keeps_what_finished() -> None:
    """Of two tasks on the run's own OS thread, the first ended before the key was pressed."""
    saver = InMemorySaver()
    runs: list[str] = []
    calls = (lambda _: runs.append("first"), press_ctrl_c)
    app = fan_out(*calls, checkpointer=saver, executor="inline")

    with pytest.raises(KeyboardInterrupt):
        app.invoke(1, thread_id="t")
    with pytest.raises(KeyboardInterrupt):
        app.invoke(None, thread_id="t")

    assert ["first"] == runs
