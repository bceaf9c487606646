"""Conversion between our records and LangGraph's shapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel._core import ids
from flowpregel._core.records import Address, Checkpoint
from flowpregel.checkpoint import langgraph_methods as shapes
from flowpregel.errors import ConfigurationError

MICROSECONDS = st.integers(0, 4_000_000_000_000_000)


@given(MICROSECONDS)
def test_a_time_survives_its_text_to_the_microsecond(microseconds):
    at = microseconds * 1000

    assert shapes.nanoseconds_of(ids.timestamp(at)) == at


@pytest.mark.parametrize("text", ["1970-01-01T00:00:01", "1970-01-01T02:00:01+02:00"])
def test_a_time_without_a_zone_is_utc(text):
    assert shapes.nanoseconds_of(text) == 1_000_000_000


@given(st.text(), st.text(), st.none() | st.text(min_size=1))
def test_an_address_survives_its_config(thread_id, namespace, checkpoint_id):
    address = Address(thread_id, namespace, checkpoint_id)

    assert shapes.address_of(shapes.langgraph_config(address)) == address


@pytest.mark.parametrize("config", [{}, {"configurable": {}}, {"configurable": None}])
def test_a_config_without_a_thread_is_refused(config):
    with pytest.raises(ConfigurationError, match="thread"):
        shapes.address_of(config)


def test_a_thread_id_that_is_a_number_is_its_text():
    assert shapes.address_of({"configurable": {"thread_id": 7}}) == Address("7")


def test_a_record_survives_the_dict():
    checkpoint = Checkpoint(
        id="2",
        parent_id="1",
        at=5_000,
        step=3,
        source="fork",
        channel_versions={"a": 1},
        versions_seen={"n": {"a": 1}},
        changed=(),
        updated_channels=("a",),
        values={"a": "x"},
        metadata={"parents": {"": "0"}, "run_id": "r"},
    )

    shown, metadata = shapes.dict_of(checkpoint), shapes.metadata_of(checkpoint)
    found = shapes.checkpoint_of(
        shown, metadata, parent_id="1", values=shown["channel_values"]
    )

    assert found == checkpoint


def test_a_dict_of_an_older_format_stays_one():
    given_dict = {
        "v": 1,
        "id": "1",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {},
    }

    record = shapes.checkpoint_of(given_dict, {}, parent_id=None, values={})

    assert shapes.dict_of(record)["v"] == 1
    assert shapes.metadata_of(record) == {"parents": {}, "source": "loop", "step": -1}


def test_the_next_version_is_later_than_any_of_the_past():
    ahead = shapes.version_after(None) + 10**18

    assert shapes.version_after(ahead) == ahead + 1
    assert shapes.version_after(None) < shapes.version_after(1.5) + 1


def test_a_version_that_is_a_text_has_no_next_one():
    with pytest.raises(ConfigurationError, match=r"0001\.5"):
        shapes.version_after("0001.5")
