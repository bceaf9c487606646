"""Generated graphs do on flowpregel what they do on LangGraph."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.parity import sides
from tests.parity.plans import Plan, plans
from tests.parity.stories import told


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(plan=plans())
def test_a_thread_looks_the_same_as_on_langgraph(plan: Plan) -> None:
    """Outputs, streams, what is next, questions, states and history are equal after each step."""
    expected = told(sides.langgraph(), plan)

    got = told(sides.flowpregel(), plan)

    assert expected == got
