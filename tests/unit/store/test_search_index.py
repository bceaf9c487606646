"""Which items a search finds: the functions without a store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel.store import search_index
from flowpregel.store.memory import InMemoryStore

VALUE = {"a": {"b": [{"c": "x"}, {"c": "y"}, {}]}, "n": 3, "list": ["p", "q"]}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("n", ["3"]),
        ("a.b[*].c", ["x", "y"]),
        ("a.b[0].c", ["x"]),
        ("a.b[-2].c", ["y"]),
        ("a.b[9].c", []),
        ("list[*]", ["p", "q"]),
        ("list", ['["p", "q"]']),
        ("none", []),
        ("n.deeper", []),
        ("n[0]", []),
    ],
)
def test_a_path_finds_texts(path, expected):
    assert search_index.texts_at(VALUE, path) == expected


def test_the_whole_value_is_one_text():
    assert search_index.texts_at({"b": 1, "a": "ü"}, "$") == ['{"a": "ü", "b": 1}']


def test_the_words_of_a_whole_value_are_not_those_of_its_fields():
    store = InMemoryStore()
    store.put(("n",), "k", {"name": "Ada Lovelace", "n": [1]})

    for query, score in (("ADA 1 name n", 0.5), ("lovelace", 1.0), ("name", 0.0)):
        assert store.search(("n",), query=query)[0].score == score


VECTORS = st.lists(st.floats(-100, 100), min_size=3, max_size=3)


@given(VECTORS, VECTORS)
def test_a_cosine_is_symmetric_and_bounded(one, other):
    got = search_index.cosine(one, other)

    assert got == pytest.approx(search_index.cosine(other, one))
    assert -1.0001 <= got <= 1.0001


def test_a_vector_without_a_length_has_no_angle():
    assert search_index.cosine((0.0, 0.0), (1.0, 0.0)) == 0.0
