"""Run files: one run of a store in a file, from which another store imports it.

::

    {"file": "flowpregel run", "format": 1, ...}                   the head, one line
    table (1), size of key (2), size of record (8), key, record    repeated
    digest (32), checksum (16)                                     of all bytes before

The records are payloads of a store, with checksums and encryption made with the keys of
the file. They are independent of the engine, so every kind of store can import the
file. In a key, the prefix of a namespace is replaced by the number of the namespace in
the file. The records of the namespaces, as JSON, come first.

Values are pickles, which run code when they are decoded. So the checksum at the end is
verified before anything is stored. An importer without the key must trust the file
explicitly. The digest before the checksum needs no key: it distinguishes a damaged file
from one of another origin. An import decodes neither a value nor a record.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, NamedTuple, Self

from flowpregel._code.sources import parts_key
from flowpregel._core.ids import AttemptRecord
from flowpregel._core.records import (
    CALLED,
    DRAWING,
    MADE_BY,
    Address,
    Batch,
    MadeBy,
    TaskWrites,
)
from flowpregel.checkpoint import layout
from flowpregel.checkpoint.base import WRITES_IDX_MAP
from flowpregel.checkpoint.labels import METADATA
from flowpregel.checkpoint.layout import (
    CheckpointRecord,
    NamespaceRecord,
    SharedMetadata,
    WritesRecord,
)
from flowpregel.checkpoint.records import codes_in
from flowpregel.checkpoint.tables import Tables
from flowpregel.errors import (
    ConfigurationError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreVersionError,
)
from flowpregel.storage.drafts import draft_in, sync_path
from flowpregel.storage.errors import translate_os_errors
from flowpregel.storage.records import SIZE, WHOLE, Seal, SealedRecords
from flowpregel.storage.renames import RENAMED, names_in, with_renames_of

FORMAT: Final = 1
_FILE: Final = "flowpregel run"
_FRAME: Final = struct.Struct(">BHQ")
_TABLES: Final = (
    b"threads",
    b"meta",
    b"checkpoints",
    b"values",
    b"deltas",
    b"writes",
)
"""The tables with records in a run file, in the order of their numbers."""
_PREFIX: Final = 8
"""The size, in bytes, of the number that identifies a namespace in a run file."""
_LONGEST_HEAD: Final = 1_000
_DIGEST: Final = 32
_TRAILER: Final = _DIGEST + SIZE
_BLOCK: Final = 1 << 20
_UNSENT: Final = 16 << 20
"""The greatest size, in bytes, of the records that are put before they are sent to a
database on another machine.
"""
_END: Final = b"end of run file"
"""The bytes from which, together with the digest, the checksum at the end of a file is
made.
"""


class NamespaceFields(NamedTuple):
    """The fields of a `NamespaceRecord` that do not depend on the store."""

    thread_id: str
    namespace: str
    created: int
    newest: str | None
    checkpoints: int
    swept: int

    @classmethod
    def of(cls, record: NamespaceRecord) -> Self:
        """Return these fields of a record."""
        return cls(*(getattr(record, name) for name in cls._fields))

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Return the fields that `to_json` encoded."""
        return cls(**json.loads(data))

    def to_json(self) -> bytes:
        """Return the fields as JSON, by name."""
        return json.dumps(self._asdict()).encode()


# ---------------------------------------------------------------- export


class RunFileWriter:
    """A writer of a run file.

    Args:
        file: The file, open for writing.
        seal: The keys for the checksums and the encryption of the file.
    """

    def __init__(self, file: BinaryIO, seal: Seal) -> None:
        self._file = file
        self._seal = seal
        self._digest = _new_digest()
        head = {
            "file": _FILE,
            "format": FORMAT,
            "key": seal.id,
            "encryption": seal.encryption,
        }
        self._write(json.dumps(head).encode() + b"\n")

    def add(self, table: bytes, key: bytes, payload: bytes) -> None:
        """Add a record.

        Args:
            table: The name of the table, one of `_TABLES`.
            key: The key, with the number of the namespace in place of the prefix.
            payload: The payload of the record, which gets a checksum made with the key
                of the file.
        """
        records = SealedRecords(table, "", self._seal)
        record = records.sealed(key, WHOLE, payload)
        number = _TABLES.index(table)
        self._write(_FRAME.pack(number, len(key), len(record)))
        self._write(key)
        self._write(record)

    def finish(self) -> None:
        """Write the digest and the checksum of all records."""
        digest = self._digest.digest()
        self._file.write(digest + self._seal.of(_END, digest))

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


