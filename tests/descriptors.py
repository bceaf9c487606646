"""What tests ask of file descriptors."""

from __future__ import annotations

import select


def is_readable(fd: int, seconds: float) -> bool:
    """Wait until *fd* is readable, at most for *seconds*, and return whether it is.

    `select.select` refuses descriptors above 1,023, and a process with many tests may
    have more.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
