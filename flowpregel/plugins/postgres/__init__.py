"""Saver, long-term store and cache in PostgreSQL (the extra ``postgres``).

No module but those of this package handles psycopg: connections, transactions, tables
of sealed records. The order to read them in: `database`, `transactions`, `tables`,
`leases`; then `saver`, `store` and `cache`.
"""

from flowpregel.plugins.postgres.cache import PostgresCache
from flowpregel.plugins.postgres.saver import PostgresSaver
from flowpregel.plugins.postgres.store import PostgresStore

__all__ = ["PostgresCache", "PostgresSaver", "PostgresStore"]
