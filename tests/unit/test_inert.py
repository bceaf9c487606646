"""What is shown of values without importing their classes: nothing of a pickle is
run.
"""

from __future__ import annotations

import collections
import datetime
import enum
import json
import os
import pickle
import subprocess
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from flowpregel._core.commands import Interrupt
from flowpregel._inspection.inert import InertCodec
from flowpregel._inspection.preview import FULL, PreviewLimits, one_line, to_json
from flowpregel.errors import NodeTimeoutError
from flowpregel.storage.codec import PythonCodec


def shown(value: Any, limits: PreviewLimits = PreviewLimits()) -> str:  # noqa: B008 - it is frozen
    """Return how *value* is shown when it comes from a store."""
    return one_line(InertCodec().decode(PythonCodec().encode(value)), limits)


@dataclass
class Report:
    words: int
    path: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    words: int


class Color(enum.Enum):
    RED = "red"


class Size(NamedTuple):
    wide: int
    high: int


class TooLargeError(Exception):
    """An exception that takes other arguments than it passes on."""

    def __init__(self, size: int, *, limit: int) -> None:
        super().__init__(f"{size} is over {limit}")


class Names(dict[str, int]):
    """A dict of the user's."""


class Stack(list[int]):
    """A list of the user's."""


def local() -> Any:
    """Return an object whose class is kept by value."""

    @dataclass
    class Inner:
        n: int

    return Inner(1)


# Early versions of Python 3.11 keep the name of a member, and not its value.
IS_BY_NAME = Color.RED.__reduce_ex__(5)[0] is getattr
RED = "<class 'Color.RED'>" if IS_BY_NAME else "Color('red')"
IN_ROME = datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("Europe/Rome"))
VALUES = {
    "Report(words=3, path='a.txt')": Report(3, "a.txt"),
    "Report(words=1, path=[Report(words=2, path=None)])": Report(1, [Report(2, None)]),
    "{\"kept\": [Report(words=1, path={'a': True})]}": {
        "kept": [Report(1, {"a": True})]
    },
    "Slotted(3)": Slotted(3),
    "Size(1, 2)": Size(1, 2),
    RED: Color.RED,
    f'{{"{RED}": 1}}': {Color.RED: 1},
    "<class 'Report'>": Report,
    "<class 'shown'>": shown,
    "Inner(n=1)": local(),
    "Names({'a': 1})": Names(a=1),
    "Stack(1, 2)": Stack([1, 2]),
    "SimpleNamespace(a=1)": SimpleNamespace(a=1),
    '{"type": "ValueError", "message": "x"}': ValueError("x"),
    '{"type": "TooLargeError", "message": "9 is over 5"}': TooLargeError(9, limit=5),
    "PosixPath('a/b.txt')": Path("a/b.txt"),
    "datetime.timedelta(days=1)": datetime.timedelta(1),
    "datetime.datetime(2026, 1, 2, 0, 0)": datetime.datetime(2026, 1, 2),
    "datetime.datetime(2026, 1, 2, 0, 0, tzinfo=ZoneInfo('Europe/Rome'))": IN_ROME,
    "UUID('00000000-0000-0000-0000-000000000007')": uuid.UUID(int=7),
    '{"a": 1, "b": 2}': collections.OrderedDict(a=1, b=2),
    '{"a": 2}': collections.Counter("aa"),
    '{"a": [1]}': collections.defaultdict(list, a=[1]),
    "[1, 2]": collections.deque([1, 2], 5),
}


@pytest.mark.parametrize("text", VALUES)
def test_values_are_shown_by_their_structure(text: str) -> None:
    """With the names of their classes, and without a module."""
    assert text == shown(VALUES[text])


def test_times_of_foreign_zones_are_shown_all_the_same() -> None:
    """What they are made from."""
    assert shown(datetime.datetime(2026, 1, 2, tzinfo=Zone())).startswith("datetime(b'")


class Zone(datetime.tzinfo):
    """A time zone of the user's."""


def test_what_is_ours_is_read() -> None:
    """Questions and errors, which the commands look into."""
    read = InertCodec().decode(
        PythonCodec().encode((Interrupt("go?", "1"), NodeTimeoutError))
    )

    assert (Interrupt("go?", "1"), NodeTimeoutError) == read


