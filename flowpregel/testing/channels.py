"""The laws every channel keeps, ready to run on a kind of your own."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from flowpregel.channels.base import MISSING, BaseChannel
from flowpregel.errors import EmptyChannelError

__all__ = ["Action", "ChannelLaws", "Observation", "observe"]

Action: TypeAlias = Sequence[Any] | Literal["consume", "finish"]
"""One superstep's writes, or one of the other two things that happen to a channel."""


@dataclass(frozen=True, slots=True)
class Observation:
    """All that a run can see of a channel."""

    available: bool
    value: Any
    """What `get` returns; `MISSING` where it refuses."""
    saved: Any
    """What `checkpoint` returns."""


def observe(channel: BaseChannel[Any, Any]) -> Observation:
    """Return what is seen of *channel* now; what becomes of it later does not show."""
    try:
        value = channel.get()
    except EmptyChannelError:
        value = MISSING
    return Observation(
        channel.is_available(), copy.deepcopy(value), copy.deepcopy(channel.checkpoint())
    )


@dataclass(frozen=True, kw_only=True)
class ChannelLaws:
    """The laws of one kind of channel.

    1. Reading changes nothing, and `is_available` agrees with `get`.
    2. A channel restored from its checkpoint is as the one that made it.
    3. ``update(())`` changes nothing where the kind says `reacts_to_silence` is False.
    4. A copy is equal, and what happens to it does not show in the original.
    5. `update`, `consume` and `finish` say True if anything changed. (`update`
       may also say so of a value that was written and is equal to the last.)
    6. An update that fails changes nothing.
    7. The order of a superstep's writes makes no difference, where it should not.

    Example:
        >>> from flowpregel.channels import LastValue
        >>> ChannelLaws(make=lambda: LastValue(int)).check([[1], [], [1, 2], "finish"])
    """

    make: Callable[[], BaseChannel[Any, Any]]
    """Makes an empty channel of the kind."""
    is_saved: bool = True
    """Whether a checkpoint keeps its value."""
    any_order: bool = False
    """Whether the order of a superstep's writes makes no difference."""
    equal: Callable[[Any, Any], bool] = operator.eq
    """When two observed values are the same."""

    def check(self, history: Sequence[Action]) -> None:
        """Let *history* happen to a channel, and look at the laws before and after each action.

        Raises:
            AssertionError: A law is broken; the message says which, and when.
        """
        channel = self.make()
        self._check_state(channel, "when new")
        for number, action in enumerate(history, 1):
            when = f"at action {number}, {action!r}"
            self._check_copy(channel, action, when)
            if self.any_order and not isinstance(action, str):
                forward, backward = channel.copy(), channel.copy()
                _happens(forward, action)
                _happens(backward, action[::-1])
                self._expect(backward, observe(forward), f"the order of its writes matters {when}")
            before = observe(channel)
            changed = _happens(channel, action)
            if not changed:
                why = "although it failed" if changed is None else "and does not say so"
                self._expect(channel, before, f"it changed {why} {when}")
            self._check_state(channel, when)

    def _check_state(self, channel: BaseChannel[Any, Any], when: str) -> None:
        seen = observe(channel)
        self._expect(channel, seen, f"reading changed it {when}")
        if seen.available != (seen.value is not MISSING):
            raise AssertionError(f"{channel!r}: is_available() and get() do not agree {when}")
        if self.is_saved:
            restored = self.make().from_checkpoint(copy.deepcopy(seen.saved))
            self._expect(restored, seen, f"its checkpoint restores something else {when}")
        if not channel.reacts_to_silence:
            if channel.update(()):
                raise AssertionError(f"{channel!r}: an empty update says it changed it {when}")
            self._expect(channel, seen, f"an empty update changed it {when}")

    def _check_copy(self, channel: BaseChannel[Any, Any], action: Action, when: str) -> None:
        seen = observe(channel)
        twin = channel.copy()
        self._expect(twin, seen, f"its copy is something else {when}")
        _happens(twin, action)
        self._expect(channel, seen, f"it changed with its copy {when}")

    def _expect(self, channel: BaseChannel[Any, Any], seen: Observation, law: str) -> None:
        now = observe(channel)
        same = (
            now.available == seen.available
            and self.equal(now.value, seen.value)
            and self.equal(now.saved, seen.saved)
        )
        if not same:
            raise AssertionError(f"{channel!r}: {law}\n  was: {seen}\n  is:  {now}")


def _happens(channel: BaseChannel[Any, Any], action: Action) -> bool | None:
    """Let *action* happen; return whether the channel says it changed, None if it failed."""
    if action == "consume":
        return channel.consume()
    if action == "finish":
        return channel.finish()
    try:
        return channel.update(action)
    except Exception:  # noqa: BLE001 - a channel, or its reducer, may refuse in any way
        return None
