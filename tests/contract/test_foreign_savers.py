"""LangGraph's savers, used as ours: what they keep reads back in our records."""

import sqlite3
import threading
import time
from dataclasses import replace

import pytest
from langgraph import types
from langgraph.checkpoint.memory import InMemorySaver as TheirInMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from flowpregel._core.commands import Interrupt, Send
from flowpregel._core.records import Address, PendingWrite
from flowpregel.channels import Overwrite
from flowpregel.checkpoint.langgraph_methods import langgraph_config
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.func import entrypoint, task
from flowpregel.plugins.langgraph import ForeignSaver, as_saver
from flowpregel.testing.saver_hooks import Timeline, ids, nth_id, nth_task_id, writes
from flowpregel.types import interrupt


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def saver(request):
    if request.param == "memory":
        yield as_saver(TheirInMemorySaver())
        return
    if request.param == "postgres":
        yield as_saver(request.getfixturevalue("langgraph_postgres"))
        return
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    yield as_saver(SqliteSaver(connection))
    connection.close()


def test_a_committed_checkpoint_reads_back(saver):
    line = Timeline(saver, "t", "ns")
    batch = line.batch(
        1, {"a": [1]}, source="input", metadata={"run_id": "r", "parents": {}}
    )
    saver.commit([batch])

    got, given = line.load().checkpoint, batch.checkpoint

    assert got.values == {"a": [1]}
    for name in (
        "id",
        "parent_id",
        "step",
        "source",
        "channel_versions",
        "versions_seen",
    ):
        assert getattr(got, name) == getattr(given, name), name
    assert got.metadata == {"run_id": "r", "parents": {}}
    assert got.at == given.at


def test_what_is_changed_after_it_was_prepared_is_not_kept(saver):
    """A run in `async` goes on with the same objects while the batch waits for its
    commit.
    """
    line = Timeline(saver, "t")
    line.commit(1)
    value, written, metadata = (
        {"n": [1]},
        [1, {"a": [2]}],
        {"run_id": "r", "tags": ["x"]},
    )
    batch = line.batch(2, {"a": value}, metadata=metadata)
    batch = replace(batch, writes=writes("t", 1, ("a", written)).writes)

    prepared = saver.prepare(saver.prepare(batch))
    value["n"].append("changed")
    written[1]["a"].append("changed")
    metadata["tags"].append("changed")
    saver.commit([prepared])

    assert line.load(2).checkpoint.values == {"a": {"n": [1]}}
    assert line.load(2).checkpoint.metadata["tags"] == ["x"]
    assert line.load(1).writes == (PendingWrite(nth_task_id(1), "a", [1, {"a": [2]}]),)


def test_one_without_a_serializer_is_given_copies():
    theirs = TheirInMemorySaver()
    line = Timeline(as_saver(theirs), "t")
    value = [1]
    batch = line.batch(1, {"a": value})
    serializer, theirs.serde = theirs.serde, None
    prepared = line.saver.prepare(batch)
    theirs.serde = serializer
    value.append("changed")
    line.saver.commit([prepared])

    assert line.load(1).checkpoint.values == {"a": [1]}


def test_what_a_body_does_to_a_result_is_not_in_a_late_record():
    """Nor what it does to its input."""
    saver = as_saver(TheirInMemorySaver())
    commit, committed = saver.commit, []

    def commit_late(batches):
        if threading.current_thread().name == "flowpregel-writer":
            time.sleep(0.05)
        committed.extend(batches)
        commit(batches)

    saver.commit = commit_late

    @task
    def numbers(n):
        return [n]

    @entrypoint(checkpointer=saver)
    def flow(given):
        result = numbers(1).result()
        result.append("changed")
        given.append("changed")
        return interrupt("go on?")

    flow.invoke([0], thread_id="t", durability="async")

    found = saver.load(Address("t"))
    assert committed
    assert "changed" not in repr((found.checkpoint.values, found.writes))


def test_values_of_unchanged_channels_stay(saver):
    line = Timeline(saver, "t")
    line.commit(1, {"a": 1, "b": 1})
    line.commit(2, {"a": 2})
    line.commit(3, emptied=("a",))

    assert line.load(2).checkpoint.values == {"a": 2, "b": 1}
    assert line.load(3).checkpoint.values == {"b": 1}
    assert line.load(3).checkpoint.parent_id == nth_id(2)


