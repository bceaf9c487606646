"""The values whose digests are recorded: expressions, and what they refer to."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import operator
import pathlib
import random
import re
import types
import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy

SEED: Final = 7
COUNT: Final = 440
"""How many compound values are drawn."""


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


class Size(NamedTuple):
    width: int
    height: int = 1


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flags(enum.IntFlag):
    READ = 4
    WRITE = 2


class Plain:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


def double(x: int) -> int:
    return 2 * x


ATOMS: Final = (
    "0",
    "1",
    "-1",
    "1 << 70",
    "0.0",
    "-0.0",
    "1.5",
    "float('inf')",
    "1j",
    "True",
    "False",
    "None",
    "...",
    "''",
    "'a'",
    "'é'",
    "'x' * 1000",
    "b''",
    "b'ab'",
    "bytearray(b'ab')",
    "range(3)",
    "slice(1, 2)",
    "Color.RED",
    "Color.BLUE",
    "Flags.READ | Flags.WRITE",
    "Point(1)",
    "Point([1], {'k': 2})",
    "Size(3)",
    "Size(3, 4)",
    "Plain(a=1)",
    "Plain(b=[1, 2])",
    "Slotted('s')",
    "double",
    "Point",
    "functools.partial(double, 1)",
    "functools.partial(max, 1, key=abs)",
    "operator.itemgetter(1)",
    "re.compile('a+', re.I)",
    "decimal.Decimal('1.10')",
    "fractions.Fraction(1, 3)",
    "datetime.date(2024, 2, 29)",
    "datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)",
    "datetime.timedelta(hours=1)",
    "pathlib.PurePosixPath('a/b')",
    "uuid.UUID(int=5)",
    "collections.OrderedDict(a=1, b=2)",
    "collections.Counter('aab')",
    "collections.deque([1, 2], 3)",
    "collections.defaultdict(list, a=[1])",
    "types.SimpleNamespace(a=1)",
    "types.MappingProxyType({'a': 1})",
    "array.array('d', [1.0])",
    "ValueError('bad', 3)",
    "numpy.float64(1.5)",
    "numpy.int32(7)",
    "numpy.arange(6).reshape(2, 3)",
    "numpy.arange(6).reshape(2, 3).T",
    "numpy.zeros(3, dtype='float32')",
    "numpy.array(['a', 'b'])",
    "len",
)
SHAPES: Final = (
    "[{}, {}]",
    "({}, {})",
    "{{'a': {}, 'b': {}}}",
    "({},)",
    "[{}]",
    "Point({}, {})",
    "Plain(a={}, b={})",
    "{{1: {}}}",
    "[({}, [{}]), {{}}]",
)
NAMES: Final = {
    "array": array,
    "collections": collections,
    "datetime": datetime,
    "decimal": decimal,
    "fractions": fractions,
    "functools": functools,
    "numpy": numpy,
    "operator": operator,
    "pathlib": pathlib,
    "re": re,
    "types": types,
    "uuid": uuid,
    **{kind.__name__: kind for kind in (Point, Size, Color, Flags, Plain, Slotted)},
    "double": double,
}


def expressions() -> Iterator[str]:
    """Yield the expressions: every atom, then atoms in containers."""
    yield from ATOMS
    chance = random.Random(SEED)
    drawn = set[str]()
    while len(drawn) < COUNT:
        shape = chance.choice(SHAPES)
        parts = itertools.islice(iter(lambda: chance.choice(ATOMS), None), 2)
        drawn.add(shape.format(*parts))
    yield from sorted(drawn)


def value_of(expression: str) -> Any:
    """Return the value of one of the expressions."""
    return eval(expression, dict(NAMES))
