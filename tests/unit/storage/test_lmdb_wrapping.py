"""Values compressed, encrypted, and made by a codec of the user's."""

import json

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import ConfigurationError, StoreCorruptError, StoreForeignError
from flowpregel.storage.records import SIZE, Seal, SealedRecords
from tests.runs.stores import KEY, commit

SECRET = "a secret that must not be on the disk " * 50
T = Address("t")
AES = b"k" * 32


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", KEY)


def keep(path, **options):
    """Keep the secret; return the bytes of the file."""
    with LMDBSaver(path, options=StoreOptions(**options)) as saver:
        commit(saver, 0, {"n": {"secret": SECRET}})
    return (path / "data.mdb").read_bytes()


def read(path, **options):
    with LMDBSaver(path, options=StoreOptions(**options)) as saver:
        return saver.load(T).checkpoint.values["n"]


def test_without_options_a_value_can_be_read_on_the_disk(tmp_path):
    assert SECRET.encode() in keep(tmp_path / "s")


def test_what_is_compressed_is_smaller_and_reads_the_same_whatever_the_options(
    tmp_path,
):
    pytest.importorskip("zstandard")
    data = keep(tmp_path / "s", compression=True)

    assert SECRET.encode() not in data
    assert (
        read(tmp_path / "s")
        == read(tmp_path / "s", compression=True)
        == {"secret": SECRET}
    )


def test_what_is_encrypted_cannot_be_read_on_the_disk(tmp_path):
    pytest.importorskip("cryptography")

    assert b"secret" not in keep(tmp_path / "s", encryption_key=AES)
    assert read(tmp_path / "s", encryption_key=AES) == {"secret": SECRET}


def test_names_are_encrypted_too(tmp_path):
    pytest.importorskip("cryptography")
    options = StoreOptions(encryption_key=AES)
    with LMDBSaver(tmp_path / "s", options=options) as saver:
        commit(saver, 0, {"salaries": 1}, thread="of Jane Doe")
        commit(saver, 1, {"salaries": 2}, thread="of Jane Doe")
        assert [found.thread_id for found in saver.threads()] == ["of Jane Doe"]
        assert saver.verify().ok
    data = (tmp_path / "s" / "data.mdb").read_bytes()

    assert b"salaries" not in data
    assert b"Jane" not in data


def test_what_was_there_before_the_key_is_read_with_it(tmp_path):
    pytest.importorskip("cryptography")
    keep(tmp_path / "s")
    with LMDBSaver(tmp_path / "s", options=StoreOptions(encryption_key=AES)) as saver:
        commit(saver, 1, {"n": "added"})
        values = [each.checkpoint.values["n"] for each in saver.history(T)]

    assert values == ["added", {"secret": SECRET}]


def test_a_large_value_is_encrypted_in_all_its_chunks(tmp_path):
    pytest.importorskip("cryptography")
    large = SECRET * 2000
    with LMDBSaver(tmp_path / "s", options=StoreOptions(encryption_key=AES)) as saver:
        commit(saver, 0, {"n": large})
        assert saver.load(T).checkpoint.values["n"] == large
    assert b"secret" not in (tmp_path / "s" / "data.mdb").read_bytes()


def test_an_encrypted_record_holds_in_its_own_place_only():
    """Also for someone who has the key of the checksums and seals it there anew."""
    pytest.importorskip("cryptography")
    seal = Seal(KEY.encode(), AES)
    table = SealedRecords(b"values of ", "a store", seal)
    sealed = table.sealed(b"one thread", 0, b"value")
    moved = seal.of(b"values of another", sealed[SIZE:]) + sealed[SIZE:]

    assert table.opened(b"one thread", sealed) == (0, b"value")
    with pytest.raises(StoreForeignError):
        table.opened(b"another", moved)


def test_both_together(tmp_path):
    pytest.importorskip("cryptography")
    pytest.importorskip("zstandard")
    keep(tmp_path / "s", encryption_key=AES, compression=True)

    assert read(tmp_path / "s", encryption_key=AES) == {"secret": SECRET}


@pytest.mark.parametrize("given", [None, b"x" * 32])
def test_without_the_right_key_it_is_refused(tmp_path, given):
    pytest.importorskip("cryptography")
    keep(tmp_path / "s", encryption_key=AES)

    with pytest.raises(StoreForeignError, match="encrypt"):
        read(tmp_path / "s", encryption_key=given)


def test_a_key_of_another_length_is_refused():
    with pytest.raises(ConfigurationError, match="16, 24 or 32"):
        StoreOptions(encryption_key=b"short")


def test_a_frame_that_says_another_size_is_not_opened():
    zstandard = pytest.importorskip("zstandard")
    from flowpregel.storage.codec import ValueCodec

    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    with pytest.raises(StoreCorruptError, match="size"):
        ValueCodec(None).decode(b"z" + (100).to_bytes(8, "big") + bomb, "a value")


class JSONCodec:
    def encode(self, value):
        return json.dumps(value).encode()

    def decode(self, data):
        return json.loads(data)


def test_a_codec_of_the_users_is_used(tmp_path):
    with LMDBSaver(tmp_path / "s", codec=JSONCodec()) as saver:
        commit(saver, 0, {"n": [1, "zx"]})
        assert saver.load(T).checkpoint.values["n"] == [1, "zx"]
    assert b'[1, "zx"]' in (tmp_path / "s" / "data.mdb").read_bytes()
