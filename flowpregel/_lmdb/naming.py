"""Keys in ``names``, the database that gives the names of channels and nodes small numbers.

::

    "i" + number (4)                                            ► the name
    "n" + name, "l" + digest (32) or "k" + keyed digest (16)    ► its number (4)

A name of any length has a key that LMDB can take, and one that does not tell it
where records are encrypted.
"""

from __future__ import annotations

from hashlib import blake2b

from flowpregel._lmdb.seal import Seal

BY_NUMBER = b"i"
_LONGEST = 400


def keys_of(name: bytes, seal: Seal) -> tuple[bytes, bytes]:
    """Return the keys that *name* may have: that under which a store of *seal* puts it first."""
    hidden = b"k" + seal.of(b"hidden", name)
    readable = b"n" + name if len(name) <= _LONGEST else b"l" + _digest(name)
    return (readable, hidden) if seal.cipher is None else (hidden, readable)


def _digest(name: bytes) -> bytes:
    return blake2b(name, digest_size=32).digest()
