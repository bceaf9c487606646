"""The timeout policy of a `Send`, which LangGraph's savers store as their own class."""

from __future__ import annotations

from dataclasses import make_dataclass

import pytest

from flowpregel.plugins.langgraph.conversion import from_foreign, to_foreign
from flowpregel.types import Send, TimeoutPolicy

langgraph_types = pytest.importorskip("langgraph.types")


@pytest.mark.parametrize(
    "fields",
    [
        {"run_timeout": 5.0},
        {"idle_timeout": 2.0, "refresh_on": "heartbeat"},
    ],
)
def test_a_timeout_policy_comes_back_from_langgraph(fields: dict[str, object]) -> None:
    policy = TimeoutPolicy(**fields)  # type: ignore[arg-type]

    foreign = to_foreign(Send("work", 1, timeout=policy))

    assert langgraph_types.TimeoutPolicy(**fields) == foreign.timeout
    assert policy == from_foreign(foreign).timeout


def test_a_policy_may_have_a_field_that_the_other_library_lacks() -> None:
    """As long as the field has its default."""
    future_policy = make_dataclass(
        "TimeoutPolicy",
        [("run_timeout", float), ("refresh_on", str, "auto"), ("new", int, 0)],
    )
    foreign = langgraph_types.Send("work", 1)
    foreign.timeout = future_policy(5.0)

    assert TimeoutPolicy(run_timeout=5.0) == from_foreign(foreign).timeout
