"""Sealed records: a keyed checksum on each, large ones in chunks, encrypted on demand.

::

    key            ► checksum (16), 0, payload
    key            ► checksum (16), 1, bytes (8)     a large payload
    key + n (4)    ► checksum (16), 2, n-th chunk

Where payload or chunk is encrypted, 16 is added to the kind.

The checksum covers the record's place (its database and key) too, so that a record that
was moved to another place does not hold there. Values are pickles: nothing of a record
is decoded before its checksum holds. A chunk fills whole pages of the map together with
LMDB's own header, so that any other value can use the room of a dropped one.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from flowpregel.errors import StoreCorruptError, StoreForeignError
from flowpregel.storage.errors import extra_module

if TYPE_CHECKING:
    from flowpregel.storage.codec import ValueCodec

DATABASES = (
    b"meta",
    b"threads",
    b"checkpoints",
    b"values",
    b"deltas",
    b"writes",
    b"store",
    b"cache",
)
HEADER = b"header"
"""Its key in ``meta``."""
SIZE = 16
NOT_ENCRYPTED = ""
"""The name, in a header, of no encryption key."""
_PAGES_HEADER = 16
CHUNK = (1 << 20) - _PAGES_HEADER - SIZE - 1
_WHOLE, _CHUNKED, _PIECE = 0, 1, 2
_ENCRYPTED = 16
_CHUNKED_MARKS, _PIECE_MARKS = (b"\1", b"\x11"), (b"\2", b"\x12")
_HEAD = SIZE + 1
_NONCE = 12
_FEWEST_LEVELS = 20
"""A tuple of fewer levels has at most a million parts, however often each is there."""
_MOST_FIELDS = 2_000_000
_TUPLE_OPCODES = b"\x85\x86\x87("
"""Tuples of one, two and three items; and the mark before those of more."""
_CIPHERS = "cryptography.hazmat.primitives.ciphers.aead"


class Seal:
    """Makes and checks the checksums of one store, and encrypts if there is a key for
    that.

    Args:
        key: The secret; any length.
        encryption_key: 16, 24 or 32 bytes; None: records are not encrypted.
        is_kept: The store keeps *key* itself, in its header.

    Raises:
        ConfigurationError: The extra that encryption needs is not installed.
    """

    def __init__(
        self, key: bytes, encryption_key: bytes | None = None, *, is_kept: bool = False
    ) -> None:
        self._base = blake2b(key=purpose_digest(key, b"seal"), digest_size=SIZE)
        self.key = key
        self.is_kept = is_kept
        self.id = _name(key)
        """Names the key without telling it."""
        self.cipher = None
        if encryption_key is not None:
            self.cipher = extra_module(_CIPHERS, "encryption", "crypto").AESGCM(
                encryption_key
            )
        self.encryption = (
            NOT_ENCRYPTED if encryption_key is None else _name(encryption_key)
        )
        """Names the key that records are encrypted under."""

    def of(self, place: bytes, content: bytes | memoryview) -> bytes:
        """Return the checksum of a record with *content* at *place*."""
        checksum = self._base.copy()
        checksum.update(b"%d:%b" % (len(place), place))
        checksum.update(content)
        return checksum.digest()


class SealedStore(Protocol):
    """A store that is open: in an LMDB folder, a database of PostgreSQL's, or this
    process.
    """

    codec: ValueCodec

    def read(self, work: Callable[[Any], Any], /) -> Any:
        """Return ``work(transaction)``, which only reads."""

    def write(self, work: Callable[[Any], Any], /) -> Any:
        """Return ``work(transaction)``, once all that it put is kept; may call it
        again.
        """

    def table(self, name: bytes) -> Table:
        """Return the table that has *name*."""

    def close(self) -> None:
        """Give the opening back; may be called again."""


class KeptInStore:
    """What keeps its records in a store, which it gives back when it is closed."""

    _store: SealedStore

    def close(self) -> None:
        """Give the store back; may be called again."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class StoreOnDisk(SealedStore, Protocol):
    """One that other processes use too."""

    path: str
    """Its folder or database, for messages."""

    def sizes(self) -> tuple[int, int]:
        """Return the bytes that it takes up, and those of its address space."""

    def mark(self) -> int:
        """Return a number that is the same as long as nothing is committed."""


