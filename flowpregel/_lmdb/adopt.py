"""A store of someone else's made ours: sealed anew under our key."""

from __future__ import annotations

from typing import Any

from flowpregel._lmdb.environment import Environment
from flowpregel._lmdb.seal import HEADER, SIZE, Seal, new_header
from flowpregel.errors import StoreReadOnlyError


def adopt(environment: Environment, seal: Seal, timeout: float) -> None:
    """Seal every record of the store under *seal*, in one transaction.

    Whoever asks for it trusts whoever wrote the store: nothing can be checked
    without the other key, and what is sealed now is unpickled later.

    Raises:
        StoreReadOnlyError: The store was opened to be read only.
    """
    if environment.readonly:
        raise StoreReadOnlyError(
            f"{environment.path} cannot be sealed anew with readonly=True; open it to be written"
        )

    def work(transaction: Any) -> None:
        for name, handle in environment.databases.items():
            with transaction.cursor(db=handle) as cursor:
                keys = [*cursor.iternext(keys=True, values=False)]
            for key in keys:
                rest = transaction.get(key, db=handle)[SIZE:]
                transaction.put(key, seal.of(name + key, rest) + rest, db=handle)
        transaction.put(HEADER, new_header(seal), db=environment.databases[b"meta"])

    environment.write(work, timeout=timeout)
