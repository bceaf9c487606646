"""Large buffers, which stay outside of a pickle."""

from __future__ import annotations

import pickle


def stays_inside(
    views: list[memoryview] | None, size: int, buffer: pickle.PickleBuffer
) -> bool:
    """Return whether *buffer* must be stored in the pickle itself. If not, add a view
    of the buffer's bytes to *views*.

    Args:
        views: The views of the buffers outside of the pickle, or None if all buffers
            stay in the pickle.
        size: The size, in bytes, from which a buffer stays outside.
        buffer: The buffer that pickle passes to its ``buffer_callback``.
    """
    try:
        view = buffer.raw()
    except BufferError:
        # There is no view of the bytes of a buffer that is not contiguous, so it stays
        # in the pickle.
        return True
    if views is None or view.nbytes < size:
        return True
    views.append(view)
    return False
