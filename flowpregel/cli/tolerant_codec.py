"""Decodes values for display, even where some cannot be decoded."""

from __future__ import annotations

from typing import Any

from flowpregel.checkpoint.lmdb import PythonCodec


class Unreadable:
    """Stands for a value that cannot be decoded here, perhaps because its class is missing.

    Args:
        why: The error.
    """

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<unreadable: {self.why}>"


class TolerantCodec(PythonCodec):
    """Decodes what can be decoded, and shows the rest as `Unreadable`.

    One value whose class is gone must not hide all the others.
    """

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded, or an `Unreadable`."""
        try:
            return super().decode(data)
        except Exception as error:  # noqa: BLE001 - unpickling may run code of the user
            return Unreadable(f"{type(error).__name__}: {error}")
