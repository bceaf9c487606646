"""A graph with many channels: a superstep stores what it changed, and every checkpoint
reads the same, whichever others are gone.
"""

import lmdb
import pytest

from flowpregel import END, START, StateGraph
from flowpregel._core.records import Address, Batch, Checkpoint
from flowpregel.channels import LastValue
from flowpregel.checkpoint.lmdb import LMDBSaver, Retention
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import StoreCorruptError
from flowpregel.pregel import NodeBuilder, Pregel
from tests.runs.stores import id_of

T = Address("t")


class Line:
    """A line of checkpoints of many channels, and what each should read as."""

    def __init__(self, channels=100, nodes=10):
        self.versions = {f"c{number}": 0 for number in range(channels)}
        self.values = {name: f"value of {name}" for name in self.versions}
        self.seen = {f"node {number}": {"c0": 0} for number in range(nodes)}
        self.expected = {}
        self.number = 0

    def next(self, changed=None, *, parent="newest", gone=()):
        """Return the batch of the next checkpoint, which changes *changed* channels."""
        first = self.number == 0
        changed = {**self.values} if first else dict(changed or {})
        parent_id = None if first else id_of(self.number - 1)
        if parent != "newest":
            parent_id = parent
            self.versions, self.values, self.seen = map(dict, self.expected[parent])
        version = self.number + 1
        self.versions = {**self.versions, **dict.fromkeys(changed, version)}
        self.values = {**self.values, **changed}
        self.seen = {**self.seen, f"node {self.number % 3}": {"c0": version}}
        for name in gone:
            del self.versions[name], self.values[name]
        identifier = id_of(self.number)
        self.expected[identifier] = self.versions, self.values, self.seen
        checkpoint = Checkpoint(
            id=identifier,
            parent_id=parent_id,
            at=version,
            step=self.number,
            source="loop",
            channel_versions=self.versions,
            versions_seen=self.seen,
            changed=tuple(changed),
            values=changed,
        )
        self.number += 1
        return Batch(address=T, checkpoint=checkpoint)

    def check(self, saver):
        """Compare everything that the saver has with what was committed."""
        found = {saved.checkpoint.id: saved.checkpoint for saved in saver.history(T)}
        for identifier, checkpoint in found.items():
            versions, values, seen = self.expected[identifier]
            assert checkpoint.channel_versions == versions
            assert checkpoint.values == values
            assert checkpoint.versions_seen == seen
            assert checkpoint == saver.load(Address("t", "", identifier)).checkpoint
        return sorted(found)


def filled(saver, count, **sizes):
    """Return a line of *count* checkpoints in *saver*, each changing one channel."""
    line = Line(**sizes)
    for number in range(count):
        saver.commit([line.next({f"c{number * 7 % 100}": number})])
    return line


def keyframes_in(path):
    """Return the keys of the keyframes in the file."""
    environment = lmdb.open(str(path), max_dbs=20, lock=False, readonly=True)
    with environment, environment.begin() as transaction:
        values = environment.open_db(b"values", transaction, create=False)
        return [key for key, _ in transaction.cursor(values) if key[8:9] == b"k"]


def test_every_checkpoint_reads_as_it_was_committed(path):
    with LMDBSaver(path) as saver:
        line = filled(saver, 60)
        assert 60 == len(line.check(saver))

    with LMDBSaver(path) as saver:
        line.check(saver)
        assert saver.verify().ok


def test_a_superstep_stores_what_it_changed_however_many_channels_there_are(tmp_path):
    sizes = []
    for channels in (100, 1_000):
        with LMDBSaver(tmp_path / str(channels)) as saver:
            filled(saver, 200, channels=channels, nodes=1)
            sizes.append(saver.stats().bytes_of_checkpoints / 200)

    # A checkpoint that has the versions of all channels takes 12 bytes for each.
    assert sizes[0] < 100 * 12
    assert sizes[1] < 1_000 * 12 / 3
    assert sizes[1] < 5 * sizes[0]


@pytest.mark.parametrize("kept", [1, 2, 30])
def test_kept_checkpoints_read_the_same_when_the_others_are_swept(path, kept):
    with LMDBSaver(path, retention=Retention(keep_last=kept)) as saver:
        line = filled(saver, 150)

    # Opened anew, so that nothing comes from the memory of the process.
    with LMDBSaver(path) as saver:
        assert kept <= len(line.check(saver)) < kept + 33
        saver.prune(["t"])
    with LMDBSaver(path) as saver:
        assert [id_of(149)] == line.check(saver)
        assert saver.verify().ok
    assert 1 == len(keyframes_in(path))


def test_a_copy_reads_the_same_when_the_original_is_deleted(path):
    with LMDBSaver(path) as saver:
        line = filled(saver, 40)
        saver.copy_thread("t", "copy")
        saver.delete_thread("t")
        saver.copy_thread("copy", "t")
    with LMDBSaver(path) as saver:
        assert 40 == len(line.check(saver))
        saver.delete_thread("t")
        saver.delete_thread("copy")
    assert not keyframes_in(path)


def test_a_fork_has_the_channels_of_the_checkpoint_it_began_at(path):
    with LMDBSaver(path) as saver:
        line = filled(saver, 40)
        for origin in (3, 0, 39, 17):
            saver.commit([line.next({"c5": origin}, parent=id_of(origin))])
            saver.commit([line.next({"c6": origin})])
    with LMDBSaver(path) as saver:
        line.check(saver)


