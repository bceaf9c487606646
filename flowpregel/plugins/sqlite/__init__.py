"""A saver, a long-term store and a cache in a SQLite database, with no package to
install.

Read the modules in this order: `files` (URL, files beside the database, creation),
`connections`, `tables`, `keys`, `database`; then `saver`, `store`, `cache` and
`plugin`. This package is the example on the page *Write a store of your own*.
"""

from flowpregel.plugins.sqlite.cache import SQLiteCache
from flowpregel.plugins.sqlite.saver import SQLiteSaver
from flowpregel.plugins.sqlite.store import SQLiteStore

__all__ = ["SQLiteCache", "SQLiteSaver", "SQLiteStore"]