@contextmanager
def new_file(path: str) -> Iterator[str]:
    """Return a context manager that returns the path of a draft, and gives the draft
    its final name when the context ends without an error.

    Args:
        path: The path of the new file.

    Raises:
        StoreError: There is a file at *path*, or it cannot be written.
    """
    folder, name = os.path.split(path)
    error = StoreError(f"there is already a file at {path}; give a new path")
    with translate_os_errors(path):
        if os.path.isdir(path):
            raise StoreError(f"{path} is a folder; give the path of a new file in it")
        if os.path.lexists(path):
            raise error
        os.makedirs(folder, exist_ok=True)
        with draft_in(folder, f".{name}.new.") as draft_folder:
            draft = os.path.join(draft_folder, "run")
            # Other users must not read the values, so the file is created with this
            # mode.
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(draft, flags, 0o600))
            yield draft
            sync_path(draft)
            if os.path.lexists(path):
                raise error
            os.rename(draft, path)
            sync_path(folder)


def export_records(
    tables: Tables, transaction: Any, thread_id: str, writer: RunFileWriter
) -> None:
    """Write all records of a thread, and the sources of the code that made them.

    Args:
        tables: The tables of the store.
        transaction: A transaction, which reads one snapshot.
        thread_id: The id of the thread.
        writer: The writer of the file.

    Raises:
        ConfigurationError: The thread has no checkpoints.
    """
    namespaces = _namespaces_by_number(tables, transaction, thread_id)
    for number, record in namespaces.items():
        writer.add(b"threads", number, NamespaceFields.of(record).to_json())
    codes: dict[str, None] = {}
    for number, record in namespaces.items():
        for table in tables.of_namespace:
            for key, payload in table.scan(transaction, record.prefix):
                writer.add(table.name, number + key[_PREFIX:], payload)
                digests = _codes_of_record(tables, table.name, key, payload)
                codes.update(dict.fromkeys(digests))
    for key in _meta_keys(codes):
        data = tables.meta.get(transaction, key)
        if data is not None:
            writer.add(b"meta", key, data)
    writer.finish()


def _namespaces_by_number(
    tables: Tables, transaction: Any, thread_id: str
) -> dict[bytes, NamespaceRecord]:
    """Return the namespaces of a thread that have checkpoints, by their numbers in a
    run file.

    Raises:
        ConfigurationError: The thread has no checkpoints.
    """
    namespaces: dict[bytes, NamespaceRecord] = {}
    for record in tables.namespaces(transaction, thread_id):
        if record.checkpoints:
            number = len(namespaces).to_bytes(_PREFIX, "big")
            namespaces[number] = record
    if not namespaces:
        raise ConfigurationError(
            f"the store has no thread {thread_id!r}; `flowpregel ls` lists its threads"
        )
    return namespaces


def _meta_keys(codes: Iterable[str]) -> Iterator[bytes]:
    """Yield the keys of the records in ``meta`` that a run needs.

    Args:
        codes: The digests of the code that made the records of the run.
    """
    for code in codes:
        yield layout.source_key(code)
        yield layout.source_key(parts_key(code))
    yield RENAMED


def _codes_of_record(
    tables: Tables, table: bytes, key: bytes, payload: bytes
) -> list[str]:
    """Return the digests of the code that a record of a namespace refers to."""
    tasks: list[TaskWrites] = []
    if table == b"checkpoints":
        record = CheckpointRecord(*tables.fields_of(payload))
        return _codes_of_metadata(tables, record.metadata)
    if table == b"values" and layout.is_metadata(key):
        shared = SharedMetadata(*tables.fields_of(payload))
        return _codes_of_metadata(tables, shared.metadata)
    if table == b"writes" and not layout.is_sidecar(key):
        tasks.append(_stored_task(tables, payload))
    return codes_in(Batch(Address(""), tuple(tasks)))


def _codes_of_metadata(tables: Tables, metadata: Mapping[str, bytes]) -> list[str]:
    """Return the digests of the code to which the metadata of a checkpoint refers."""
    codes: list[str] = []
    tasks: list[TaskWrites] = []
    made_by = _decoded(tables, metadata.get(MADE_BY), METADATA)
    if made_by:
        attempts = MadeBy(*made_by).attempts()
        tasks += [TaskWrites("", "", "", (), attempt) for attempt in attempts]
    drawing = metadata.get(DRAWING)
    if drawing is not None:
        codes.append(str(tables.codec.decode(drawing, METADATA)))
    return codes + codes_in(Batch(Address(""), tuple(tasks)))


