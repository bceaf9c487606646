"""Classes and values that each Python represents in its own way: every Python on this
machine digests them alike.

Their annotations are no text, since this module does not import them from the future.
Run as a program, it prints the digests as JSON.
"""

import dataclasses
import enum
import typing
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Optional, Protocol, TypedDict


def uses(*values: Any) -> Any:
    return values


def classes(k: int) -> dict[str, Any]:
    """Return classes that count by their content."""

    class Plain:
        x: int
        y: "Missing" = 3  # type: ignore[name-defined]  # noqa: F821

        def of(self) -> int:
            return self.x + k

    @dataclasses.dataclass
    class Data:
        x: int
        y: list[int] = dataclasses.field(default_factory=list)

        def of(self) -> int:
            return self.x + k

    @dataclasses.dataclass(frozen=True, slots=True, order=True)
    class Slotted:
        x: int
        y: int = 2

    class Pair(NamedTuple):
        x: int
        y: str = "a"

    class Unresolved(NamedTuple):
        x: "Missing"  # type: ignore[name-defined]  # noqa: F821

    class Options(TypedDict, total=False):
        x: int
        y: typing.Required[str]

    class Shape(Protocol):
        x: int

        def area(self) -> int: ...

    class Color(enum.Enum):
        RED = 1

        def of(self) -> int:
            return k

    kinds = [Plain, Data, Slotted, Pair, Unresolved, Options, Shape, Color]
    return {kind.__name__: kind for kind in kinds}


def folded() -> Any:
    """Return constants that the compiler computes, on one line."""
    return lambda: (1, 2), lambda: (3, 4), lambda: -5, lambda: 2 * 500, lambda: "a" * 3


FORMS = [
    int | None,
    Optional[int],  # noqa: UP045 - an older kind
    Literal["a", 1],
    Annotated[int, 3],
    list[int | str],
]
CLASSES = classes(2)
SAMPLES: dict[str, Any] = {
    **CLASSES,
    "of": CLASSES["Plain"].of,
    "an object": partial(uses, CLASSES["Data"](1), CLASSES["Slotted"](1)),
    "a member": partial(uses, CLASSES["Color"].RED),
    "forms": partial(uses, FORMS),
    **{f"folded {at}": each for at, each in enumerate(folded())},
}

if __name__ == "__main__":
    from tests.unit.code.code_samples import show

    show(SAMPLES)
