"""The LMDB engine: the only package that uses LMDB."""

from flowpregel.errors import ConfigurationError

# Every module that needs LMDB is in this package, or imports a module of this package.
# The package is not imported for a store in SQLite or PostgreSQL, so that flowpregel
# with such a store runs without the package `lmdb`.
try:
    import lmdb as lmdb
except ImportError as _error:
    raise ConfigurationError(
        f"a store in a folder needs the package lmdb ({_error}); install lmdb (if "
        "there is no wheel for this Python, pip needs a C compiler), or use a SQLite "
        "database: 'sqlite:///runs.db'"
    ) from _error
