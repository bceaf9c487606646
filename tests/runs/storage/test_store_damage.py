"""What is damaged, moved, foreign or unsealed is refused, and nothing of it is
executed.
"""

import itertools
import os
import pickle
import shutil
import struct
from contextlib import suppress

import lmdb
import pytest

from flowpregel._core.records import Address, Batch, Checkpoint, Delta, TaskWrites
from flowpregel.checkpoint.layout import EMPTY, DeltaRecord
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import StoreCorruptError, StoreError, StoreForeignError
from flowpregel.storage import records as tables
from flowpregel.storage.records import TABLE_NAMES
from tests.runs.stores import KEY, commit, id_of, step

ADDRESS = Address("t")
LARGE = bytes(range(256)) * 9000  # three chunks


@pytest.fixture
def path(tmp_path):
    """A closed store that has a record of every kind."""
    path = tmp_path / "store.lmdb"
    with LMDBSaver(path) as saver:
        commit(saver, 0, {"n": 0, "large": LARGE, "d": ["seed"]})
        more = step(
            1, {"n": 1}, deltas={"d": Delta(1, ("more",))}, also={"large": 1, "d": 2}
        )
        writes = TaskWrites(
            id_of(1), "task", "path", (("n", "pending"), ("__interrupt__", "?"))
        )
        saver.commit([Batch(address=ADDRESS, checkpoint=more)])
        saver.commit([Batch(address=ADDRESS, writes=(writes,))])
        long = (long_text(), long_text())
        written = TaskWrites(
            id_of(1), "appends", "path", (("d", long[0]), ("d", long[1]))
        )
        most = step(
            2, {"n": 2}, deltas={"d": Delta(2, long)}, also={"large": 1, "d": 3}
        )
        saver.commit([Batch(address=ADDRESS, writes=(written,), checkpoint=most)])
        held = TaskWrites(id_of(2), "appends", "path", (("d", long[0]),))
        last = step(
            3, {"n": 3}, deltas={"d": Delta(3, (long[0],))}, also={"large": 1, "d": 4}
        )
        saver.commit([Batch(address=ADDRESS, writes=(held,), checkpoint=last)])
    return path


def long_text():
    """Return a text that a delta refers to rather than repeats: another object each
    time.
    """
    return "text that is longer than a reference to it" + str(os.getpid())


def records(path):
    """Return every record of a closed store: {(database, key): bytes}."""
    with lmdb.open(str(path), max_dbs=16, readonly=True, lib_version=0) as env:
        handles = {name: env.open_db(name, create=False) for name in TABLE_NAMES}
        with env.begin() as transaction:
            return {
                (name, key): value
                for name, handle in handles.items()
                for key, value in transaction.cursor(db=handle)
            }


def put(path, database, key, value):
    """Write a record behind the saver's back; None drops it."""
    with lmdb.open(str(path), max_dbs=16, map_size=1 << 26, lib_version=0) as env:
        handle = env.open_db(database, create=False)
        with env.begin(write=True, db=handle) as transaction:
            if value is None:
                transaction.delete(key)
            else:
                transaction.put(key, value)


def everything(path):
    """Return all that can be read of a store."""
    with LMDBSaver(path) as saver:
        places = sorted(saver.namespaces(), key=lambda each: each.namespace)
        found = [saved for place in places for saved in saver.history(place)]
        # What was added to a channel is decoded when it is looked at.
        added = [[*delta.writes] for saved in found for delta in saved.deltas.values()]
        return places, found, added


def test_there_is_a_record_of_every_kind(path):
    assert {name for name, _ in records(path)} >= {
        b"meta",
        b"threads",
        b"checkpoints",
        b"values",
        b"deltas",
        b"writes",
    }


def test_any_byte_of_any_record_flipped_gives_the_right_value_or_an_error(
    path, tmp_path
):
    right = everything(path)
    damaged = tmp_path / "damaged"
    for (database, key), value in records(path).items():
        positions = {0, 1, 15, 16, 17, 18, len(value) // 2, len(value) - 1} & {
            *range(len(value))
        }
        for position in positions:
            shutil.copytree(path, damaged)
            wrong = bytearray(value)
            wrong[position] ^= 0x10
            put(damaged, database, key, bytes(wrong))
            with suppress(StoreCorruptError):
                assert everything(damaged) == right, (database, key, position)
            shutil.rmtree(damaged)


