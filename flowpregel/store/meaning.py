"""What makes items findable by a query: vectors of their texts, or their words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flowpregel.errors import ConfigurationError
from flowpregel.store import matching
from flowpregel.store.ops import PutOp

Vector = Sequence[float]


class Meaning:
    """Makes the vectors, or the words, that a query is compared with.

    Args:
        index: ``embed``, ``dims`` and ``fields``; None: a query ranks by shared words.

    Raises:
        ConfigurationError: The index has no ``embed``.
    """

    def __init__(self, index: Any) -> None:
        if index is not None and not index.get("embed"):
            raise ConfigurationError("an index needs 'embed', a function from texts to vectors")
        self._index = index
        self._fields: Sequence[str] = (index or {}).get("fields") or ("$",)

    def of_puts(self, puts: Iterable[PutOp]) -> list[tuple[frozenset[str] | None, list[Vector]]]:
        """Return the words and the vectors of each put, all embedded in one call."""
        todo = [*puts]
        texts = [self._texts(op) for op in todo]
        known = self._embedded([*dict.fromkeys(text for each in texts for text in each)])
        return [
            (self._words(op), [known[text] for text in each])
            for op, each in zip(todo, texts, strict=True)
        ]

    def of_query(self, query: str) -> tuple[frozenset[str], Vector | None]:
        """Return the words and the vector of a query."""
        words = matching.words_of(query)
        if self._index is None:
            return words, None
        return words, embedded(self._index, [query], as_queries=True)[query]

    def score(
        self,
        query: tuple[frozenset[str], Vector | None],
        words: frozenset[str] | None,
        vectors: Iterable[Vector],
    ) -> float | None:
        """Return how well an item fits a query; None if it is not looked at."""
        wanted, vector = query
        if vector is not None:
            return max((matching.cosine(vector, each) for each in vectors), default=None)
        return None if words is None else matching.shared_words(wanted, words)

    def _paths(self, op: PutOp) -> Sequence[str]:
        return self._fields if op.index is None else (op.index or ())

    def _texts(self, op: PutOp) -> list[str]:
        if self._index is None or op.value is None:
            return []
        return [text for path in self._paths(op) for text in matching.texts_at(op.value, path)]

    def _words(self, op: PutOp) -> frozenset[str] | None:
        if self._index is not None or op.index is False or op.value is None:
            return None
        found = (matching.words_at(op.value, path) for path in self._paths(op))
        return frozenset().union(*found)

    def _embedded(self, texts: list[str]) -> dict[str, Vector]:
        return embedded(self._index, texts) if texts else {}


def embedded(index: Any, texts: list[str], *, as_queries: bool = False) -> dict[str, Vector]:
    """Return the vector of each of *texts*, which are all different.

    Args:
        index: Has ``embed``, and ``dims`` if their length is to be checked.
        texts: What to embed.
        as_queries: Whether to use ``embed_query`` if there is one.

    Raises:
        ConfigurationError: These are not the vectors that the index says.
    """
    embed = index["embed"]
    if as_queries and hasattr(embed, "embed_query"):
        vectors = [embed.embed_query(text) for text in texts]
    else:
        vectors = [*getattr(embed, "embed_documents", embed)(texts)]
    dims = index.get("dims")
    lengths = {len(vector) for vector in vectors}
    if len(vectors) != len(texts) or (dims is not None and lengths != {dims}):
        raise ConfigurationError(
            f"embed returned {len(vectors)} vectors of {sorted(lengths)} numbers for "
            f"{len(texts)} texts; the index has dims={dims}"
        )
    return dict(zip(texts, vectors, strict=True))
