"""Functions with something of everything: every Python on this machine digests them
alike.

Run as a program, it prints the digests as JSON.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import json
import math
import os.path
import pathlib
import re
import threading
from collections import namedtuple
from math import floor as rounded
from pathlib import Path
from typing import Any

LIMIT = 3
NAMES = frozenset({"a", "b", "c", "d"})
TABLE = {
    "one": 1,
    "two": [2, 2.5, -0.0, 1e300, 3j],
    (3,): {"x", "y", "z"},
    None: ...,
    "é\u0378": b"\0",
}
FOLDER = pathlib.PurePosixPath("a") / "b"
PATTERN = re.compile(r"\d+", re.IGNORECASE)
DAY = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
PRICE = decimal.Decimal("1.10")
LOCK = threading.Lock()
Pair = namedtuple("Pair", "left right")
BOTH = Pair(1, [2.5])
STATE = None


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntFlag):
    LOW = enum.auto()
    HIGH = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A point."""

    x: int
    y: float = 0.5

    def moved(self, by: int = LIMIT) -> Point:
        """Move it."""
        return Point(self.x + by, self.y)


class Scale:
    """Multiplies."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, value: float) -> float:
        return self.factor * value

    def twice(self, value: float) -> float:
        return self(self(value))


class Tally(dict[str, int]):
    """Counts its calls, which is no code of it."""

    calls = 0

    def __call__(self, name: str) -> int:
        self.calls += 1
        return self[name]


ORIGIN = Point(0)
DOUBLE = Scale(2.0)


def clean(text: str, *, sep: str = ",") -> list[str]:
    """Clean it."""
    return [part.strip() for part in text.split(sep) if part]


STEPS = [clean, str.upper, len, {"double": DOUBLE}]
SET_OF_STEPS = {clean, rounded, os.path.join}


@functools.cache
def cached(n: int) -> int:
    return n if n < 2 else cached(n - 1) + cached(n - 2)


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        print(f"{function.__name__}({args!r}, {kwargs=}) {LIMIT:>{LIMIT}.{LIMIT}}")
        return function(*args, **kwargs)

    return wrapper


@logged
def wrapped(n: int, /, m: int = 4, *rest: int) -> int:
    return n + m


def everything(
    first: Any, /, second: Any = None, *rest: Any, third: int = LIMIT, **more: Any
) -> Any:
    """Use every kind of syntax."""
    global STATE
    STATE = first
    count: int = 0
    noted: str = ""

    def inner(n: int) -> int:
        nonlocal count
        count += n
        return count

    class Local(Point):
        extra: int = 3

        def both(self) -> Any:
            return self.x, first, count, Local

    try:
        values = [value for value in rest if (last := value) not in NAMES]
        pairs = {key: [v for v in value if v] for key, value in more.items()}
    except (ValueError, TypeError) as error:
        raise RuntimeError(f"{error!r:^20}{{}}and {second:%H:%M}") from error
    finally:
        del second
    return values, last, pairs, noted, inner(1), Local, wrapped(1)


def matches(first: Any, values: list[Any], last: Any, third: int) -> Any:
    """Use the rest of the syntax."""
    match first:
        case {"a": a, **others} if a > LIMIT:
            noted = f"{a:{third}}{others}{a:a{ {1} }}"
        case [head, *tail] | (head, tail) as whole:
            noted = f"{head}{tail}{whole}" rf"\d{head!s}"
        case Point(x=0) | Color.RED | "x" | -1 | None | True:
            noted = "\N{BULLET}é"
        case _:
            noted = ""
    with open(Path(noted)) as file, LOCK:
        for line in file:
            while not line:
                break
            else:
                continue
    assert last, (DAY, PRICE)
    from os import path as here

    found = sorted(values, key=lambda pair: (pair[0], -pair[1]))[::-1]
    print(*found, sep="", end=here.join("a", FOLDER.name))
    return (
        Pair(1, 2),
        Level.LOW,
        TABLE,
        PATTERN,
        ORIGIN.moved(),
        DOUBLE.twice(1),
        cached(3),
        wrapped(1),
        STEPS,
        SET_OF_STEPS,
        json.dumps,
        math.pi,
        os.path.join,
        (lambda: 1)(),
        (not third and 0) or 10**20,
        1_000 if last else 0x10 @ 3,
        ~3,
        [*values, STATE],
    )


async def waits(things: Any) -> Any:
    """Use what is async."""
    async with things as opened:
        async for thing in opened:
            yield await thing
    _ = [x async for x in things] + [await x for x in things]


def make(k: Any) -> Any:
    return lambda n: n + k, lambda n: n - k, lambda: 1, lambda: 2, lambda: None


def method_user() -> Any:
    return Scale.twice


def both() -> Any:
    return BOTH


adds, takes, one, two, none = make(LIMIT)
SAMPLES: dict[str, Any] = {
    "clean": clean,
    "cached": cached,
    "wrapped": wrapped,
    "everything": everything,
    "matches": matches,
    "waits": waits,
    "Point": Point,
    "moved": Point.moved,
    "DOUBLE": DOUBLE,
    "twice": DOUBLE.twice,
    "partial": functools.partial(clean, sep=";"),
    "adds": adds,
    "takes": takes,
    "one": one,
    "two": two,
    "none": none,
    "Level": Level,
    "Color": Color,
    "both": both,
    "tally": Tally(a=1),
}


def show(samples: dict[str, Any]) -> None:
    """Print the digests of samples and their parts as JSON."""
    from flowpregel._code.digest import code_digest

    found = {name: code_digest(sample) for name, sample in samples.items()}
    print(
        json.dumps(
            {name: [each.digest, dict(each.parts)] for name, each in found.items()}
        )
    )


if __name__ == "__main__":
    show(SAMPLES)
