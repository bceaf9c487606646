"""The laws that every channel must obey, for tests of your own channels."""

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
"""The writes of one superstep, or the name of the channel's method to call instead:
``"consume"`` or ``"finish"``.
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a channel, as far as a run can see it."""

    available: bool
    value: Any
    """The value that `get` returns, or `MISSING` if the channel is empty."""
    saved: Any
    """The value that `checkpoint` returns."""


def observe(channel: BaseChannel[Any, Any]) -> Observation:
    """Return a copy of the current state of *channel*."""
    try:
        value = channel.get()
    except EmptyChannelError:
        value = MISSING
    return Observation(
        channel.is_available(),
        copy.deepcopy(value),
        copy.deepcopy(channel.checkpoint()),
    )


@dataclass(frozen=True, kw_only=True)
class ChannelLaws:
    """The laws of one kind of channel.

    1. Reading changes nothing, and `is_available` agrees with `get`.
    2. A channel that is restored from a checkpoint equals the original channel.
    3. ``update(())`` changes nothing if the channel's `reacts_to_silence` is False.
    4. A copy equals the original, and changing the copy does not change the original.
    5. `update`, `consume` and `finish` return True if anything has changed. (`update`
       may also return True for a write that is equal to the value.)
    6. An update that fails changes nothing.
    7. The order of a superstep's writes makes no difference if `any_order` is True.

    Example:
        >>> from flowpregel.channels import LastValue
        >>> ChannelLaws(make=lambda: LastValue(int)).check([[1], [], [1, 2], "finish"])
    """

    make: Callable[[], BaseChannel[Any, Any]]
    """A function that returns an empty channel."""
    is_saved: bool = True
    """True if a checkpoint stores the channel's value."""
    any_order: bool = False
    """True if the order of a superstep's writes makes no difference."""
    equal: Callable[[Any, Any], bool] = operator.eq
    """The comparison of two observed values."""

    def check(self, history: Sequence[Action]) -> None:
        """Apply *history* to a channel, and check the laws around each action.

        Raises:
            AssertionError: A law is broken. The message names the law and the action.
        """
        channel = self.make()
        self._check_state(channel, "when new")
        for number, action in enumerate(history, 1):
            moment = f"at action {number}, {action!r}"
            self._check_copy(channel, action, moment)
            self._check_order(channel, action, moment)
            before = observe(channel)
            changed = _apply(channel, action)
            if changed is None:
                self._expect(channel, before, f"it changed although it failed {moment}")
            elif not changed:
                self._expect(
                    channel, before, f"it changed, but does not report it {moment}"
                )
            self._check_state(channel, moment)

    def _check_state(self, channel: BaseChannel[Any, Any], moment: str) -> None:
        state = observe(channel)
        self._expect(channel, state, f"reading changed it {moment}")
        if state.available != (state.value is not MISSING):
            raise AssertionError(
                f"{channel!r}: is_available() and get() do not agree {moment}"
            )
        if self.is_saved:
            restored = self.make().from_checkpoint(copy.deepcopy(state.saved))
            law = f"its checkpoint restores something else {moment}"
            self._expect(restored, state, law)
        if not channel.reacts_to_silence:
            if channel.update(()):
                raise AssertionError(
                    f"{channel!r}: an empty update reports that it changed it {moment}"
                )
            self._expect(channel, state, f"an empty update changed it {moment}")

    def _check_copy(
        self, channel: BaseChannel[Any, Any], action: Action, moment: str
    ) -> None:
        state = observe(channel)
        twin = channel.copy()
        self._expect(twin, state, f"its copy is something else {moment}")
        _apply(twin, action)
        self._expect(channel, state, f"it changed with its copy {moment}")

    def _check_order(
        self, channel: BaseChannel[Any, Any], action: Action, moment: str
    ) -> None:
        if not self.any_order or isinstance(action, str):
            return
        forward = channel.copy()
        backward = channel.copy()
        _apply(forward, action)
        _apply(backward, action[::-1])
        law = f"the order of its writes matters {moment}"
        self._expect(backward, observe(forward), law)

    def _expect(
        self, channel: BaseChannel[Any, Any], expected: Observation, law: str
    ) -> None:
        state = observe(channel)
        same = (
            state.available == expected.available
            and self.equal(state.value, expected.value)
            and self.equal(state.saved, expected.saved)
        )
        if not same:
            raise AssertionError(
                f"{channel!r}: {law}\n  was: {expected}\n  is:  {state}"
            )


def _apply(channel: BaseChannel[Any, Any], action: Action) -> bool | None:
    """Apply *action* to *channel*.

    Returns:
        True if the channel reports a change, False if it reports none, or None if the
        action fails.
    """
    if action == "consume":
        return channel.consume()
    if action == "finish":
        return channel.finish()
    try:
        return channel.update(action)
    except Exception:  # noqa: BLE001 - a channel, or its reducer, may refuse in any way
        return None
