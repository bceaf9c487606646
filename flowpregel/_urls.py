"""The difference between the URL of a database and the path of a folder."""

from __future__ import annotations

import re
from typing import Any, Final

from flowpregel.errors import ConfigurationError

SCHEMES: Final = ("postgresql", "postgres")
"""What the URL of a database begins with, before ``://``."""
_CREDENTIALS: Final = re.compile(r"(?<=//)[^/@]*@")
# Two letters at least: `C:\runs` is a folder on a drive.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def is_url(location: Any) -> bool:
    """Return True if *location* is the URL of a PostgreSQL database, False if it is a
    path.

    A path object is always a path; so is a text without ``scheme:`` at its beginning.

    Raises:
        ConfigurationError: The scheme is an unknown one.

    Example:
        >>> addresses = ["postgresql://me@db.example.org/runs", "runs.lmdb", "./a:b"]
        >>> [is_url(address) for address in addresses]
        (True, False, False)
    """
    found = _SCHEME.match(location) if isinstance(location, str) else None
    if found is None:
        return False
    scheme = found[1].lower()
    if scheme in SCHEMES and location.startswith("//", found.end()):
        return True
    shown = _without_credentials(location)
    if scheme in SCHEMES:
        cure = f"write {scheme}://user@host/database"
    elif scheme == "file":
        cure = "write the path of a folder without 'file:'"
    else:
        cure = (
            "the known one is postgresql://user@host/database. For a folder of this "
            "name, write "
            f"'./{shown}'"
        )
    raise ConfigurationError(f"{shown!r} is neither a folder nor a known URL: {cure}")


def check_folder(location: Any) -> None:
    """Refuse a URL where only the path of a folder can be used.

    Raises:
        ConfigurationError: It is a URL.
    """
    if is_url(location):
        raise ConfigurationError(
            f"{_without_credentials(location)!r} is a database, and a folder is needed "
            "here: give "
            "its path, or use the class for PostgreSQL (PostgresSaver, PostgresStore, "
            "PostgresCache)"
        )


def _without_credentials(location: str) -> str:
    return _CREDENTIALS.sub("...@", location)
