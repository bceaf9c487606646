"""The versions of installed packages, which are compared between a machine and the
coordinator.

The versions are those in the names of the folders ``NAME-VERSION.dist-info``. For 110
packages, to read the metadata in these folders takes 500 ms, and to read the names of
the folders 1 ms.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from typing import Final, NamedTuple

_FOLDER: Final = re.compile(r"(.+)-([^-]+)\.dist-info")
_SEPARATORS: Final = re.compile("[-_.]+")
_LIBRARY: Final = __name__.partition(".")[0]
_PICKLER: Final = "cloudpickle"
"""The package that pickles functions by value. Its versions are compared even if the
program has not imported it yet.
"""
_PACKAGES: Final = {
    "PIL": "pillow",
    "cv2": "opencv_python",
    "dateutil": "python_dateutil",
    "skimage": "scikit_image",
    "sklearn": "scikit_learn",
    "yaml": "pyyaml",
}
"""The names of packages that differ from the name of their module, by the name of the
module.
"""


class Contents(NamedTuple):
    """The answer of a machine about its packages and modules."""

    packages: dict[str, str]
    """The versions of the requested packages that are installed on the machine."""
    modules: list[str]
    """The names of the requested top-level modules that exist on the machine."""
    time: float
    """The wall-clock time on the machine, in seconds."""


def installed_packages() -> dict[str, str]:
    """Return the versions of all installed packages, by normalized name."""
    versions: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # An entry of `sys.path` may be missing, or an archive.
        for name in names:
            match = _FOLDER.fullmatch(name)
            if match is not None:
                package = _SEPARATORS.sub("_", match[1]).lower()
                versions.setdefault(package, match[2])
    return versions


@cache
def imported_packages() -> Mapping[str, str]:
    """Return the versions of the installed packages that this program has imported when
    the function is first called.
    """
    modules = {name.partition(".")[0] for name in tuple(sys.modules)}
    return versions_of(modules)


def versions_of(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages to which some top-level modules belong, and
    of cloudpickle.

    Args:
        modules: The names of the modules.
    """
    installed = installed_packages()
    packages = {_PICKLER}
    for module in modules:
        package = _PACKAGES.get(module, module)
        packages.add(package.lower())
    # flowpregel is left out, because the handshake already compares its version.
    packages.discard(_LIBRARY)
    return {name: installed[name] for name in sorted(packages & installed.keys())}


def pack_contents(packages: Sequence[str], modules: Sequence[str]) -> list[bytes]:
    """Return the answer of this machine about its packages and modules, packed.

    Args:
        packages: The names of the packages.
        modules: The names of the top-level modules. None of them is imported.
    """
    installed = installed_packages()
    versions = {name: installed[name] for name in packages if name in installed}
    existing = [name for name in modules if PathFinder.find_spec(name) is not None]
    contents = (versions, existing, time.time())
    return [pickle.dumps(contents)]


def read_contents(packed: bytes) -> Contents:
    """Return the answer of a machine about its packages and modules.

    Args:
        packed: The answer, as `pack_contents` returns it.
    """
    return Contents(*pickle.loads(packed))


def package_differences(
    versions: Mapping[str, str],
    other_versions: Mapping[str, str],
) -> list[str]:
    """Return the packages whose versions differ, each with both versions.

    Args:
        versions: The versions of this program's packages, by name.
        other_versions: The versions of those packages that a machine has.
    """
    differences: list[str] = []
    for name, version in versions.items():
        other_version = other_versions.get(name, version)
        if other_version != version:
            differences.append(f"{name} {other_version} (here {version})")
    return differences
