"""The handshake: before its first batch, a machine reports its versions and resources.

Tasks travel as pickles and as frames of the worker protocol, which only the same
versions of Python and flowpregel are known to read.
"""

from __future__ import annotations

import pickle
import platform
import sys
from collections.abc import Mapping
from typing import Any, Final

# The package itself is above this module, so it is not imported here.
_PACKAGE: Final = sys.modules[__name__.partition(".")[0]]
_AMOUNTS: Final = "amounts"
"""The name of the machine's resources in its report."""


def pack_report(amounts: Mapping[str, float]) -> bytes:
    """Return the report of this machine for a coordinator.

    Args:
        amounts: The amounts of the machine's resources.
    """
    report: dict[str, Any] = dict(own_versions())
    report[_AMOUNTS] = dict(amounts)
    return pickle.dumps(report)


def read_report(packed: bytes) -> tuple[str, dict[str, float]]:
    """Return the difference between the machine's versions and this process's, as
    `version_difference` does, and the amounts of the machine's resources.

    Args:
        packed: The report of the machine.
    """
    report: dict[str, Any] = pickle.loads(packed)
    difference = version_difference(report)
    amounts: dict[str, float] = report.get(_AMOUNTS, {})
    return difference, amounts


def own_versions() -> dict[str, str]:
    """Return the versions of this process that a machine and its coordinator share."""
    major, minor, *_ = sys.version_info
    return {
        "flowpregel": _PACKAGE.__version__,
        platform.python_implementation(): f"{major}.{minor}",
    }


def version_difference(versions: Mapping[str, Any]) -> str:
    """Return the first difference between a machine's *versions* and this process's, or
    an empty text if there is none.

    Args:
        versions: The versions of the machine, as `own_versions` returns them.
    """
    for name, version in own_versions().items():
        other = versions.get(name)
        if other != version:
            return f"it has {name} {other}, and this program {version}"
    return ""
