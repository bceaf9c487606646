"""Amounts as people write them: durations such as 3h50m, and sizes such as 8GiB."""

from __future__ import annotations

import re
from typing import Final

from flowpregel.errors import ConfigurationError

__all__ = ["bytes_of", "seconds_in"]

_SECONDS: Final = {
    "w": 604_800,
    "d": 86_400,
    "h": 3_600,
    "m": 60,
    "s?": 1,
}
"""The number of seconds in each unit, by a pattern for the unit's name."""
_UNIT_PATTERNS = [rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _SECONDS]
_DURATION: Final = re.compile("".join(_UNIT_PATTERNS))
_CLOCK_DURATION: Final = re.compile(r"()(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
"""A pattern for a duration as SLURM writes it. It has the same groups as `_DURATION`,
in the same order, from weeks to seconds.
"""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Z]*)")
_BYTES: Final = {"": 1, "B": 1} | {
    f"{letter}{kind}": base**power
    for power, letter in enumerate("KMGT", 1)
    for kind, base in (("", 1000), ("B", 1000), ("IB", 1024))
}
"""The number of bytes in each unit, by the unit's name in capitals."""


def seconds_in(text: str) -> float | None:
    """Return the seconds in a duration such as 3h50m, 7d, 90s, 90 or 03:50:00, or None
    if *text* is not a duration.

    Args:
        text: Numbers with the units ``w``, ``d``, ``h``, ``m`` and ``s``, in this
            order, or hours, minutes and seconds with colons, after days and a minus
            sign if there are any, as SLURM writes them. A number without a unit means
            seconds.

    Example:
        >>> seconds_in("1h30m"), seconds_in("90"), seconds_in("soon")
        (5400.0, 90.0, None)
        >>> seconds_in("01:30:00"), seconds_in("1-00:00:00")
        (5400.0, 86400.0)
    """
    match = _DURATION.fullmatch(text) or _CLOCK_DURATION.fullmatch(text)
    if not text or match is None:
        return None
    seconds = 0.0
    for number, unit in zip(match.groups(), _SECONDS.values(), strict=True):
        seconds += float(number or 0) * unit
    return seconds


def bytes_of(value: int | str) -> int:
    """Return *value*, a whole number or text with a unit, as a number of bytes.

    Args:
        value: Bytes, or text such as ``"2GB"``. ``K``, ``KB`` and so on up to ``T`` are
            decimal units, ``KiB`` and so on are binary ones.

    Raises:
        ConfigurationError: *value* is not a size.

    Example:
        >>> bytes_of("1.5 GiB")
        1610612736
    """
    match = _SIZE.fullmatch(str(value).strip().upper())
    if match is None or match[2] not in _BYTES:
        raise ConfigurationError(
            f"{value!r} is not a size; use bytes, or text such as '2GB'"
        )
    return int(float(match[1]) * _BYTES[match[2]])
