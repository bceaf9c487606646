"""The store contract on `InMemoryStore`."""

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.store.base import PutOp
from flowpregel.store.memory import InMemoryStore
from flowpregel.testing.store_contract import StoreContract
from tests.contract.store_options import QueryRules, TimeRules


class TestInMemoryStore(StoreContract, TimeRules, QueryRules):
    def make_store(self, folder, **options):
        return InMemoryStore(**options)


class Embeddings:
    """An object with LangChain's two methods."""

    def embed_documents(self, texts):
        return [[float(len(text)), 0.0] for text in texts]

    def embed_query(self, text):
        return [0.0, 1.0]


def test_an_embeddings_object_embeds_documents_and_queries_apart():
    store = InMemoryStore(index={"embed": Embeddings()})
    store.put(("n",), "k", {"text": "abc"})

    assert store.search(("n",), query="abc")[0].score == 0.0


def test_a_text_is_embedded_once_in_a_batch():
    asked = []

    def embed(texts):
        asked.append(texts)
        return [[1.0] for _ in texts]

    store = InMemoryStore(index={"embed": embed, "dims": 1, "fields": ["a", "b"]})
    store.batch([PutOp(("n",), key, {"a": "same", "b": "same"}) for key in ("k", "l")])

    assert asked == [["same"]]


def test_an_index_without_embed_is_refused():
    with pytest.raises(ConfigurationError, match="embed"):
        InMemoryStore(index={"dims": 3})
