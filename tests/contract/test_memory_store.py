"""The store contract on `InMemoryStore`."""

from flowpregel.store.memory import InMemoryStore
from flowpregel.testing.store_contract import StoreContract


class TestInMemoryStore(StoreContract):
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
