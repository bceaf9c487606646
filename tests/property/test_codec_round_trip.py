"""Whatever plain value is encoded comes back as it was."""

from hypothesis import given
from hypothesis import strategies as st

from flowpregel.storage.codec import PythonCodec

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.binary(),
    st.text(st.characters(exclude_categories=())),
    st.complex_numbers(allow_nan=False),
)
keys = st.one_of(st.integers(), st.text(), st.tuples(st.integers()), st.booleans())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.dictionaries(keys, inner),
        st.frozensets(keys),
    ),
    max_leaves=20,
)


def shape(value):
    """Return *value* with all of its types."""
    if isinstance(value, dict):
        return dict, [(shape(k), shape(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [*map(shape, value)]
    if isinstance(value, frozenset):
        return frozenset, sorted(repr(shape(each)) for each in value)
    return type(value), repr(value)


@given(values)
def test_a_plain_value_comes_back_as_it_was(value):
    codec = PythonCodec()

    assert shape(codec.decode(codec.encode(value))) == shape(value)
