"""LangGraph's own acceptance suite for savers, in full, optional capabilities
included.
"""

import asyncio

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.plugins.langgraph.saver import SaverAdapter


@pytest.fixture(scope="module")
def report():
    @checkpointer_test(name="InMemorySaver")
    async def factory():
        yield SaverAdapter(InMemorySaver())

    return asyncio.run(validate(factory))


@pytest.mark.parametrize("capability", [each.value for each in Capability])
def test_the_in_memory_saver_passes_each_check_of_a_capability(report, capability):
    result = report.results[capability]

    assert result.detected
    assert result.failures == []
    assert result.tests_passed


def test_no_check_of_the_suite_is_left_out(report):
    assert sum(each.tests_passed for each in report.results.values()) >= 81
