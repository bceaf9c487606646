"""Looking at a value takes no longer than its bytes allow, whatever they are made to
do.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from flowpregel._inspection.inert import InertCodec, is_small
from flowpregel._inspection.preview import FULL, one_line, to_json
from flowpregel.storage.codec import PythonCodec
from flowpregel.storage.plain_fields import fields_of

ROOT = Path(__file__).parents[2]
DEEP = b")" + b"2\x86" * 60
"""A tuple of two that are one and the same, and so on: 2 to the power of 60 in all."""


def name_of(module: str, name: str) -> bytes:
    """Return the opcodes that name a class or a function."""
    return f"c{module}\n{name}\n".encode()


PROGRAMS = {
    "a key": b"}" + DEEP + b"Ns",
    "keys": b"}(" + DEEP + b"N" + DEEP + b"Nu",
    "a dict by its items": b"(" + DEEP + b"Nd",
    "an item of a set": b"\x8f(" + DEEP + b"\x90",
    "an item of a frozen set": b"(" + DEEP + b"\x91",
    "a key of a class's dict": name_of("a", "B") + b")R" + DEEP + b"Ns",
    "a key of a state": name_of("a", "B") + b")R}" + DEEP + b"Nsb",
    "an ordered dict": name_of("collections", "OrderedDict")
    + b"]"
    + DEEP
    + b"N\x86a\x85R",
    "a counter": name_of("collections", "Counter") + b"}" + DEEP + b"K\x01s\x85R",
    "an argument of an error": name_of("builtins", "ValueError") + DEEP + b"\x85R",
    "a missing key": name_of("builtins", "KeyError") + DEEP + b"\x85R",
    "an error of ours": name_of("flowpregel.errors", "CommitUnknownError")
    + DEEP
    + DEEP
    + b"\x86R",
    "a user's error": name_of("flowpregel", "rebuild_error")
    + b"("
    + name_of("a", "B")
    + b")"
    + DEEP
    + b"}NtR",
    "an attribute": name_of("builtins", "getattr")
    + name_of("a", "B")
    + DEEP
    + b"\x86R",
    "a class by value": name_of("cloudpickle", "_make_skeleton_class")
    + b"N"
    + DEEP
    + b"\x86R",
    "a type of an array": name_of("numpy", "scalar")
    + name_of("numpy", "dtype")
    + DEEP
    + b"\x85RC\x01a\x86R",
    "a function that is called": name_of("a", "b") + DEEP + b"\x85R)R",
    "a path": name_of("pathlib", "PurePosixPath") + DEEP + b"\x85R",
    "a question": name_of("flowpregel", "Interrupt")
    + b")R}X\x02\x00\x00\x00id"
    + DEEP
    + b"sb",
    "ids of classes": name_of("a", "B") + DEEP + b"\x81" + DEEP + b"\x86",
}


@pytest.mark.slow
def test_values_whose_hash_never_ends_are_shown() -> None:
    """In another process, which can be ended though it is in C."""
    programs = [b"p\x80\x04" + program + b"." for program in PROGRAMS.values()]
    code = (
        "import sys; from flowpregel._inspection.inert import InertCodec\n"
        "from flowpregel._inspection.preview import one_line, question_to_json\n"
        "for program in sys.argv[1:]:\n"
        "    value = InertCodec().decode(bytes.fromhex(program))\n"
        "    shown = f'{one_line(value)} {question_to_json(value)}'\n"
        "    print(shown.replace(chr(10), ' '), flush=True)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, *(program.hex() for program in programs)],
        cwd=ROOT,
        timeout=60,
        text=True,
        capture_output=True,
        check=True,
    )

    lines = done.stdout.splitlines()
    for kind, shown in zip(PROGRAMS, lines, strict=True):
        assert "<unreadable" not in shown, kind
        assert len(shown) < 20_000, kind


def test_a_dict_with_other_keys_than_texts_is_shown_as_it_is() -> None:
    value = {1: "a", (2, "b"): {3.5, None}, None: frozenset([1])}

    read = InertCodec().decode(PythonCodec().encode(value))

    assert to_json(value) == to_json(read)
    assert one_line(value) == one_line(read)


def test_ints_that_collide_are_no_longer_compared() -> None:
    """Each of them has the hash 0: a dict of 50,000 would take some billion
    comparisons.
    """
    keys = (number * sys.hash_info.modulus for number in range(50_000))
    items = b"".join(pickle.dumps(key, 2)[2:-1] + b"N" for key in keys)
    program = b"p\x80\x04}(" + items + b"u."

    assert 50_000 == len(InertCodec().decode(program))


def test_a_value_of_very_many_objects_is_not_read() -> None:
    """What a page would wait for; numbers and plain texts may be more."""
    objects = [{"a": str(number)} for number in range(200_000)]
    numbers = [number / 7 for number in range(400_000)]
    codec = PythonCodec()

    assert "over 250,000 objects" in one_line(
        InertCodec().decode(codec.encode(objects))
    )
    assert numbers == InertCodec().decode(codec.encode(numbers))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a" * 1_000_000, True),
        ([1] * 50_000, True),
        ([1] * 100_001, False),
        ([["a" * 10_000] * 200] * 60, False),
    ],
)
def test_a_small_value_is_one_whose_text_is_bounded(
    value: object, expected: bool
) -> None:
    assert expected == is_small(value)


def test_a_value_that_grows_by_being_shown_is_cut_off_in_full() -> None:
    """But for one that is as large as it seems."""
    value: list[object] = []
    for _ in range(60):
        value = [value, value]
    limits = FULL.__class__(depth=100, count=1 << 40, size=1 << 40, total=10_000)

    assert len(one_line(value, limits)) < 100_000
    assert 10_000_000 == FULL.total


# ---------------------------------------------------------------- records


RECORDS = {
    "a key": b"}" + DEEP + b"Ns.",
    "a field": b"(" + DEEP + b"Nt.",
    "a text's place in a dict of the old form": b"(" + DEEP + b"Nd.",
    "a set": b"\x8f(" + DEEP + b"\x90.",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_grows_without_a_bound_is_refused(kind: str) -> None:
    """Before anybody hashes one of its fields: a store with its key may be from
    elsewhere.
    """
    program = b"\x80\x04" + RECORDS[kind]
    code = (
        "import sys; from flowpregel.storage.plain_fields import fields_of\n"
        "from flowpregel.errors import StoreCorruptError\n"
        "try: fields_of(bytes.fromhex(sys.argv[1]))\n"
        "except StoreCorruptError: print('refused')"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, program.hex()],
        cwd=ROOT,
        timeout=30,
        text=True,
        capture_output=True,
        check=True,
    )

    assert "refused" in done.stdout


def test_a_record_with_very_many_tuples_is_read() -> None:
    fields = (
        ("text", 1, b"\x86" * 50, {"a": ("b", (1, 2)), 3: None}),
        *[("x", (1,))] * 1_000,
    )

    assert fields == fields_of(pickle.dumps(fields, 5))