def test_arrays_are_shown_by_shape_and_type() -> None:
    """All of them only if that is asked for; numbers as Python's."""
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(6.0).reshape(2, 3)

    assert "ndarray(shape=[2, 3], dtype='f8')" == shown(array)
    assert "ndarray(shape=[3, 2], dtype='f8')" == shown(array.T)
    assert "ndarray(shape=[100000], dtype='i8')" == shown(numpy.arange(100_000))
    assert shown(array, FULL) != shown(array + 1, FULL)
    assert "[3.5, 2, true]" == shown(
        [numpy.float64(3.5), numpy.int32(2), numpy.bool_(True)]
    )


def test_models_are_shown_by_their_fields() -> None:
    """Pydantic keeps them under a name of their own."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model(
        "Model", __module__=__name__, a=(int, ...), b=(list[str], ...)
    )
    globals()["Model"] = model

    assert "Model(a=1, b=['x'])" == shown(model(a=1, b=["x"]))


def test_programs_get_what_an_object_holds_as_json_has_it() -> None:
    """Fields by name; what has no names as a text."""
    read = InertCodec().decode(PythonCodec().encode([Report(3, "a.txt"), Color.RED]))

    assert [{"words": 3, "path": "a.txt"}, RED] == json.loads(json.dumps(to_json(read)))


def test_an_object_that_holds_itself_ends() -> None:
    """After some levels."""
    report = Report(1, None)
    report.path = report

    assert shown(report).startswith("Report(words=1, path=Report(words=1, path=Report(")


# ---------------------------------------------------------------- nothing is run


class Hostile:
    """Its pickle calls something.

    Args:
        function: What.
        args: With what.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> Any:
        return self.function, self.args


def hostile(canary: Path) -> list[Any]:
    """Return values whose reading makes a file, in the ways that there are."""
    write = f"__import__('os').mknod({str(canary)!r})"
    return [
        Hostile(os.system, f"touch {canary}"),
        Hostile(subprocess.run, ["touch", str(canary)]),
        Hostile(eval, write),
        Hostile(exec, write),
        Hostile(Path.touch, canary),
        Hostile(getattr, Hostile(getattr, os, "mkdir"), "__call__"),
        Hostile(pickle.loads, pickle.dumps(Hostile(os.mkdir, str(canary)))),
        {"deep": [(Hostile(os.mkdir, str(canary)),)]},
        ValueError(Hostile(os.mkdir, str(canary))),
    ]


def test_a_hostile_pickle_is_shown_and_not_run(tmp_path: Path) -> None:
    """The same bytes make the file when they are decoded with their classes."""
    canary = tmp_path / "canary"
    for value in hostile(canary)[:5]:
        data = PythonCodec().encode(value)
        assert "canary" in one_line(InertCodec().decode(data))
        assert not canary.exists()
        PythonCodec().decode(data)
        assert canary.exists()
        canary.unlink()


def test_nor_is_it_inside_of_something_else(tmp_path: Path) -> None:
    """Wherever in a value it is."""
    for value in hostile(tmp_path / "canary"):
        try:
            data = PythonCodec().encode(value)
        except Exception:  # noqa: BLE001 - not every one can be written on every Python
            continue
        one_line(InertCodec().decode(data), FULL)
        assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "program",
    [
        b"cbuiltins\neval\n(S'1/0'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x031/0\x85R.",
        b"(S'1/0'\nibuiltins\neval\n.",
        b"cos\nsystem\n(S'exit 1'\ntR.",
        b"\x80\x02cflowpregel.cli.targets\nload_flow\nU\x04x:yy\x85R.",
        b"cflowpregel.errors\nimportlib.import_module\n(S'this'\ntR.",
    ],
)
def test_no_opcode_calls_what_it_names(program: bytes) -> None:
    """Neither the old ones nor the new."""
    assert "(" in one_line(InertCodec().decode(b"p" + program))


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\u202eexe", "a b(", "x" * 10_000])
def test_what_a_pickle_names_is_shown_as_text(name: str) -> None:
    """No terminal obeys it, however long it is, as a class, a field or an error."""
    call = (
        b"\x80\x04\x8c\x01m" + text_of(name) + b"\x93)R}(" + text_of(name) + b"K\x01ub."
    )
    shown = one_line(InertCodec().decode(b"p" + call))

    assert shown.isprintable()
    assert len(shown) < 3_000


def text_of(text: str) -> bytes:
    """Return the opcode that puts *text* on a pickle's stack."""
    data = text.encode()
    return b"X" + len(data).to_bytes(4, "little") + data
