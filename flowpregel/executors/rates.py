"""The rates of tasks: the limits on the tokens (units of cost, 1 for a call by default)
that the calls of a task may spend in a period.

::

    run --try_start--> TokenRates --book--> RateLog, in a store or in this process
        <---- wake ---     |
        ---- spent ------> +----correct---> RateLog

A call books its tokens before it starts, and gets the time at which it may start. It
waits until then, and need not ask again. In each period that ends with such a start,
the booked tokens are at most those that the rate allows. Each booking comes after all
earlier ones. Of the calls that cannot start at once, a run books only for the next
one. So no program starves, even if others that share the store have many calls.

If many calls of a run wait, it books for several of them in one transaction: for the
next one, and for those behind it that can start at once. The followers together get at
most a small part of the rate (`_SHARE_AHEAD`). No more than that is wasted if the run
is killed before they start.

The log of a rate (its bookings) is a record in the store. If a program is killed, the
tokens that it has booked stay booked until the period has passed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary, ref

from flowpregel import _clock
from flowpregel.policies import rate_of

ChangeRecord: TypeAlias = Callable[
    [str, Callable[[bytes | None], tuple[bytes, Any]]], Any
]
"""A function that replaces the record of a rate in a transaction. Its arguments are the
name of the rate, and a function from the old record to the new record and a result.
"""
_MOMENT: Final = 1e-6
_SHARE_AHEAD: Final = 0.05
"""The fraction of a rate's tokens that a run may book for the calls behind its next
call, in the same transaction.
"""
_CELLS: Final = 1_000
"""The number of parts (cells) into which a period is divided. The bookings of one cell
are stored together as one entry.
"""


@dataclass(slots=True)
class _Spent:
    """An entry of a log: the number of tokens that are booked for a time."""

    at: float
    tokens: float


class RateLog:
    """The log of a rate: the tokens that are booked for times in the last period, and
    for later times.

    Example:
        >>> log = RateLog()
        >>> [log.book(2, (5, 60), now=100.0) for _ in range(4)]
        [100.0, 100.0, 160.0, 160.0]
    """

    def __init__(self) -> None:
        self._entries: list[_Spent] = []
        """The entries of the log, the oldest first."""

    @classmethod
    def of(cls, data: bytes | None) -> RateLog:
        """Return the log in the record of a store, or an empty log without a record."""
        log = cls()
        if data is not None:
            for at, tokens in json.loads(data):
                entry = _Spent(at, tokens)
                log._entries.append(entry)
        return log

    def encoded(self) -> bytes:
        """Return the log as bytes, for a record in a store."""
        pairs = [(entry.at, entry.tokens) for entry in self._entries]
        return json.dumps(pairs).encode()

    def book(self, tokens: float, rate: tuple[int, int], now: float) -> float:
        """Book tokens at the earliest possible time, and return this time.

        Args:
            tokens: The number of tokens to book, at most that of the rate.
            rate: The tokens of a period, and its seconds.
            now: The present time, in seconds.
        """
        _, seconds = rate
        self._entries = self._after(now - seconds)
        if not tokens:
            return now
        start = self._start_of(tokens, rate, now)
        cell = seconds / _CELLS
        self._add(start, tokens, cell)
        return start

    def book_now(self, tokens: float, rate: tuple[int, int], now: float) -> bool:
        """Book tokens if they can be spent now, and return whether this was possible.

        Args:
            tokens: The number of tokens to book.
            rate: The tokens of a period, and its seconds.
            now: The present time, in seconds.
        """
        start = self._start_of(tokens, rate, now)
        if tokens and start > now:
            return False
        self.book(tokens, rate, now)
        return True

    def _start_of(self, tokens: float, rate: tuple[int, int], now: float) -> float:
        """Return the earliest time at which *tokens* can be spent. It is never before
        the time of an existing booking.
        """
        most, seconds = rate
        start = now
        if self._entries:
            start = max(now, self._entries[-1].at)
        window = self._after(start - seconds)
        used = sum(entry.tokens for entry in window)
        for entry in window:
            if used + tokens <= most:
                break
            start = max(start, entry.at + seconds)
            used -= entry.tokens
        return start

    def _after(self, moment: float) -> list[_Spent]:
        """Return the entries of the log after the time *moment*."""
        return [entry for entry in self._entries if entry.at > moment]

    def _add(self, at: float, tokens: float, cell: float) -> None:
        """Add tokens that are spent after all those in the log. If the newest entry
        lies in the same interval of *cell* seconds, that entry is extended.
        """
        if self._entries:
            last = self._entries[-1]
            if last.at // cell == at // cell:
                # All tokens of the entry get the later time. So the earlier ones stay
                # booked a little longer than necessary, but the rate is never exceeded.
                last.at = at
                last.tokens += tokens
                return
        entry = _Spent(at, tokens)
        self._entries.append(entry)

    def correct(self, at: float, change: float, seconds: float) -> None:
        """Change the number of tokens that were booked for the time *at*.

        Args:
            at: The time of the booking.
            change: The number of tokens to add, or, if negative, to give back.
            seconds: The seconds of a period.
        """
        end = at + seconds / _CELLS
        for entry in self._after(at - _MOMENT):
            if entry.at <= end:
                tokens = entry.tokens + change
                entry.tokens = max(0.0, tokens)
                break
        self._entries = [entry for entry in self._entries if entry.tokens]


@dataclass(slots=True, eq=False)
class _Booking:
    """The booking of the tokens of one call."""

    name: str
    """The name of the rate."""
    rate: tuple[int, int]
    tokens: float
    wake: Callable[[], None]
    at: float | None = None
    """The time at which the call may start, once it is known."""
    error: Exception | None = None
    """The error that the store has raised, if there was one."""
    is_started: bool = False
    is_forgotten: bool = False


@dataclass(eq=False)
class TokenRates:
    """The rates of tasks. If they are in a store, this program shares them with all
    programs that use the store; otherwise they apply to this program alone. Any OS
    thread may use them.

    Args:
        change: A function that changes the record of a rate in the store, or None.
    """

    change: ChangeRecord | None = None
    _logs: dict[str, RateLog] = field(default_factory=dict)
    _time_source: _clock.TimeSource | None = None
    """The clock by which the logs in this process were written."""
    _bookings: dict[str, _Booking] = field(default_factory=dict)
    """The bookings of calls that have not ended, by task id."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def try_start(
        self,
        task_id: str,
        rate: tuple[str, str],
        tokens: float,
        wake: Callable[[], None],
        ahead: Mapping[str, float] = MappingProxyType({}),
    ) -> float | None:
        """Book the tokens of a call, unless they are booked.

        Args:
            task_id: The id of the call's task.
            rate: The name and the text of the rate, such as ``"60/min"``.
            tokens: The tokens that the call will spend.
            wake: A function that is called, on any OS thread, when the time of a start
                is known.
            ahead: The tokens of the next calls, by task id, in their order. Those that
                can start at once may be booked with this one.

        Returns:
            None if the call can start, or else the monotonic time at which to try
            again. The time is infinity if it is not known yet: then *wake* will be
            called.

        Raises:
            Exception: The store cannot be changed.
        """
        with self._lock:
            booking = self._bookings.get(task_id)
            if booking is None:
                name, text = rate
                booking = _Booking(name, rate_of(text), tokens, wake)
                self._bookings[task_id] = booking
                followers = self._followers_of(booking, ahead)
                self._perform(partial(self._book, booking, followers))
            if booking.error is not None:
                raise booking.error
            if booking.at is None:
                return inf
            remaining = booking.at - self._now()
            if remaining > 0:
                return _clock.monotonic() + remaining
            booking.is_started = True
            return None

    def must_ask(self, task_id: str) -> bool:
        """Return whether the tokens of a call still have to be booked in a store."""
        return self.change is not None and task_id not in self._bookings

    def _followers_of(
        self, booking: _Booking, ahead: Mapping[str, float]
    ) -> dict[str, _Booking]:
        """Create the bookings of the calls behind *booking*'s call that may be booked
        together with it, and return them by task id.
        """
        followers: dict[str, _Booking] = {}
        most, _ = booking.rate
        remaining = _SHARE_AHEAD * most
        for task_id, tokens in ahead.items():
            remaining -= tokens
            if remaining < 0 or task_id in self._bookings:
                break
            follower = _Booking(booking.name, booking.rate, tokens, booking.wake)
            followers[task_id] = follower
            self._bookings[task_id] = follower
        return followers

    def spent(self, task_id: str, tokens: float) -> None:
        """Replace the number of tokens that were booked for a call by the number that
        it has really spent. The call has started.

        Args:
            task_id: The id of the call's task.
            tokens: The tokens that the call has spent in total.
        """
        with self._lock:
            booking = self._bookings.get(task_id)
            if booking is None or not booking.is_started:
                return
            change, booking.tokens = tokens - booking.tokens, tokens
            self._perform(partial(self._correct, booking, change))

    def forget(self, task_id: str) -> None:
        """Forget a call that has ended. If it has not started, give its tokens back."""
        with self._lock:
            booking = self._bookings.pop(task_id, None)
            if booking is None or booking.is_started:
                return
            booking.is_forgotten = True
            if booking.at is not None:
                self._perform(partial(self._correct, booking, -booking.tokens))

    def after_fork(self) -> None:
        """Forget the calls of the parent process, and make a new lock, because another
        OS thread of the parent may have held the old one during the fork.
        """
        self._lock = threading.RLock()
        self._bookings.clear()

    def _now(self) -> float:
        """Return the present time for the logs. In a store it is the time of day,
        because programs share no other clock.
        """
        return _clock.monotonic() if self.change is None else _clock.wall()

    def _perform(self, action: Callable[[], None]) -> None:
        """Call *action*. If the rates are in a store, call it on a new OS thread,
        because a run must not wait for the store.
        """
        if self.change is None:
            action()
            return
        thread = threading.Thread(
            target=action,
            name="flowpregel-rates",
            daemon=True,
        )
        thread.start()

    def _change_log(self, name: str, work: Callable[[RateLog], Any]) -> Any:
        """Call *work* with the log of a rate (the times of the calls that it counts),
        which *work* may change. Store the log, and return what *work* returned.
        """
        if self.change is None:
            if self._time_source is not _clock.present:
                # A test has replaced the clock, so the times in the logs mean nothing
                # any more.
                self._time_source = _clock.present
                self._logs.clear()
            return work(self._logs.setdefault(name, RateLog()))

        def change(data: bytes | None) -> tuple[bytes, Any]:
            log = RateLog.of(data)
            result = work(log)
            return log.encoded(), result

        return self.change(name, change)

    def _book(self, booking: _Booking, followers: Mapping[str, _Booking]) -> None:
        """Book the tokens of a call, and of the *followers* that can start now. If the
        rates are in a store, then wake the run of the call.
        """
        booked: list[_Booking] = []
        start = 0.0

        def book(log: RateLog) -> float:
            now = self._now()
            start = log.book(booking.tokens, booking.rate, now)
            booked[:] = [booking]
            for follower in followers.values():
                if not log.book_now(follower.tokens, follower.rate, now):
                    break
                booked.append(follower)
            return start

        try:
            start = self._change_log(booking.name, book)
        except Exception as error:  # noqa: BLE001 - the call fails with it
            booking.error = error
            booked.clear()
        self._note_start(booked, start, followers)
        if self.change is not None:
            booking.wake()

    def _note_start(
        self,
        booked: Sequence[_Booking],
        start: float,
        followers: Mapping[str, _Booking],
    ) -> None:
        """Set the start time of the *booked* calls, and forget the *followers* that
        were not booked.
        """
        forgotten: list[_Booking] = []
        with self._lock:
            for booking in booked:
                booking.at = start
                if booking.is_forgotten:
                    forgotten.append(booking)
            for task_id, follower in followers.items():
                is_noted = self._bookings.get(task_id) is follower
                if is_noted and follower.at is None:
                    del self._bookings[task_id]
        for booking in forgotten:
            self._correct(booking, -booking.tokens)

    def _correct(self, booking: _Booking, change: float) -> None:
        """Add *change* to the tokens that are booked for a call. If it is negative, the
        waiting calls of this program are booked again, because they may start earlier.
        """
        with self._lock:
            waiting = [
                other
                for other in self._bookings.values()
                if change < 0 and other.name == booking.name and not other.is_started
            ]
        seconds = booking.rate[1]
        at = booking.at or 0.0

        def correct(log: RateLog) -> list[tuple[_Booking, float]]:
            log.correct(at, change, seconds)
            starts = []
            for other in waiting:
                now = self._now()
                if other.at is None or other.at <= now:
                    continue
                log.correct(other.at, -other.tokens, seconds)
                start = log.book(other.tokens, other.rate, now)
                starts.append((other, start))
            return starts

        try:
            starts = self._change_log(booking.name, correct)
        except Exception:  # noqa: BLE001 - the tokens stay booked until they expire
            return
        for other, start in starts:
            other.at = start
            other.wake()


