"""LangGraph's own acceptance suite for savers, in full, on our store."""

import asyncio

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from flowpregel.plugins.langgraph import LMDBSaver


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")

        @checkpointer_test(name="LMDBSaver")
        async def factory():
            with LMDBSaver(
                tmp_path_factory.mktemp("conformance") / "store.lmdb"
            ) as saver:
                yield saver

        return asyncio.run(validate(factory))


@pytest.mark.parametrize("capability", [each.value for each in Capability])
def test_the_lmdb_saver_passes_each_check_of_a_capability(report, capability):
    result = report.results[capability]

    assert result.detected
    assert [] == result.failures
    assert result.tests_passed


def test_no_check_of_the_suite_is_left_out_for_the_lmdb_saver(report):
    assert 81 <= sum(each.tests_passed for each in report.results.values())
