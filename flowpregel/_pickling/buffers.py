"""Large buffers, which stay outside of a pickle."""

from __future__ import annotations

import pickle


def stays_inside(
    views: list[memoryview] | None, size: int, buffer: pickle.PickleBuffer
) -> bool:
    """Return whether *buffer* stays in a pickle; if not, its view is among *views* now.

    Args:
        views: Where to put it; None: all buffers stay.
        size: The bytes from which a buffer stays outside.
        buffer: What pickle asks about.
    """
    try:
        view = buffer.raw()
    except BufferError:  # not contiguous
        return True
    if views is None or view.nbytes < size:
        return True
    views.append(view)
    return False
