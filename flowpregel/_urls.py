"""A test that distinguishes the URL of a store from the path of a folder."""

from __future__ import annotations

import re
from typing import Any, Final

from flowpregel._entry_points import STORES, load_plugin, plugin_hint, plugin_names
from flowpregel.errors import ConfigurationError

_CREDENTIALS: Final = re.compile(r"(?<=//)[^/@]*@")
# A scheme has at least two letters, because `C:\runs` is a folder on a drive.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def scheme_of(location: Any) -> str | None:
    """Return the scheme of a URL in lower case, or None for the path of a folder.

    A path object is always a path; so is a string without ``scheme:`` at its beginning.

    Example:
        >>> locations = ["postgresql://me@db.example.org/runs", "runs.lmdb", "./a:b"]
        >>> [scheme_of(location) for location in locations]
        ['postgresql', None, None]
    """
    match = _SCHEME.match(location) if isinstance(location, str) else None
    return None if match is None else match[1].lower()


def plugin_of_url(location: str, scheme: str) -> Any:
    """Return the `StorePlugin` class for a URL.

    Raises:
        ConfigurationError: The scheme is unknown, or the URL has no ``//``.
    """
    if scheme not in plugin_names(STORES):
        raise _unknown_scheme(location, scheme)
    plugin = load_plugin(STORES, scheme)
    if not location.startswith("//", len(scheme) + 1):
        text = without_credentials(location)
        raise ConfigurationError(
            f"{text!r} is not a complete URL of a store: write {plugin.example}"
        )
    return plugin


def check_folder(location: Any) -> None:
    """Raise an error if *location* is a URL, where only the path of a folder can be
    used.

    Raises:
        ConfigurationError: *location* is a URL.
    """
    scheme = scheme_of(location)
    if scheme is None:
        return
    plugin = plugin_of_url(location, scheme)
    raise ConfigurationError(
        f"{without_credentials(location)!r} is the URL of a store, but a folder is "
        f"needed here: pass the path of a folder, or use the class for {scheme}:// "
        f"({', '.join(plugin.classes)})"
    )


def without_credentials(location: str) -> str:
    """Return a URL without the user's name and password, for messages."""
    return _CREDENTIALS.sub("...@", location)


def _unknown_scheme(location: str, scheme: str) -> ConfigurationError:
    """Return the error for a URL whose scheme no plug-in has."""
    text = without_credentials(location)
    if scheme == "file":
        cure = "write the path of a folder without 'file:'"
    else:
        cure = (
            f"{_known_urls()}. For a folder of this name, write './{text}'"
            f"{plugin_hint(STORES, scheme)}"
        )
    return ConfigurationError(f"{text!r} is neither a folder nor a known URL: {cure}")


def _known_urls() -> str:
    """Return the examples of the known URLs, for a message."""
    examples: dict[str, None] = {}
    for scheme in plugin_names(STORES):
        try:
            examples[load_plugin(STORES, scheme).example] = None
        except ConfigurationError:
            examples[f"{scheme}://... (its plug-in cannot be loaded)"] = None
    if not examples:
        return "no URLs are known"
    return f"the known URLs are {', '.join(examples)}"
