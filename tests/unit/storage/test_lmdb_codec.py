"""Values come back from the codec as they were, of the same types."""

import copyreg
import datetime
import decimal
import math
import pathlib
import pickle
import pickletools
import sys
import threading
import uuid
from collections import Counter, OrderedDict, defaultdict, deque

import numpy
import pytest

from flowpregel._pickling.by_value import code_of_file
from flowpregel.errors import GraphInterrupt, StoreVersionError, ValueEncodingError
from flowpregel.storage.codec import PythonCodec, ValueCodec
from tests.unit.storage.values import (
    Color,
    FileError,
    KeywordError,
    Level,
    MessageError,
    OwnReduceError,
    Pair,
    Point,
    Slotted,
)

CODEC = PythonCodec()
VALUES = ValueCodec(None)


def back(value):
    """Return *value* as it comes back."""
    return VALUES.decode(VALUES.encode(value, "a value"), "a value")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        2**63 - 1,
        -(2**63),
        2**63,
        10**400,
        0.5,
        math.inf,
        1 + 2j,
        "",
        "text",
        "\0",
        "\ud800 lone",
        "ä" * 1000,
        b"",
        b"\x93",
        bytearray(b"x"),
        (),
        (1,),
        [1, (2,)],
        {1, 2},
        frozenset({1}),
        {"a": {"b": (1, [2])}},
        {1: "int", "1": "text", (1,): "tuple"},
        range(3),
        slice(1, 2),
        ...,
        NotImplemented,
        datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
        datetime.timedelta(1),
        decimal.Decimal("1.10"),
        uuid.UUID(int=7),
        deque([1], maxlen=3),
        OrderedDict(a=1),
        Counter("aab"),
        defaultdict(list, a=[1]),
        Pair(1, (2,)),
        Color.RED,
        Level.HIGH,
        Point(1, (2, 3)),
        Slotted([1]),
        Point,
        Color,
        len,
        print,
        Exception,
        type(None),
        [Color.RED, {"p": Point(1, ())}],
    ],
)
def test_a_value_comes_back_equal_and_of_its_type(value):
    found = back(value)

    assert found == value
    assert type(found) is type(value)


def test_types_within_containers_are_kept():
    found = back({"a": (1, 1.0, True), "b": [(), [], {1}, frozenset()]})

    assert [*map(type, found["a"])] == [int, float, bool]
    assert [*map(type, found["b"])] == [tuple, list, set, frozenset]


def test_nan_and_negative_zero_are_kept():
    assert math.isnan(back(math.nan))
    assert math.copysign(1, back(-0.0)) == -1


def test_an_enum_member_is_the_same_object():
    assert back([Color.RED])[0] is Color.RED


def test_what_is_one_object_in_a_value_is_one_when_it_comes_back():
    part = [1]
    found = back([part, part])

    assert found[0] is found[1]


def test_a_value_that_contains_itself_comes_back():
    value = [1]
    value.append(value)
    found = back(value)

    assert found[1] is found


