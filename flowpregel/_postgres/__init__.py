"""The one room in which PostgreSQL is handled: connections, transactions, tables of sealed records.

Savers, stores and caches keep their records through it and never meet psycopg itself.
The order to read it in: `database`, `transactions`, `tables`, `leases`.
"""

from __future__ import annotations

from typing import Any


def is_url(place: Any) -> bool:
    """Return whether *place* names a database of PostgreSQL's, and not a folder."""
    return isinstance(place, str) and place.startswith(("postgresql://", "postgres://"))