def test_writes_are_kept_before_the_checkpoint_that_consumes_them(saver):
    line = Timeline(saver, "t")
    line.commit(1)
    both = replace(line.batch(2, {"a": 1}), writes=writes("t", 1, ("a", 1)).writes)
    saver.commit([both])

    assert line.load(1).writes == (PendingWrite(nth_task_id(1), "a", 1),)
    assert line.load(2).writes == ()


def test_the_newest_a_named_one_and_one_before_are_loaded(saver):
    line = Timeline(saver, "t")
    for number in (1, 2, 3):
        line.commit(number, {"a": number})

    assert line.load().is_latest
    assert not line.load(2).is_latest
    before = saver.load(Address("t"), before=nth_id(3))
    assert before.checkpoint.id == nth_id(2)
    assert not before.is_latest
    assert saver.load(Address("t"), before=nth_id(1)) is None
    assert saver.load(Address("unknown")) is None


def test_history_is_newest_first_and_keeps_its_bounds(saver):
    line = Timeline(saver, "t")
    Timeline(saver, "t", "child").commit(9)
    for number in (1, 2, 3):
        line.commit(number, source="input" if number == 1 else "loop")

    assert ids(saver, "t") == [nth_id(3), nth_id(2), nth_id(1)]
    options = {"filter": {"source": "loop"}, "before": nth_id(3), "limit": 1}
    found = [*saver.history(Address("t"), **options)]
    assert [each.checkpoint.id for each in found] == [nth_id(2)]
    assert not found[0].is_latest
    assert ids(saver, "unknown") == []


def test_namespaces_are_those_that_have_a_checkpoint(saver):
    for place in (("t", ""), ("t", "child"), ("u", "")):
        Timeline(saver, *place).commit(1)

    assert {Address("t"), Address("t", "child")} == {*saver.namespaces("t")}
    assert {Address("t"), Address("t", "child"), Address("u")} == {*saver.namespaces()}


def test_sends_and_interrupts_come_back_as_ours(saver):
    line = Timeline(saver, "t")
    sends = [Send("node", {"a": 1}), Send("node", 2, timeout=1.5)]
    question = Interrupt("why?", "an id")
    line.commit(1, {"__pregel_tasks": sends})
    saver.commit(
        [writes("t", 1, ("__interrupt__", [question]), ("__pregel_tasks", sends[0]))]
    )

    saved = line.load()

    assert saved.checkpoint.values == {"__pregel_tasks": sends}
    kept = {write.channel: write.value for write in saved.writes}
    assert kept == {"__interrupt__": [question], "__pregel_tasks": sends[0]}


def test_what_a_task_wrote_is_kept_in_langgraphs_types(saver):
    """Its serializer gives back no others when it is strict."""
    line = Timeline(saver, "t")
    line.commit(1)
    written = Overwrite([1]), {"__interrupt__": [Interrupt("why?", "an id")], "a": 1}
    saver.commit(
        [saver.prepare(writes("t", 1, ("a", written[0]), ("__return__", written[1])))]
    )

    theirs = [
        value
        for *_, value in saver.saver.get_tuple(
            langgraph_config(Address("t"))
        ).pending_writes
    ]

    assert [types.Overwrite([1]), types.Interrupt("why?", "an id")] == [
        theirs[0],
        *theirs[1]["__interrupt__"],
    ]
    assert written == tuple(write.value for write in line.load().writes)


def test_versions_come_from_the_saver(saver):
    first = saver.get_next_version(None, None)
    second = saver.get_next_version(first, None)

    assert saver.owns_versions
    assert not saver.keeps_deltas
    assert type(second) is type(saver.saver.get_next_version(None, None))
    assert first < second


def test_a_deleted_thread_is_gone(saver):
    line = Timeline(saver, "t")
    line.commit(1)
    saver.delete_thread("t")

    assert saver.load(Address("t")) is None


def test_what_a_saver_does_not_offer_it_says():
    with pytest.raises(NotImplementedError):
        as_saver(TheirInMemorySaver()).copy_thread("t", "u")


def test_a_saver_of_ours_stays_as_it_is():
    ours = InMemorySaver()

    assert as_saver(ours) is ours


def test_an_object_with_the_four_methods_will_do():
    class Four:
        def get_tuple(self, config): ...
        def list(self, config, **options): ...
        def put(self, config, checkpoint, metadata, new_versions): ...
        def put_writes(self, config, writes, task_id, task_path=""): ...

    assert isinstance(as_saver(Four()), ForeignSaver)


def test_an_object_without_them_is_refused_by_what_it_lacks():
    with pytest.raises(ConfigurationError, match="get_tuple, list, put, put_writes"):
        as_saver("runs.lmdb")
