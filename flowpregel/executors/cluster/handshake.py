"""The handshake: before a machine gets its first batch of tasks, it reports its
versions and resources.

Tasks are sent as pickles, and as frames of the worker protocol. Both can be read
reliably only by the same versions of Python and flowpregel. So a machine with another
version of one of these gets no tasks. The versions of other packages are compared
afterwards (`package_versions`), because most differences do no harm.
"""

from __future__ import annotations

import pickle
import platform
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from flowpregel.executors.base import HOST

# The top-level package is taken from `sys.modules`, because the layers of this project
# allow a module to import only from lower ones.
_PACKAGE: Final = sys.modules[__name__.partition(".")[0]]
_HOST: Final = "host"
"""The key of the machine's host name in its report."""
_AMOUNTS: Final = "amounts"
"""The key of the machine's resources in its report."""
_SAME_VERSIONS: Final = (
    "run the program and the machines with the same minor version of Python and the "
    "same flowpregel, for example in one image"
)


class Greeting(NamedTuple):
    """The answer of a machine to the handshake."""

    host: str
    """The machine's host name."""
    versions: str
    """The versions of Python and flowpregel on the machine, as text for messages."""
    refusal: str
    """The reason why the machine cannot run tasks, or an empty string."""
    amounts: dict[str, float]
    """The amounts of the machine's resources."""


def pack_report(amounts: Mapping[str, float]) -> bytes:
    """Return the answer of this machine to a coordinator's handshake, packed.

    Args:
        amounts: The amounts of the machine's resources.
    """
    report: dict[str, Any] = dict(own_versions())
    report[_HOST] = HOST
    report[_AMOUNTS] = dict(amounts)
    return pickle.dumps(report)


def read_report(packed: bytes) -> Greeting:
    """Unpack the answer of a machine to the handshake.

    Args:
        packed: The packed report of the machine.
    """
    report: dict[str, Any] = pickle.loads(packed)
    return Greeting(
        host=report.get(_HOST, ""),
        versions=versions_text(report),
        refusal=version_difference(report),
        amounts=report.get(_AMOUNTS, {}),
    )


def own_versions() -> dict[str, str]:
    """Return the versions of this process that must be the same on a machine and in the
    coordinator.
    """
    major, minor, *_ = sys.version_info
    python = f"{major}.{minor}"
    implementation = platform.python_implementation()
    if implementation != "CPython":
        python += f" ({implementation})"
    return {
        "Python": python,
        "flowpregel": _PACKAGE.__version__,
    }


def versions_text(versions: Mapping[str, Any]) -> str:
    """Return the versions of a process in words.

    Args:
        versions: The versions, as `own_versions` returns them.
    """
    names = own_versions()
    return " and ".join(f"{name} {versions.get(name, '?')}" for name in names)


def version_difference(versions: Mapping[str, Any]) -> str:
    """Describe how the versions of a machine differ from those of this process, and
    what to do about it. Return an empty string if they are the same.

    Args:
        versions: The versions of the machine, as `own_versions` returns them.
    """
    program = own_versions()
    if all(versions.get(name) == version for name, version in program.items()):
        return ""
    return (
        f"it has {versions_text(versions)}, and this program {versions_text(program)}: "
        f"{_SAME_VERSIONS}"
    )