def _stored_task(tables: Tables, payload: bytes) -> TaskWrites:
    """Return the call and the attempt in a task's record of writes."""
    record = WritesRecord(*tables.fields_of(payload))
    _, data = record.writes.get(WRITES_IDX_MAP[CALLED], (CALLED, None))
    call = _decoded(tables, data, "a call")
    attempt = None if record.ran is None else AttemptRecord(*record.ran)
    writes = ((CALLED, call),) if call else ()
    return TaskWrites("", record.task_id, record.path, writes, attempt)


def _decoded(tables: Tables, data: bytes | None, label: str) -> Any:
    """Return the fields in an encoded tuple, or None if *data* is None or contains no
    tuple.

    A user's codec may decode a tuple to a value of another type.
    """
    value = None if data is None else tables.codec.decode(data, label)
    return value if isinstance(value, tuple | list) else None


# ---------------------------------------------------------------- import


class RunFile:
    """A file with an exported run, opened for import. Its digest was verified, and so
    was its checksum with the importer's key, unless the file is trusted.

    Args:
        file: The file, open for reading.
        path: The path of the file, for messages.
        seal: The importer's keys for checksums and encryption.
        trust: True to accept a file whose checksum was made with another key.

    Raises:
        StoreError: The file is no run file, or is damaged.
        StoreForeignError: The checksum of the file was made with another key, or the
            file is encrypted under another key.
        StoreVersionError: A later release wrote the file in another format.
    """

    def __init__(self, file: BinaryIO, path: str, seal: Seal, *, trust: bool) -> None:
        self._file = file
        self._path = path
        self._seal = seal
        self._end = file.seek(0, os.SEEK_END) - _TRAILER
        head = self._read_head()
        self._start = file.tell()
        self._is_ours = self._verified()
        if not self._is_ours and not trust:
            raise self._foreign(head)
        if head["encryption"] and head["encryption"] != seal.encryption:
            raise StoreForeignError(
                f"{path} is encrypted under another key ({head['encryption']}); pass "
                "its key as encryption_key=..., or in a file as --encryption-key"
            )

    @classmethod
    @contextmanager
    def opened(cls, path: str, seal: Seal, *, trust: bool) -> Iterator[Self]:
        """Return a context manager that opens and verifies the file at *path*.

        Args:
            path: The path of the file.
            seal: The importer's keys for checksums and encryption.
            trust: True to accept a file whose checksum was made with another key.

        Raises:
            ConfigurationError: There is no file.
        """
        if not os.path.isfile(path):
            raise ConfigurationError(f"there is no file {path}")
        with translate_os_errors(path), open(path, "rb") as file:
            yield cls(file, path, seal, trust=trust)

    @property
    def thread_id(self) -> str:
        """The id that the thread had in the store from which it was exported."""
        for table, _, payload in self._records():
            if table == b"threads":
                return NamespaceFields.from_json(payload).thread_id
            break
        raise self._damaged("has no thread")

    def put(self, tables: Tables, transaction: Any, thread_id: str) -> None:
        """Put all records into a store.

        Args:
            tables: The tables of the store.
            transaction: A write transaction.
            thread_id: The id of the thread in the store.

        Raises:
            ConfigurationError: The thread has checkpoints in the store.
            StoreCorruptError: A record is damaged.
        """
        _refuse_known_thread(tables, transaction, thread_id)
        by_name = {table.name: table for table in tables.of_namespace}
        prefixes: dict[bytes, bytes] = {}
        unsent = 0
        for name, key, payload in self._records():
            if name == b"threads":
                record = self._put_namespace(tables, transaction, thread_id, payload)
                prefixes[key] = record.prefix
                continue
            if name == b"meta":
                self._put_meta(tables, transaction, key, payload)
                continue
            prefix = prefixes.get(key[:_PREFIX])
            if prefix is None:
                raise self._damaged("has a record without a namespace")
            table = by_name[name]
            table.put(transaction, prefix + key[_PREFIX:], payload)
            unsent += len(payload)
            if unsent > _UNSENT:
                # The store in a database on another machine collects records, and sends
                # them before the next read. This read makes it send them now, so that
                # it does not send the whole run in one statement.
                table.keys(transaction, prefix, limit=1)
                unsent = 0

    def _put_namespace(
        self, tables: Tables, transaction: Any, thread_id: str, payload: bytes
    ) -> NamespaceRecord:
        """Store a namespace of the file under a new prefix, and return its record."""
        fields = NamespaceFields.from_json(payload)
        record = tables.ensure_namespace(
            transaction, Address(thread_id, fields.namespace)
        )
        record = record._replace(
            created=fields.created,
            newest=fields.newest,
            checkpoints=fields.checkpoints,
            swept=fields.swept,
        )
        tables.put_namespace(transaction, record)
        return record

    def _put_meta(
        self, tables: Tables, transaction: Any, key: bytes, payload: bytes
    ) -> None:
        """Store source code, or add the new names of renamed classes and functions,
        unless the store has the same source or name already.
        """
        if key != RENAMED and not layout.is_source(key):
            # Only the names of renamed classes and functions, and source code, are in a
            # run file as records of the table ``meta``.
            raise self._damaged("has a record that no run has")
        stored = tables.meta.get(transaction, key)
        if key == RENAMED:
            names = with_renames_of(names_in(stored), names_in(payload))
            tables.meta.put(transaction, key, names)
        elif stored is None:
            tables.meta.put(transaction, key, payload)

    # ------------------------------------------------------------ reading

    def _read_head(self) -> dict[str, Any]:
        """Return the first line of the file."""
        self._file.seek(0)
        line = self._file.readline(_LONGEST_HEAD)
        try:
            head = json.loads(line)
        except ValueError:
            head = None
        if not isinstance(head, dict) or head.get("file") != _FILE:
            raise StoreError(
                f"{self._path} is not a run that flowpregel has exported; give the "
                "file that `flowpregel export` wrote"
            )
        if head.get("format") != FORMAT:
            raise StoreVersionError(
                f"{self._path} has format {head.get('format')}, but this release reads "
                f"format {FORMAT}; import it with the release that wrote it, or a "
                "later one"
            )
        return head

    def _verified(self) -> bool:
        """Return whether the file's checksum was made with the importer's key.

        Raises:
            StoreCorruptError: The file is damaged.
        """
        digest = _new_digest()
        self._file.seek(0)
        remaining = self._end
        while remaining > 0:
            block = self._file.read(min(_BLOCK, remaining))
            if not block:
                break
            digest.update(block)
            remaining -= len(block)
        trailer = self._file.read(_TRAILER)
        computed = digest.digest()
        if self._end < self._start or trailer[:_DIGEST] != computed:
            raise self._damaged("is damaged or incomplete")
        return trailer[_DIGEST:] == self._seal.of(_END, computed)

    def _records(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield the table, the key and the payload of each record."""
        position = self._start
        while position < self._end:
            self._file.seek(position)
            frame = self._file.read(_FRAME.size)
            if len(frame) < _FRAME.size:
                raise self._damaged("has changed while it was read")
            number, key_size, size = _FRAME.unpack(frame)
            position += _FRAME.size + key_size + size
            if position > self._end or number >= len(_TABLES):
                raise self._damaged("has a record that cannot be read")
            key = self._file.read(key_size)
            record = self._file.read(size)
            table = SealedRecords(_TABLES[number], self._path, self._seal)
            if not self._is_ours:
                record = table.resealed(key, record, None)
            yield table.name, key, table.opened(key, record)[1]

    # ------------------------------------------------------------ errors

    def _damaged(self, problem: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"{self._path} {problem}; nothing was imported: copy or export it again"
        )

    def _foreign(self, head: dict[str, Any]) -> StoreForeignError:
        return StoreForeignError(
            f"{self._path} is not sealed under the key of this store (the key of the "
            f"file is {head['key']}, that of the store {self._seal.id}); nothing was "
            "imported. If you have the key, pass it as key=..., or in a file as "
            "--key; if you trust the origin of the file, pass trust=True or --trust: "
            "its values can run code when they are read"
        )


def _refuse_known_thread(tables: Tables, transaction: Any, thread_id: str) -> None:
    """Refuse a thread that has checkpoints in the store.

    Raises:
        ConfigurationError: The thread has checkpoints in the store.
    """
    known = tables.namespaces(transaction, thread_id)
    if any(record.checkpoints for record in known):
        raise ConfigurationError(
            f"thread {thread_id!r} already has checkpoints; import the run under "
            "another id (thread_id=... or --as), or delete the thread first"
        )


def _new_digest() -> Any:
    return hashlib.blake2b(digest_size=_DIGEST, person=b"flowpregelfile")