class Table:
    """One database of a store; every method takes the transaction to use.

    Args:
        name: The database's name.
        path: The store's folder.
        databases: LMDB's handles, by name; others after the file was opened again.
        seal: Makes and checks the checksums.
    """

    def __init__(
        self, name: bytes, path: str, databases: Mapping[bytes, Any], seal: Seal
    ) -> None:
        self.name = name
        self._path = path
        self._databases = databases
        self._seal = seal

    # ------------------------------------------------------------ one record

    def get(self, transaction: Any, key: bytes) -> bytes | None:
        """Return a copy of the payload at *key*, or None."""
        record = transaction.get(key, db=self._databases[self.name])
        if record is None:
            return None
        kind, payload = self.opened(key, record)
        return payload if kind == _WHOLE else self._joined(transaction, key, payload)

    def record(self, transaction: Any, key: bytes) -> bytes | None:
        """Return what is at *key* as it was sealed, of what is large its head; or
        None.
        """
        found: bytes | None = transaction.get(key, db=self._databases[self.name])
        return found

    def expect(self, transaction: Any, keys: list[bytes]) -> None:
        """Prepare to get what is at *keys*; where that is far away, all of it comes at
        once.
        """

    def put(self, transaction: Any, key: bytes, payload: bytes) -> None:
        """Keep *payload* (of any length) at *key* (of at most 500 bytes)."""
        database, kind = self._databases[self.name], _WHOLE
        old = transaction.get(key, db=database)
        if old is not None and old[SIZE:_HEAD] in _CHUNKED_MARKS:
            self.delete(transaction, key)
        if len(payload) > CHUNK:
            kind, view = _CHUNKED, memoryview(payload)
            payload = len(view).to_bytes(8, "big")
            for place, start in _chunks(key, len(view)):
                piece = self.sealed(place, _PIECE, view[start : start + CHUNK])
                transaction.put(place, piece, db=database)
        record = self.sealed(key, kind, payload)
        # LMDB fills a page to its end only where the greatest key is appended.
        if not transaction.put(key, record, append=True, db=database):
            transaction.put(key, record, db=database)

    def delete(self, transaction: Any, key: bytes) -> bool:
        """Drop what is at *key*; return whether there was something."""
        record = self.record(transaction, key)
        if record is not None and record[SIZE:_HEAD] in _CHUNKED_MARKS:
            size = int.from_bytes(self.opened(key, record)[1], "big")
            for place, _ in _chunks(key, size):
                self.discard(transaction, place)
        return self.discard(transaction, key)

    def discard(self, transaction: Any, key: bytes) -> bool:
        """Drop a key that `keys` returned: a record, or a chunk of one."""
        return bool(transaction.delete(key, db=self._databases[self.name]))

    # ------------------------------------------------------------ many records

    def scan(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, payload) of all keys that begin with *prefix*, from *start* on.

        With *backwards* the greatest key comes first, of those that are smaller than
        *start*.
        """
        with transaction.cursor(db=self._databases[self.name]) as cursor:
            found = cursor.set_range(start or (after(prefix) if backwards else prefix))
            if backwards:
                found = cursor.prev() if found else cursor.last()
            while found and cursor.key().startswith(prefix):
                key, record = cursor.item()
                if record[SIZE:_HEAD] not in _PIECE_MARKS:
                    kind, payload = self.opened(key, record)
                    if kind != _WHOLE:
                        payload = self._joined(transaction, key, payload)
                    yield key, payload
                found = cursor.prev() if backwards else cursor.next()

    def keys(
        self,
        transaction: Any,
        prefix: bytes,
        start: bytes = b"",
        limit: int | None = None,
    ) -> list[bytes]:
        """Return all keys that begin with *prefix*, those of chunks included.

        Args:
            transaction: Open.
            prefix: What they begin with.
            start: Only those from this one on.
            limit: At most this many, the smallest.
        """
        with transaction.cursor(db=self._databases[self.name]) as cursor:
            found = (
                cursor.iternext(values=False)
                if cursor.set_range(start or prefix)
                else ()
            )
            return [*takewhile(after(prefix).__gt__, islice(found, limit))]

    def copy(self, transaction: Any, source: bytes, target: bytes) -> None:
        """Copy everything whose key begins with *source* to keys that begin with
        *target*.
        """
        for key, payload in self.scan(transaction, source):
            self.put(transaction, target + key[len(source) :], payload)

    def drop(self, transaction: Any, prefix: bytes) -> None:
        """Drop everything whose key begins with *prefix*."""
        with transaction.cursor(db=self._databases[self.name]) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()

    # ------------------------------------------------------------ what holds

    def check(self, transaction: Any, key: bytes) -> None:
        """Raise `StoreCorruptError` unless the record at *key*, if it is there, holds.

        The header has a form of its own, and is checked when the store is opened.
        """
        if not key:
            raise self.corrupt(key, "has no key")
        record = self.record(transaction, key)
        if record is not None and self.name + key != b"meta" + HEADER:
            # it may be encrypted, and nobody gave the key
            with suppress(StoreForeignError):
                self.opened(key, record)

    def corrupt(self, key: bytes, what: str) -> StoreCorruptError:
        """Return the error that says *what* of the record at *key*."""
        return StoreCorruptError(
            f"record {key.hex()} in {self.name.decode()} of {self._path} {what}; "
            "restore a backup, or run verify() to see what else is damaged"
        )

    def sealed(self, key: bytes, kind: int, payload: bytes | memoryview) -> bytes:
        """Return the record of *payload* at *key*."""
        place, cipher = self.name + key, self._seal.cipher
        if cipher is not None:
            nonce = os.urandom(_NONCE)
            kind, payload = (
                kind | _ENCRYPTED,
                nonce + cipher.encrypt(nonce, payload, place),
            )
        content = bytes((kind,)) + payload
        return self._seal.of(place, content) + content

    def opened(self, key: bytes, record: bytes) -> tuple[int, bytes]:
        """Return the kind and the payload of a *record* that was at *key*, if it holds.

        Raises:
            StoreCorruptError: It does not.
            StoreForeignError: It is encrypted under another key.
        """
        place = self.name + key
        checksum = self._seal.of(place, memoryview(record)[SIZE:])
        if len(record) < _HEAD or record[:SIZE] != checksum:
            raise self.corrupt(key, "is damaged, or was not written there")
        kind, payload = record[SIZE], record[_HEAD:]
        if not kind & _ENCRYPTED:
            return kind, payload
        if self._seal.cipher is None:
            raise StoreForeignError(
                f"{self._path} is encrypted; pass its key as "
                "StoreOptions(encryption_key=...)"
            )
        try:
            opened = self._seal.cipher.decrypt(
                payload[:_NONCE], payload[_NONCE:], place
            )
        except Exception as error:  # its own class, `InvalidTag`, is an extra's
            raise StoreForeignError(
                f"record {key.hex()} of {self._path} is encrypted under another "
                "encryption_key"
            ) from error
        return kind & ~_ENCRYPTED, opened

    def _joined(self, transaction: Any, key: bytes, head: bytes) -> bytes:
        """Return the large payload at *key*, from its chunks."""
        size, pieces = int.from_bytes(head, "big"), []
        for place, _ in _chunks(key, size):
            piece = self.record(transaction, place)
            if piece is None:
                raise self.corrupt(place, "is missing: a part of a large value")
            pieces.append(self.opened(place, piece)[1])
        payload = b"".join(pieces)
        if len(payload) != size:
            raise self.corrupt(key, "has not the length it says")
        return payload


def _chunks(key: bytes, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield the key of each chunk of a large payload, and where in it the chunk
    begins.
    """
    for start in range(0, size, CHUNK):
        yield key + (start // CHUNK).to_bytes(4, "big"), start


def fields_of(data: bytes) -> Any:
    """Return the fields of a record as `pickle.loads` does, without importing what it
    names.

    For who only looks at a store, which may have been made to do harm; it takes 3 µs
    more.

    Raises:
        StoreCorruptError: It holds what no record has, or so often the same that to
            hash or print it would not end.
    """
    # Each level of a tuple that grows without a bound has such an opcode of its own.
    if len(data) - len(data.translate(None, _TUPLE_OPCODES)) < _FEWEST_LEVELS:
        return _FieldsReader(io.BytesIO(data)).load()
    fields = _CheckedFieldsReader(io.BytesIO(data)).load()
    if not _is_bounded(fields, _MOST_FIELDS):
        raise StoreCorruptError(
            "a record holds the same again and again, without a bound"
        )
    return fields


def _is_bounded(value: Any, most: int) -> bool:
    """Return whether a value has at most so many parts, counted as often as they are
    reached.
    """
    waiting = [value]
    while waiting:
        part = waiting.pop()
        inner: tuple[Any, ...] = ()
        if isinstance(part, dict):
            inner = tuple(part.values())
        elif isinstance(part, list | tuple):
            inner = tuple(part)
        most -= 1
        if most < len(inner):
            return False
        waiting += inner
    return True


class _FieldsReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _Plain


class _CheckedFieldsReader(pickle._Unpickler):  # noqa: SLF001 - the one in C hashes any key
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # noqa: SLF001 - as above

    def find_class(self, module: str, name: str) -> Any:
        return _Plain

    def load_setitem(self) -> None:
        """Put an item into a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        self._fill([key, value])

    def load_setitems(self) -> None:
        """Put the items behind the mark into a dict."""
        self._fill(self.pop_mark())

    def _fill(self, items: list[Any]) -> None:
        target = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(target, dict) or not isinstance(
                key, str | int | bytes | None
            ):
                raise StoreCorruptError(
                    f"a record has a key that is a {type(key).__name__}"
                )
            target[key] = value

    def refuse(self) -> None:
        """Refuse what no record holds: sets, and dicts of the old form."""
        raise StoreCorruptError("a record holds what none has")

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    for _opcode in (pickle.DICT, pickle.ADDITEMS, pickle.FROZENSET):
        dispatch[_opcode[0]] = refuse


class _Plain:
    """Makes a plain text, or number, of one that has a class of the user's: a
    `StrEnum`, say.
    """

    def __new__(cls, value: Any) -> Any:
        return value


def after(prefix: bytes) -> bytes:
    """Return the smallest key greater than all that begin with *prefix*."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b"\xff" * 500


def purpose_digest(data: bytes, purpose: bytes) -> bytes:
    """Return 32 bytes that name *data* for one *purpose*."""
    return blake2b(data, digest_size=32, person=b"flowpregel" + purpose).digest()


def labels_digest(labels: Sequence[str]) -> bytes:
    """Return 16 bytes that stand for *labels*, which may be any texts."""
    summed = blake2b(digest_size=16)
    for label in labels:
        data = label.encode("utf-8", "surrogatepass")
        summed.update(len(data).to_bytes(8, "big") + data)
    return summed.digest()


def _name(key: bytes) -> str:
    return purpose_digest(key, b"name")[:8].hex()
