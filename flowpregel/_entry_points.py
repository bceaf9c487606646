"""Look-up of plug-ins, which installed packages declare as entry points.

A package names its plug-ins in its metadata, so that they are found without being
imported::

    [project.entry-points."flowpregel.stores"]
    mine = "mine.plugin:MineStores"

The metadata is read when a plug-in is first needed, once for each group. A program that
uses no URL and no command of a plug-in does not read the metadata. flowpregel's own
plug-ins are declared in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from flowpregel._text import did_you_mean
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

STORES: Final = "flowpregel.stores"
"""The group of stores. A name is the scheme of URLs; a value is a `StorePlugin`."""
EXECUTORS: Final = "flowpregel.executors"
"""The group of executors. A name is a scheme of URLs, or the complete string that
selects the executor. A value is a function that takes the part of the URL after ``://``
and returns an executor.
"""
COMMANDS: Final = "flowpregel.commands"
"""The group of commands. A name is the name of the command; a value is a
`click.Command`.
"""
SAVERS: Final = "flowpregel.savers"
"""The group of adapters for checkpointers and caches of other libraries. A value is a
function that returns a flowpregel saver or cache, or None for an object of another
library.
"""
STREAMS: Final = "flowpregel.streams"
"""The group of stream modes that need an extra (an optional dependency). A name is the
mode; a value is a function that takes a run's metadata and the modes that the caller
has requested, and returns an object that produces the items of the stream. The function
has an attribute ``make_manager``: a function that creates the callback manager for the
code of a node.
"""
NOTEBOOKS: Final = "flowpregel.notebooks"
"""The group of views of a run in a notebook. A value is a function that takes a saver
and a thread id, and returns HTML, or None if it cannot show the run.
"""
_OWN: Final = "flowpregel"
"""The distribution of the plug-ins that come with flowpregel."""


@cache
def _entry_points(group: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name, sorted by name."""
    from importlib import metadata  # noqa: PLC0415 - 40 ms, and only for plug-ins

    by_name: dict[str, list[EntryPoint]] = {}
    for entry_point in sorted(metadata.entry_points(group=group)):
        by_name.setdefault(entry_point.name, []).append(entry_point)
    return by_name


def plugin_names(group: str) -> list[str]:
    """Return the names of a group's plug-ins, sorted."""
    return list(_entry_points(group))


def load_plugin(group: str, name: str) -> Any:
    """Import a plug-in and return its value.

    Raises:
        ConfigurationError: There is no plug-in of this name, several packages declare
            one, or the plug-in cannot be imported.
    """
    entry_points = _entry_points(group).get(name, [])
    if not entry_points:
        raise ConfigurationError(
            f"there is no {name!r} in {group}{plugin_hint(group, name)}"
        )
    if len(entry_points) > 1:
        packages = " and ".join(sorted(map(_package_of, entry_points)))
        raise ConfigurationError(
            f"the packages {packages} both declare {name!r} in {group}: "
            "uninstall one of them"
        )
    entry_point = entry_points[0]
    try:
        return entry_point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{name!r} of the package {_package_of(entry_point)} cannot be loaded "
            f"({entry_point.value}): {error}{extra_hint(group, name)}"
        ) from error


def load_plugins(group: str) -> Iterator[Any]:
    """Import the plug-ins of a group one after the other, and yield their values."""
    for name in plugin_names(group):
        yield load_plugin(group, name)


def plugin_hint(group: str, name: str) -> str:
    """Return the end of the message that no plug-in of a group has this name: the
    closest known name, or the advice to reinstall flowpregel. It may be empty.
    """
    if not any(
        _package_of(entry_point) == _OWN
        for entry_points in _entry_points(group).values()
        for entry_point in entry_points
    ):
        return (
            ". flowpregel's own plug-ins are not registered either, because this "
            "installation has no package metadata: reinstall it with pip install "
            "flowpregel (for a working copy, pip install -e .)"
        )
    return did_you_mean(name, plugin_names(group))


def extra_hint(group: str, name: str) -> str:
    """Return the advice, for a message, to install the extra (optional dependency) of a
    plug-in. It is empty if the plug-in's package has no extra of that name.
    """
    for entry_point in _entry_points(group).get(name, []):
        package = entry_point.dist
        if package is None:
            continue
        if name in (package.metadata.get_all("Provides-Extra") or []):
            return f"; is the extra installed (pip install '{package.name}[{name}]')?"
    return ""


def _package_of(entry_point: EntryPoint) -> str:
    """Return the name of the distribution that declares an entry point."""
    return "(unknown)" if entry_point.dist is None else entry_point.dist.name