# ---------------------------------------------------------------- exceptions


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a", 1),
        KeyError("k"),
        OSError(2, "gone", "file"),
        StopIteration(7),
        SystemExit(3),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
        ImportError("no", name="m", path="p"),
        SyntaxError("bad", ("f", 1, 2, "text")),
        KeywordError(code=3),
        MessageError("f", 7),
        FileError("name"),
        GraphInterrupt([1]),
        ExceptionGroup("g", [ValueError(1)]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_with_its_type_arguments_and_notes(error):
    error.add_note("a note")
    found = back({"error": error})["error"]

    assert type(found) is type(error)
    assert str(found) == str(error)
    assert repr(found.args) == repr(error.args)
    assert found.__notes__ == ["a note"]
    for name, value in vars(error).items():
        assert repr(getattr(found, name)) == repr(value)


def test_an_exception_is_kept_whatever_a_library_registers_for_its_class(monkeypatch):
    monkeypatch.setitem(
        copyreg.dispatch_table, UnicodeDecodeError, lambda _: (str, ("lost",))
    )
    error = UnicodeDecodeError("utf-8", b"x", 0, 1, "why")

    assert repr(back({"error": error})["error"]) == repr(error)


def test_an_exception_with_a_form_of_its_own_uses_it():
    found = back(OwnReduceError(1, 2))

    assert (type(found), found.args, found.b) == (OwnReduceError, (1,), 2)


def test_an_os_error_keeps_what_it_tells():
    found = back(FileError("name"))

    assert (found.errno, found.strerror, found.filename) == (2, "gone", "name")


def test_the_cause_of_an_exception_of_ours_is_kept():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise MessageError("f", 1) from inner
    except MessageError as error:
        found = back(error)

    assert repr(found.__cause__) == "KeyError('inner')"


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_an_array_comes_back_writable_and_its_own(size):
    array = (
        numpy.arange(size, dtype="f4").reshape(-1, 10) if size else numpy.zeros((0, 3))
    )
    found = back({"a": array, "b": [array[::2]]})

    assert found["a"].dtype == array.dtype
    assert (found["a"] == array).all()
    assert (found["b"][0] == array[::2]).all()
    found["a"][:] = 7


def test_a_read_only_array_comes_back_read_only():
    array = numpy.zeros(100_000)
    array.flags.writeable = False

    assert not back(array).flags.writeable


def test_a_large_array_is_copied_once():
    array = numpy.zeros(1_000_000)
    encoded = CODEC.encode(array)

    assert len(encoded) < array.nbytes + 300


# ---------------------------------------------------------------- what has no name


def test_a_closure_comes_back_and_works():
    factor = 3
    found = back([lambda x: x * factor])

    assert found[0](2) == 6


def test_an_object_of_a_local_class_comes_back():
    class Local:
        def __init__(self):
            self.x = [1]

    assert back(Local()).x == [1]


class CompiledBy:
    """A function that pickles as if another version of Python had compiled it."""

    def __init__(self, python):
        self.python = python

    def __reduce__(self):
        return code_of_file, ("f.py", len, ((),), self.python)


def test_a_function_of_another_python_is_refused_by_name():
    """Python would crash when it runs the bytecode of another version."""
    data = VALUES.encode([CompiledBy(0x309)], "a value")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"

    with pytest.raises(ValueEncodingError) as caught:
        VALUES.decode(data, "the result of make(1)")

    expected = (
        "the result of make(1) holds a function or class that was compiled by Python "
        f"3.9, and Python {here} cannot run its bytecode: it was kept"
    )
    assert str(caught.value).startswith(expected)


def test_a_function_names_the_python_that_compiled_it():
    """So that another version refuses it."""
    version = sys.hexversion >> 16

    data = CODEC.encode(lambda: 1)

    named = [value for _, value, _ in pickletools.genops(data[1:])]
    assert version in named


@pytest.mark.parametrize("name", ["PosixPath", "PurePosixPath"])
def test_a_path_of_python_3_13_is_read_by_all_versions(name):
    """Its class has a module there that the versions before do not have."""
    path = getattr(pathlib, name)("a/b")
    written = pickle.dumps(path, 2)
    module = type(path).__module__.encode()

    elsewhere = written.replace(b"c%s\n" % module, b"cpathlib._local\n")

    assert b"cpathlib._local\n" in elsewhere
    assert path == VALUES.decode(b"p" + elsewhere, "a value")


# ---------------------------------------------------------------- what cannot be kept


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (threading.Lock(), "value is a _thread.lock"),
        ({"a": [1, {"b": threading.Lock()}]}, "value['a'][1]['b'] is a _thread.lock"),
        ([(x for x in "a")], "value[0] is a generator"),
        (ValueError("m", threading.Lock()), "value.args[1] is a _thread.lock"),
        ({"p": Slotted([open])}, None),
    ],
)
def test_the_part_that_cannot_be_kept_is_named(value, place):
    if place is None:
        assert back(value) == value
        return
    with pytest.raises(ValueEncodingError) as raised:
        VALUES.encode(value, "the value of channel 'c'")

    assert f"channel 'c' cannot be stored: {place}" in str(raised.value)


def test_a_class_whose_reading_fails_is_named():
    data = b"p" + pickle.dumps(Breaks())
    with pytest.raises(ValueEncodingError, match=r"channel 'c'.*RuntimeError: broken"):
        VALUES.decode(data, "a value of channel 'c'")


class Breaks:
    def __reduce__(self):
        return fail, ()


def fail():
    raise RuntimeError("broken")


def test_an_unknown_format_is_refused_by_name():
    with pytest.raises(StoreVersionError, match="format b'Z'"):
        VALUES.decode(b"Zabc", "a value")
