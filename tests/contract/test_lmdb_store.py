"""The store contract on `LMDBStore`."""

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import ConfigurationError
from flowpregel.store.lmdb import LMDBStore
from flowpregel.testing.store_contract import StoreContract
from tests.contract.store_options import QueryRules, TimeRules

pytestmark = pytest.mark.usefixtures("store_key")


class TestLMDBStore(StoreContract, TimeRules, QueryRules):
    def make_store(self, folder, **options):
        return LMDBStore(folder / "store.lmdb", **options)

    def reopen(self, store, folder, **options):
        store.close()
        return LMDBStore(folder / "store.lmdb", **options)


class Embeddings:
    """An object with LangChain's two methods."""

    def embed_documents(self, texts):
        return [[float(len(text)), 0.0] for text in texts]

    def embed_query(self, text):
        return [0.0, 1.0]


def test_an_embeddings_object_embeds_documents_and_queries_apart_on_disk(tmp_path):
    with LMDBStore(tmp_path / "store", index={"embed": Embeddings()}) as store:
        store.put(("n",), "k", {"text": "abc"})

        assert store.search(("n",), query="abc")[0].score == 0.0


def test_an_index_without_embed_is_refused_before_a_store_is_made(tmp_path):
    with pytest.raises(ConfigurationError, match="embed"):
        LMDBStore(tmp_path / "store", index={"dims": 3})
    assert not (tmp_path / "store").exists()


def test_a_store_and_a_saver_live_in_one_folder(tmp_path):
    with LMDBSaver(tmp_path / "store") as saver, LMDBStore(tmp_path / "store") as store:
        store.put(("n",), "large", {"data": bytes(3_000_000)})
        store.put(("n",), "k", {"a": 1}, ttl=1)

        assert [item.key for item in store.search(("n",))] == ["large", "k"]
        assert saver.verify().ok


def test_items_that_ended_are_cleared_away(tmp_path):
    now = [1_000.0]
    with LMDBStore(tmp_path / "store", clock=lambda: now[0]) as store:
        for number in range(50):
            store.put(("n",), str(number), {"data": bytes(50_000)}, ttl=1)
        now[0] += 61
        store.put(("n",), "new", {})
        assert [item.key for item in store.search(("n",), limit=100)] == ["new"]
        now[0] -= 61

        # Also for a clock that went back: they are gone, not hidden.
        assert [item.key for item in store.search(("n",), limit=100)] == ["new"]
