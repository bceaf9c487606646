"""Functions whose code digests are recorded. Do not edit them: add new ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

RATE = 3
TABLE = {"a": 1, "b": [2, 3]}


def constant() -> int:
    return 1


def arithmetic(x: int, y: int = 2) -> int:
    """Return something."""
    z = x * y + RATE
    return z // 2


def helper(x: int) -> int:
    return x + RATE


def calls_a_helper(x: int) -> int:
    return helper(x) + 1


def refers_to_a_module(x: float) -> float:
    return math.sin(x)


def reads_a_table(name: str) -> Any:
    return TABLE[name]


def loops(items: list[int]) -> int:
    total = 0
    for item in items:
        if item % 2:
            continue
        total += item
    else:
        total -= 1
    while total > 100:
        total //= 2
    return total


def comprehends(items: list[int]) -> Any:
    return {item: [x for x in range(item) if x] for item in items}


def matches(value: Any) -> str:
    match value:
        case {"kind": str(kind)}:
            return kind
        case [first, *_]:
            return str(first)
        case _:
            return ""


def tries(x: Any) -> int:
    try:
        return int(x)
    except (TypeError, ValueError) as error:
        raise RuntimeError(f"bad {x!r}") from error
    finally:
        str(x)


def generates(n: int) -> Iterator[int]:
    yield from range(n)


async def waits(x: Any) -> Any:
    async with x as y:
        return await y


def closes_over(n: int) -> Callable[[int], int]:
    def inner(x: int) -> int:
        return x + n

    return inner


def with_many_parameters(a: int, /, b: int, *args: int, c: int = 1, **kw: int) -> int:
    return a + b + c + len(args) + len(kw)


def recursive(n: int) -> int:
    return 1 if n < 2 else n * recursive(n - 1)


@functools.lru_cache
def cached(x: int) -> int:
    return x


def wrapping(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def wrapper(*args: Any) -> Any:
        return f(*args)

    return wrapper


@wrapping
def wrapped(x: int) -> int:
    return x + 2


class Machine:
    """A class with methods."""

    step = 2

    def __init__(self, start: int) -> None:
        self.start = start

    def run(self, count: int) -> int:
        return self.start + self.step * count

    @classmethod
    def make(cls) -> Machine:
        return cls(0)

    @staticmethod
    def name() -> str:
        return "machine"


def makes_a_machine(n: int) -> int:
    return Machine(n).run(2)


FUNCTIONS: dict[str, Any] = {
    "constant": constant,
    "arithmetic": arithmetic,
    "calls_a_helper": calls_a_helper,
    "refers_to_a_module": refers_to_a_module,
    "reads_a_table": reads_a_table,
    "loops": loops,
    "comprehends": comprehends,
    "matches": matches,
    "tries": tries,
    "generates": generates,
    "waits": waits,
    "closes_over": closes_over,
    "closes_over(2)": closes_over(2),
    "with_many_parameters": with_many_parameters,
    "recursive": recursive,
    "cached": cached,
    "wrapped": wrapped,
    "Machine": Machine,
    "Machine.run": Machine.run,
    "Machine.make": Machine.make,
    "Machine.name": Machine.name,
    "Machine(3).run": Machine(3).run,
    "makes_a_machine": makes_a_machine,
    "partial": functools.partial(arithmetic, 3),
    "lambda": lambda x: x + RATE,
}