_shared: WeakKeyDictionary[Any, TokenRates] = WeakKeyDictionary()
"""The rates in each open store, by the saver of the store."""
_shared_lock = threading.Lock()
LOCAL_RATES: Final = TokenRates()
"""The rates of tasks in runs without a store."""


def rates_of(saver: Any) -> TokenRates:
    """Return the rates of the store of *saver*. All programs that use the store share
    the rates. The saver must have a method ``change_rate``.
    """
    with _shared_lock:
        rates = _shared.get(saver)
        if rates is None:
            # The `TokenRates` object gets only a weak reference to the saver. A strong
            # one would keep the saver alive through the entry in `_shared`.
            rates = TokenRates(partial(_change_rate, ref(saver)))
            _shared[saver] = rates
        return rates


def _change_rate(saver_ref: ref[Any], *arguments: Any) -> Any:
    """Change the record of a rate in the store of a saver.

    Raises:
        ReferenceError: The saver no longer exists.
    """
    saver = saver_ref()
    if saver is None:
        raise ReferenceError("the store of the rate is closed")
    return saver.change_rate(*arguments)


def _reset_rates_after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for rates in (LOCAL_RATES, *_shared.values()):
        rates.after_fork()


os.register_at_fork(after_in_child=_reset_rates_after_fork)
