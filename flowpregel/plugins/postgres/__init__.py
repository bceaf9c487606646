"""Saver, long-term store and cache in PostgreSQL (the extra ``postgres``).

Only the modules of this package use psycopg. Read them in this order: `database`,
`transactions`, `tables`, `leases`; then `saver`, `store` and `cache`.
"""

from flowpregel.plugins.postgres.cache import PostgresCache
from flowpregel.plugins.postgres.saver import PostgresSaver
from flowpregel.plugins.postgres.store import PostgresStore

__all__ = ["PostgresCache", "PostgresSaver", "PostgresStore"]