def test_a_checkpoint_that_is_committed_twice_leaves_the_others_as_they_are(path):
    """LangGraph's ``put`` replaces a checkpoint of the same id."""
    with LMDBSaver(path) as saver:
        line = filled(saver, 1)
        first = line.next({"c1": "old"})
        saver.commit([first])
        after = [line.next({"c2": number}) for number in range(5)]
        saver.commit(after)
        first.checkpoint.values["c1"] = "new"
        saver.commit([first])

        saved = saver.load(Address("t", "", first.checkpoint.id)).checkpoint
        assert "new" == saved.values["c1"]
    with LMDBSaver(path) as saver:
        assert saver.verify().ok
        assert 4 == saver.load(T).checkpoint.values["c2"]


def test_a_value_that_is_replaced_under_the_same_version_stays_replaced(path):
    """A saver of LangGraph's interface is free to do that."""
    with LMDBSaver(path) as saver:
        line = filled(saver, 3)
        batch = line.next()
        batch.checkpoint.values["c50"] = "replaced"
        line.values["c50"] = "replaced"
        saver.commit([batch, line.next({"c51": 1})])
    with LMDBSaver(path) as saver:
        assert "replaced" == saver.load(T).checkpoint.values["c50"]
        line.check(saver)


def test_channels_that_a_new_version_of_the_graph_lacks_are_gone(path):
    with LMDBSaver(path) as saver:
        line = filled(saver, 10)
        saver.commit([line.next({"c1": 1}, gone=["c40", "c41"])])
        saver.commit([line.next({"new": 1})])
        saver.commit([line.next({"c2": 1}, gone=[f"c{at}" for at in range(50, 99)])])
        saver.commit([line.next({"c3": 1}, gone=[f"c{at}" for at in range(4, 40)])])
    with LMDBSaver(path) as saver:
        assert 14 == len(line.check(saver))


def test_a_graph_that_grows_continues_its_thread():
    """Both ways: a few channels become many, and many become few."""
    saver = InMemorySaver()

    def graph(channels):
        names = [f"c{number}" for number in range(channels)]
        return Pregel(
            nodes={
                "n": NodeBuilder().subscribe_only("c0").do(lambda x: x).write_to("out")
            },
            channels={name: LastValue(int) for name in [*names, "out"]},
            input_channels=names,
            output_channels="out",
            executor="inline",
            checkpointer=saver,
        )

    for number, channels in enumerate((3, 80, 3, 80)):
        given = {f"c{at}": 10 * number + at for at in range(channels)}
        result = graph(channels).invoke(given, thread_id="t")
        assert 10 * number == result
        values = saver.load(T).checkpoint.values
        assert given == {name: values[name] for name in given}


def test_a_graph_with_many_keys_and_nodes_resumes_where_it_was(path):
    fields = {f"field_{number}": int for number in range(60)}
    graph = StateGraph(type("State", (dict,), {"__annotations__": fields}))
    for number in range(60):

        def node(state, number=number):
            return {f"field_{number}": number}

        graph.add_node(f"node_{number}", node)
    for number in range(59):
        graph.add_edge(f"node_{number}", f"node_{number + 1}")
    graph.add_edge(START, "node_0")
    graph.add_edge("node_59", END)

    with LMDBSaver(path) as saver:
        app = graph.compile(checkpointer=saver, interrupt_before=["node_40"])
        app.invoke({"field_0": 0}, thread_id="t", recursion_limit=100)
    with LMDBSaver(path) as saver:
        app = graph.compile(checkpointer=saver)
        assert ("node_40",) == app.get_state(thread_id="t").next
        result = app.invoke(None, thread_id="t", recursion_limit=100)
    assert {name: number for number, name in enumerate(fields)} == result


def test_a_keyframe_that_is_gone_is_reported(path):
    with LMDBSaver(path) as saver:
        filled(saver, 5)
    (key,) = keyframes_in(path)
    environment = lmdb.open(str(path), max_dbs=20, map_size=1 << 30)
    with environment, environment.begin(write=True) as transaction:
        values = environment.open_db(b"values", transaction, create=False)
        transaction.delete(key, db=values)

    with LMDBSaver(path) as saver:
        with pytest.raises(StoreCorruptError, match="channels that some checkpoints"):
            saver.load(T)
        assert not saver.verify().ok


def test_stats_count_keyframes_as_checkpoints_and_know_all_channels(path):
    with LMDBSaver(path) as saver:
        line = Line(channels=3_000)
        saver.commit([line.next()])
        saver.commit([line.next({"c7": "x" * 10_000})])
        found = saver.stats()

    assert {f"c{number}" for number in range(3_000)} == found.bytes_of_channels.keys()
    assert 10_000 < found.bytes_of_channels["c7"] < 10_200
    assert 3_000 * 12 < found.bytes_of_checkpoints < 3_000 * 60


def test_a_bound_of_bytes_counts_each_keyframe_once(path):
    """400 channels take 12 kB in a keyframe, which 28 checkpoints have in common."""
    bound = 100_000
    with LMDBSaver(path, retention=Retention(max_bytes=bound)) as saver:
        line = filled(saver, 400, channels=400)
        found = saver.stats()
        names = line.check(saver)

    kept = sum(found.bytes_of_channels.values()) + found.bytes_of_checkpoints
    # The sweep is due every 32 checkpoints.
    assert bound / 2 < kept < bound * 1.8
    assert 50 < len(names)
