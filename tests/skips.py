"""The skips that a run may report: `expected_skips.toml`, and the conditions it
names.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("expected_skips.toml")
_CAP_SYS_ADMIN: Final = 1 << 21


def _is_restricted() -> bool:
    """Return whether this process lacks the capability that mounts and cgroups take."""
    try:
        status = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return True
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return effective is None or not int(effective[1], 16) & _CAP_SYS_ADMIN


def _has_no_apt() -> bool:
    return shutil.which("apt-get") is None or os.geteuid() != 0


CONDITIONS: Final[Mapping[str, Callable[[], bool]]] = {
    "everywhere": lambda: True,
    "root": lambda: os.geteuid() == 0,
    "not root": lambda: os.geteuid() != 0,
    "a restricted container": _is_restricted,
    "no apt": _has_no_apt,
    "not Linux": lambda: sys.platform != "linux",
    "little memory or disk": lambda: True,
    "without FLOWPREGEL_CRASH_ALL": lambda: not os.environ.get("FLOWPREGEL_CRASH_ALL"),
}


def expected_patterns(
    conditions: Mapping[str, Callable[[], bool]] = CONDITIONS,
) -> list[str]:
    """Return the patterns of the reasons that are expected on this machine.

    Raises:
        KeyError: The list names a condition that does not exist.
    """
    patterns: list[str] = []
    for condition, table in tomllib.loads(LIST.read_text("utf-8")).items():
        if conditions[condition]():
            patterns.extend(table["skips"])
    return patterns


def unexpected(reasons: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the *reasons* that no pattern matches, each once, sorted."""
    expected = [re.compile(pattern) for pattern in patterns]
    return sorted(
        {
            reason
            for reason in reasons
            if not any(pattern.match(reason) for pattern in expected)
        }
    )
