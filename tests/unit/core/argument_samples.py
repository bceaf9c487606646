"""Arguments of all kinds: every Python on this machine digests them alike."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import ipaddress
import json
import operator
import pathlib
import re
import types
import typing
import uuid
import zoneinfo
from typing import Any

from flowpregel._pickling.digest import arguments_digest


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2


class Word(str, enum.Enum):  # noqa: UP042 - an older kind
    ONE = "one"


class Name(enum.StrEnum):
    ONE = "one"


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


class Pair(typing.NamedTuple):
    left: Any
    right: Any


class Text(str): ...


class Failure(Exception): ...


def function(n: int) -> int:
    return len([m + 1 for m in range(n)])


SAMPLES: dict[str, Any] = {
    "numbers": [0, -1, 2**80, 1.5, -0.0, float("inf"), 3j, True, None],
    "texts": ["", "é\u0378\U0001f600", "\ud800", b"\0", Text("a")],
    "dict": {"b": 1, "a": {"d", "c", "e"}, (1, 2): [3], None: (), 1.5: {}},
    "sets": [{1, "a", None, (1, 2)}, frozenset("abcdef")],
    "ordered": collections.OrderedDict(b=1, a=2),
    "default": collections.defaultdict(list, {"a": [1]}),
    "counter": collections.Counter("abca"),
    "deque": collections.deque([1, 2], maxlen=3),
    "enum": Color.RED,
    "enum of text": Color.BLUE,
    "flag": Level.LOW | Level.HIGH,
    "text enum": Word.ONE,
    "str enum": Name.ONE,
    "dataclass": Point(1, {"a": Slotted(2)}),
    "slots": Slotted([1]),
    "plain": Plain(1),
    "named tuple": Pair(1, [2]),
    "class": Point,
    "date": datetime.date(2024, 1, 2),
    "time": datetime.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
    "delta": datetime.timedelta(days=1, seconds=2),
    "zone": zoneinfo.ZoneInfo("UTC"),
    "decimal": decimal.Decimal("1.10"),
    "fraction": fractions.Fraction(1, 3),
    "uuid": uuid.UUID(int=1),
    "path": pathlib.PurePosixPath("a") / "b",
    "real path": pathlib.Path("a/b"),
    "pattern": re.compile("a+", re.IGNORECASE),
    "range": range(1, 10, 2),
    "slice": slice(1, None, 2),
    "bytearray": bytearray(b"ab"),
    "view": memoryview(b"abc"),
    "array": array.array("d", [1.0, 2.0]),
    "address": ipaddress.ip_address("127.0.0.1"),
    "namespace": types.SimpleNamespace(a=1),
    "error": Failure("a", 1),
    "partial": functools.partial(int, base=2),
    "getter": operator.attrgetter("a.b"),
    "builtin": len,
    "method": "a".upper,
    "alias": list[int],
    "types": [int | None, typing.Literal["a", 1], typing.Annotated[int, 3]],
    "function": function,
    "partial of a function": functools.partial(function, 1),
}


def show() -> None:
    """Print the digests of all samples as JSON."""
    found = {
        name: arguments_digest((each,), {"k": each}, name)
        for name, each in SAMPLES.items()
    }
    print(json.dumps(found))
