"""Fields of a class that are made anew in the process that gets an instance."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowpregel._pickling.crossing import dumps
from flowpregel.executors import recreate_fields


class Index:
    """Has a lock, which cannot be sent, and words."""

    def __init__(self, words: list[str] | None = None) -> None:
        self.lock = threading.Lock()
        self.words = words or []
        self.find = finder_of(self)


def finder_of(index: Index) -> Callable[[], Any]:
    """Return a function whose closure has *index*, which cannot be sent by name."""
    return lambda: (index.lock.locked(), index.words)


class SlowIndex(Index):
    """Needs an argument, so no instance can be made of its class alone."""

    def __init__(self, words: list[str], delay: int) -> None:
        super().__init__(words)
        self.delay = delay


@pytest.fixture
def recreated() -> Iterator[None]:
    """Have the lock of an index made anew."""
    name = f"{__name__}.Index"
    recreate_fields(name, ["lock"])
    yield
    recreate_fields(name, [])


@pytest.mark.usefixtures("recreated")
def test_other_fields_are_sent() -> None:
    """A function inside refers to the copy, not to a second one."""
    copy = pickle.loads(dumps(Index(["one"])))

    with copy.lock:
        assert (True, ["one"]) == copy.find()
    assert copy.find()[1] is copy.words


@pytest.mark.usefixtures("recreated")
def test_subclasses_are_included() -> None:
    """Their own fields are sent."""
    copy = pickle.loads(dumps(SlowIndex(["one"], 3)))

    assert type(copy) is SlowIndex
    assert (False, ["one"], 3) == (*copy.find(), copy.delay)


def test_without_an_entry_the_instance_cannot_be_sent() -> None:
    """The lock is refused as ever."""
    with pytest.raises(TypeError, match="lock"):
        dumps(Index())
