"""A future that costs little, since there can be one for each of very many calls."""

from __future__ import annotations

import concurrent.futures
import os
from _thread import LockType, RLock, allocate_lock
from collections.abc import Callable
from concurrent.futures._base import FINISHED, PENDING, RUNNING
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

ResultT = TypeVar("ResultT")


class Bell(RLock):  # type: ignore[misc]  # final in typeshed alone
    """A lock, and a way to wait until somebody rings: as much of a condition as a future needs.

    One that its holder may take again: a future that is done already shows itself in
    the error it raises, for which it takes its lock.
    """

    __slots__ = ("_sleepers",)

    def __init__(self) -> None:
        self._sleepers: list[LockType] | None = None

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock until somebody rings, at most *timeout* seconds; return whether."""
        sleeper = allocate_lock()
        sleeper.acquire()
        sleepers = self._sleepers = self._sleepers or []
        sleepers.append(sleeper)
        self.release()
        try:
            return sleeper.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            self.acquire()

    def notify_all(self) -> None:
        """Wake everybody who waits."""
        for sleeper in self._sleepers or ():
            sleeper.release()
        self._sleepers = None


_new_bell: Callable[[], Any] = Bell
BELLS: Final = RLock()
"""Held while a future gets its bell, and while one that has none ends."""
# A forked process has only the OS thread that forked: nobody else's hold may come along.
os.register_at_fork(
    before=BELLS.acquire, after_in_parent=BELLS.release, after_in_child=BELLS.release
)


class _BellByNeed:
    """The bell of a future, which it has once somebody asks for it; few do."""

    def __get__(self, future: Any, owner: type) -> Any:
        with BELLS:
            if future.bell is None:
                future.bell = _new_bell()
            return future.bell


class _ListByNeed:
    """A list that a future has once somebody asks for it; few do, and it is a third of one."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, future: Any, owner: type) -> list[Any]:
        # Asked for with the future's bell held; from now on the attribute hides this.
        made: list[Any] = []
        future.is_watched = True
        setattr(future, self._name, made)
        return made


class LightFuture(concurrent.futures.Future[ResultT], Generic[ResultT]):
    """A future that costs little beside one of the standard library's.

    What the base class makes for each, a condition above all, takes 1.6 kB and 2.4 µs,
    and is nine objects for the collector to look at. Here, where it is 80 bytes and a
    tenth of the time, an attribute is made once it is asked for, or set.
    """

    def __init__(self) -> None:
        pass  # in place of the base class's

    def __init_subclass__(cls, **options: Any) -> None:
        # CPython keeps the names of attributes once for all objects of a class, as far as its
        # first few have them. Thousands of these are made before one ends; each would need a
        # dictionary of its own then, of 272 bytes.
        super().__init_subclass__(**options)
        first = object.__new__(cls)
        for name in ("_state", "_result", *cls.settled_by):
            setattr(first, name, None)

    settled_by: ClassVar[tuple[str, ...]] = ()
    """Further attributes that most objects of a class have in the end."""
    bell: Bell | None = None
    is_watched = False
    """Whether somebody is to be told how it ends."""
    _state: str = PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _condition: Any = _BellByNeed()
    _waiters: Any = _ListByNeed()
    _done_callbacks: Any = _ListByNeed()

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._state != PENDING and self._state != RUNNING

    def result(self, timeout: float | None = None) -> ResultT:
        """Return what the call returned, or raise what it raised.

        Args:
            timeout: Seconds to wait at most; None is for ever.
        """
        if self._state == FINISHED and self._exception is None:
            value: ResultT = self._result
            return value
        return super().result(timeout)

    def succeed(self, value: ResultT) -> None:
        """Take the result: `set_result`, at a third of its cost.

        Raises:
            InvalidStateError: It has ended before.
        """
        with BELLS:
            bell = self.bell
            if bell is None:
                # Nobody waits for it, and nobody can begin to.
                self._finish(value)
                return
        with bell:
            self._finish(value)
            if self.is_watched:
                for waiter in self._waiters:
                    waiter.add_result(self)
            bell.notify_all()
        if self.is_watched:
            cast("Any", self)._invoke_callbacks()  # noqa: SLF001 - its own, untyped

    def _finish(self, value: ResultT) -> None:
        if self._state != PENDING and self._state != RUNNING:
            raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")
        self._result = value
        self._state = FINISHED

    def __reduce__(self) -> Any:
        # As plain data it would arrive, and never end.
        raise TypeError("this is the future of a call: pass on what its result() returns")
