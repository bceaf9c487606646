"""Classes that values of the codec tests are of."""

import enum
from collections import namedtuple
from dataclasses import dataclass

Pair = namedtuple("Pair", "left right")


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass(frozen=True)
class Point:
    x: int
    y: tuple[int, ...]


@dataclass(slots=True)
class Slotted:
    x: list


class KeywordError(Exception):
    """Pickle cannot build it: its class wants a keyword."""

    def __init__(self, *, code):
        super().__init__(f"code {code}")
        self.code = code


class MessageError(ValueError):
    """Its class takes other arguments than it passes on."""

    def __init__(self, path, line):
        super().__init__(f"{path}:{line}")
        self.path, self.line = path, line


class FileError(OSError):
    def __init__(self, name):
        super().__init__(2, "gone", name)
        self.name = name


class OwnReduceError(Exception):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b

    def __reduce__(self):
        return OwnReduceError, (self.args[0], self.b)