def test_any_record_that_is_gone_gives_an_error_or_is_told_by_verify(path, tmp_path):
    right = everything(path)
    damaged = tmp_path / "damaged"
    # A pending write that is gone leaves no trace, nor does all that there was of a
    # thread.
    spared = {b"writes": b"", b"threads": b"", b"meta": b"next namespace"}
    for database, key in records(path):
        if key.startswith(spared.get(database, b"\xff")):
            continue
        shutil.copytree(path, damaged)
        put(damaged, database, key, None)
        try:
            if everything(damaged) != right:
                with LMDBSaver(damaged) as saver:
                    assert not saver.verify().ok, (database, key)
        except StoreCorruptError:
            pass
        shutil.rmtree(damaged)


def test_a_record_moved_to_another_key_is_refused(path):
    found = records(path)
    one, other = sorted(key for name, key in found if name == b"checkpoints")[:2]
    put(path, b"checkpoints", one, found[b"checkpoints", other])

    with pytest.raises(StoreCorruptError, match="was written elsewhere"):
        everything(path)


class Canary:
    """Its pickle leaves a folder behind when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.makedirs, (self.file, 0o700, True)


def test_an_unsealed_record_is_refused_and_not_executed(path, tmp_path):
    place = max(key for name, key in records(path) if name == b"deltas")
    sprung = tmp_path / "sprung"
    put(path, b"deltas", place, bytes(17) + b"p" + pickle.dumps(Canary(str(sprung))))

    with pytest.raises(StoreCorruptError):
        everything(path)
    assert not sprung.exists()


def test_without_the_checksum_the_canary_would_sing(path, tmp_path, monkeypatch):
    """What the check before is worth: the same store, read without it."""
    place = max(key for name, key in records(path) if name == b"deltas")
    sprung = tmp_path / "sprung"
    delta = DeltaRecord(None, EMPTY, (b"p" + pickle.dumps(Canary(str(sprung))),))
    put(path, b"deltas", place, bytes(17) + pickle.dumps(tuple(delta), 5))
    monkeypatch.setattr(
        tables.SealedRecords,
        "opened",
        lambda self, key, record: (record[16], record[17:]),
    )

    everything(path)

    assert sprung.exists()


# ---------------------------------------------------------------- another key


def test_a_store_under_another_key_is_refused(path, monkeypatch):
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "another key")

    with pytest.raises(StoreForeignError, match="another key") as raised:
        LMDBSaver(path)
    assert "StoreOptions(trust=" in str(raised.value)


def test_a_store_under_another_key_is_read_with_that_key(path, monkeypatch):
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "another key")

    with LMDBSaver(path, options=StoreOptions(trust=KEY.encode())) as saver:
        assert saver.load(ADDRESS).checkpoint.step == 3


def test_a_store_that_is_trusted_is_sealed_anew_under_our_key(path, monkeypatch):
    right = everything(path)
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "another key")
    LMDBSaver(path, options=StoreOptions(trust=True)).close()

    assert everything(path) == right
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", KEY)
    with pytest.raises(StoreForeignError):
        LMDBSaver(path)


def test_the_key_itself_is_not_in_the_store(path):
    data = (path / "data.mdb").read_bytes()

    assert KEY.encode() not in data
    assert tables.Seal(KEY.encode()).id.encode() in data


# ---------------------------------------------------------------- verify


def test_verify_finds_nothing_in_a_store_that_is_whole(path):
    with LMDBSaver(path) as saver:
        found = saver.verify()

    assert found.ok
    assert found.records > 10


def test_verify_names_what_is_damaged(path):
    place = max(key for name, key in records(path) if name == b"deltas")
    put(path, b"deltas", place, bytes(100))
    with LMDBSaver(path) as saver:
        found = saver.verify()

    assert not found.ok
    assert any(place.hex() in problem for problem in found.problems)
    assert any("thread 't'" in problem for problem in found.problems)


def test_verify_finds_a_damaged_page(path):
    data = bytearray((path / "data.mdb").read_bytes())
    at = data.rindex(b"next namespace")
    page = at // 4096 * 4096
    data[page + 12] ^= 0x40  # where the free room of the page begins
    (path / "data.mdb").write_bytes(data)

    try:
        with LMDBSaver(path) as saver:
            assert not saver.verify().ok
    except StoreError:
        pass


def test_a_record_that_lost_its_key_is_told(path):
    """LMDB does not find it any more, and its verifier lets it pass."""
    content = bytearray((path / "data.mdb").read_bytes())
    lost = 0
    for at in range(2 * 4096, len(content), 4096):
        flags, lower = struct.unpack_from("<HH", content, at + 10)
        if flags != 2 or lower <= 16:
            continue
        (place,) = struct.unpack_from("<H", content, at + 16)
        # A page of LMDB's own may have bytes of a record in the part that is not used.
        if id_of(1).encode() in content[at + place : at + place + 80]:
            content[at + place : at + place + 8] = bytes(8)  # no data, no flags, no key
            lost += 1
    assert lost
    (path / "data.mdb").write_bytes(content)

    with pytest.raises(StoreCorruptError, match="has no key"):
        LMDBSaver(path, options=StoreOptions(check_pages=True))
    with LMDBSaver(path) as saver:
        assert any("has no key" in problem for problem in saver.verify().problems)


def test_verify_ends_though_keys_are_out_of_their_order(path):
    """A look that goes on behind the last key would begin again and again."""
    content = (path / "data.mdb").read_bytes()
    last = max(key for name, key in records(path) if name == b"checkpoints")
    assert last in content
    (path / "data.mdb").write_bytes(content.replace(last, bytes(len(last))))

    with LMDBSaver(path) as saver:
        found = saver.verify()

    assert any("is out of order" in problem for problem in found.problems)


def test_a_damaged_number_of_the_next_namespace_is_told(path):
    """It stands beside the header, whose form is another; no new thread could begin."""
    key = b"next namespace"
    put(path, b"meta", key, records(path)[b"meta", key][:-1] + b"x")

    with LMDBSaver(path) as saver:
        assert any("in meta of" in problem for problem in saver.verify().problems)
    with pytest.raises(StoreCorruptError, match="in meta of"):
        LMDBSaver(path, options=StoreOptions(check_pages=True))


def test_verify_looks_at_all_threads_though_the_record_of_one_is_damaged(path):
    """Errors tell the user to run it: it does not end at the first that is met."""
    with LMDBSaver(path) as saver:
        commit(saver, 0, {"n": 0}, thread="another")
    before = records(path)
    for name in (b"threads", b"checkpoints"):
        key = max(key for table, key in before if table == name)
        spoiled = bytearray(before[name, key])
        spoiled[-1] ^= 1
        put(path, name, key, bytes(spoiled))
    with LMDBSaver(path) as saver:
        found = saver.verify()

    assert any("in threads of" in problem for problem in found.problems)
    assert any("in checkpoints of" in problem for problem in found.problems)


def test_a_history_whose_checkpoints_are_out_of_their_order_ends(tmp_path):
    """A damaged page may have one twice, and a look that goes on behind it would not
    end.
    """
    with LMDBSaver(tmp_path) as saver:
        for number in range(20):
            commit(saver, number)
    content = bytearray((tmp_path / "data.mdb").read_bytes())
    for at in range(2 * 4096, len(content), 4096):
        flags, lower = struct.unpack_from("<HH", content, at + 10)
        slots = range(at + 16, at + lower, 2) if flags == 2 else ()
        of = {}
        for slot in slots:
            node = at + struct.unpack_from("<H", content, slot)[0]
            size = struct.unpack_from("<H", content, node + 6)[0]
            of[bytes(content[node + 8 : node + 8 + size])[8:-2]] = slot
        if {id_of(4).encode(), id_of(12).encode()} <= of.keys():
            slot, other = of[id_of(4).encode()], of[id_of(12).encode()]
            content[slot : slot + 2] = content[other : other + 2]
    (tmp_path / "data.mdb").write_bytes(content)

    with (
        LMDBSaver(tmp_path) as saver,
        pytest.raises(StoreCorruptError, match="is out of order"),
    ):
        [*itertools.islice(saver.history(Address("t")), 100)]


def test_a_pending_write_under_a_damaged_key_is_told_when_pages_are_checked(path):
    """Its checkpoint is read without it, as if it had not been: nothing else misses
    it.
    """
    (key,) = (
        key
        for name, key in records(path)
        if name == b"writes" and id_of(2).encode() in key
    )
    content = bytearray((path / "data.mdb").read_bytes())
    content[content.index(key) + key.index(id_of(2).encode())] ^= 1
    (path / "data.mdb").write_bytes(content)

    with pytest.raises(StoreCorruptError, match="was written elsewhere"):
        LMDBSaver(path, options=StoreOptions(check_pages=True))
    with LMDBSaver(path) as saver:
        assert not saver.verify().ok


def test_deltas_that_lead_back_to_themselves_are_reported(tmp_path):
    """A program that gives one version twice must not make readers loop for ever."""
    with LMDBSaver(tmp_path / "circle") as saver:
        for number, previous in enumerate((None, 1, 1)):
            checkpoint = Checkpoint(
                id=id_of(number),
                parent_id=id_of(number - 1) if number else None,
                at=number,
                step=number,
                source="loop",
                channel_versions={"items": 1 if number else 0},
                versions_seen={},
                changed=("items",),
                deltas={"items": Delta(previous, (number,))},
            )
            saver.commit([Batch(address=Address("t"), checkpoint=checkpoint)])
        with pytest.raises(StoreCorruptError, match="leads back to itself"):
            saver.load(Address("t"))
