"""Values whose unpickling, and whose other methods, wait until a test lets them go
on.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, ClassVar

LONG = 60.0


class Gate:
    """Where code waits in the test's process; in a worker nobody waits.

    Args:
        name: Its name.
    """

    all: ClassVar[dict[str, Gate]] = {}

    def __init__(self, name: str) -> None:
        self.reached, self.is_open = threading.Event(), threading.Event()
        self.passed = 0
        Gate.all[name] = self

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open.set()


def wait_at(name: str) -> None:
    """Wait at the gate of that name, if this process has one."""
    gate = Gate.all.get(name)
    if gate is not None:
        gate.reached.set()
        assert gate.is_open.wait(LONG), "nobody has opened the gate"
        gate.passed += 1


def _made(name: str) -> Gated:
    wait_at(name)
    return Gated(name)


class Gated:
    """Is unpickled once its gate is open.

    Args:
        name: The gate's.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return _made, (self.name,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gated) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]


class GatedError(Exception):
    """An error that is unpickled once its gate is open."""

    def __reduce__(self) -> Any:
        return _made_error, (self.args[0],)


def _made_error(name: str) -> GatedError:
    wait_at(name)
    return GatedError(name)


class Ending:
    """Has an end that waits for its gate.

    Args:
        name: The gate's.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        wait_at(self.name)


def give(name: str) -> Gated:
    """Return a value behind a gate."""
    return Gated(name)


def fail(name: str) -> None:
    """Raise an error behind a gate."""
    raise GatedError(name)


def refuse_to_start(name: str) -> None:
    """Fail as an initializer."""
    raise GatedError(name)


def die(_: Any) -> None:
    """End the worker."""
    os._exit(3)


def double(number: int) -> int:
    """Return twice a number."""
    return 2 * number


def wait_for(path: str) -> None:
    """Wait until there is a file."""
    while not Path(path).exists():
        os.sched_yield()
