"""Scopes: a thread's namespace, its number, and who may write it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from flowpregel._lmdb.table import Table
from flowpregel.checkpoint.lmdb import keys

_FIELDS = struct.Struct(">QQQQI")
_NEXT = b"next scope"
_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class Scope:
    """One thread's namespace, as ``scopes`` keeps it."""

    number: int
    """What its keys begin with; never used again after the scope is deleted."""
    fence: int
    """The fencing token of the newest lease that wrote it; older ones may not."""
    generation: int
    """Counts deletions, so that what is kept at hand can be told to be out of date."""
    created: int
    """Wall-clock nanoseconds."""
    thread_id: str
    namespace: str

    def to_bytes(self) -> bytes:
        """Return the scope as `from_bytes` reads it."""
        thread = keys.text(self.thread_id)
        head = _FIELDS.pack(self.number, self.fence, self.generation, self.created, len(thread))
        return head + thread + keys.text(self.namespace)

    @classmethod
    def from_bytes(cls, data: bytes) -> Scope:
        """Return the scope in *data*."""
        number, fence, generation, created, size = _FIELDS.unpack_from(data)
        thread = data[_FIELDS.size : _FIELDS.size + size]
        namespace = data[_FIELDS.size + size :]
        return cls(number, fence, generation, created, keys.untext(thread), keys.untext(namespace))


class Scopes:
    """The ``scopes`` database, and the counter of scopes in ``meta``."""

    def __init__(self, table: Table, meta: Table) -> None:
        self._table = table
        self._meta = meta
        self._known: dict[bytes, tuple[bytes, Scope]] = {}

    def get(self, transaction: Any, thread_id: str, namespace: str) -> Scope | None:
        """Return a scope, or None if nothing was ever written to it."""
        key = keys.scope(thread_id, namespace)
        raw = self._table.raw(transaction, key)
        if raw is None:
            return None
        known = self._known.get(key)
        if known is not None and known[0] == raw:
            return known[1]
        data = self._table.get(transaction, key)
        assert data is not None
        scope = Scope.from_bytes(data)
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known[key] = (raw, scope)
        return scope

    def make(self, transaction: Any, thread_id: str, namespace: str, at: int) -> Scope:
        """Return a new scope; it begins with the fences of the namespaces around it."""
        last = self._meta.get(transaction, _NEXT)
        number = 1 + (int.from_bytes(last, "big") if last else 0)
        self._meta.put(transaction, _NEXT, number.to_bytes(8, "big"))
        fence = 0
        for outer in self.of_thread(transaction, thread_id):
            if not outer.namespace or namespace.startswith(outer.namespace + "|"):
                fence = max(fence, outer.fence)
        scope = Scope(number, fence, 0, at, thread_id, namespace)
        self.put(transaction, scope)
        return scope

    def put(self, transaction: Any, scope: Scope) -> None:
        """Keep *scope* as it is now."""
        key = keys.scope(scope.thread_id, scope.namespace)
        self._table.put(transaction, key, scope.to_bytes())

    def drop(self, transaction: Any, scope: Scope) -> None:
        """Forget *scope*; its records must have been dropped."""
        self._table.delete(transaction, keys.scope(scope.thread_id, scope.namespace))

    def changed(self, transaction: Any, scope: Scope) -> Scope:
        """Note that something of *scope* was deleted; return it as it is now."""
        scope = replace(scope, generation=scope.generation + 1)
        self.put(transaction, scope)
        return scope

    def fence_off(self, transaction: Any, thread_id: str, namespace: str, fence: int) -> None:
        """Let only leases from *fence* on write a namespace and those inside it."""
        if self.get(transaction, thread_id, namespace) is None:
            self.make(transaction, thread_id, namespace, fence)
        for scope in [*self.of_thread(transaction, thread_id)]:
            inside = not namespace or scope.namespace.startswith(namespace + "|")
            if (inside or scope.namespace == namespace) and scope.fence < fence:
                self.put(transaction, replace(scope, fence=fence))

    def of_thread(self, transaction: Any, thread_id: str) -> Iterator[Scope]:
        """Yield the scopes of a thread."""
        for _, data in self._table.scan(transaction, keys.thread(thread_id)):
            yield Scope.from_bytes(data)

    def all(self, transaction: Any, start: bytes = b"") -> Iterator[tuple[bytes, Scope]]:
        """Yield (key, scope) of every scope, from the key *start* on."""
        for key, data in self._table.scan(transaction, b"", start or b"\0"):
            yield key, Scope.from_bytes(data)
