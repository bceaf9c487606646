"""The one room in which PostgreSQL is handled: connections, transactions, tables of
sealed records.

Savers, stores and caches keep their records through it and never meet psycopg itself.
The order to read it in: `database`, `transactions`, `tables`, `leases`.
"""
