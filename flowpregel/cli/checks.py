"""What `flowpregel doctor` looks at."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from flowpregel._lmdb import files
from flowpregel._version import __version__
from flowpregel.cli.output import size_of
from flowpregel.cli.stores import reading
from flowpregel.errors import StoreError

_NEEDED = ("cloudpickle", "lmdb", "loky", "structlog")
_EXTRAS = ("click", "rich", "cryptography", "zstandard", "numpy", "langgraph")
_SHM = "/dev/shm"
_LEAST_SHM = 64 << 20
_LEAST_DISK = 256 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and what it found."""

    name: str
    ok: bool
    says: str


def machine() -> list[Finding]:
    """Look at Python, the packages, the cores and the shared memory."""
    python = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform}"
    return [
        Finding("python", sys.version_info >= (3, 11), python),
        Finding("flowpregel", True, __version__),
        *_packages(),
        _cores(),
        *_shared_memory(_SHM),
    ]


def _packages() -> list[Finding]:
    needed = {name: _version(name) for name in _NEEDED}
    extras = {name: found for name in _EXTRAS if (found := _version(name))}
    return [
        *(
            Finding(name, found is not None, found or "is not installed: pip install flowpregel")
            for name, found in needed.items()
        ),
        Finding("extras", True, ", ".join(f"{k} {v}" for k, v in extras.items()) or "none"),
    ]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cores() -> Finding:
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    return Finding("cores", True, f"{usable} of {total} usable by this process")


def _shared_memory(path: str) -> list[Finding]:
    if sys.platform != "linux":
        return []
    if not os.access(path, os.W_OK):
        return [Finding(path, False, "cannot be written: big arrays go through pipes")]
    free = shutil.disk_usage(path).free
    return [Finding(path, free >= _LEAST_SHM, f"{size_of(free)} free")]


def store_folder(path: str) -> list[Finding]:
    """Look at the folder of a store, and whether the store in it opens."""
    try:
        real = files.real_path(path)
    except StoreError as error:
        return [Finding("store", False, str(error))]
    place = real
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    writable = os.access(place, os.W_OK)
    return [
        _opens(real),
        _file_system(place),
        Finding("store's disk", free >= _LEAST_DISK, f"{size_of(free)} free"),
        Finding("store's rights", writable, "writable" if writable else f"{place} is read-only"),
        *_mode(real),
    ]


def _opens(real: str) -> Finding:
    try:
        if not files.exists(real):
            return Finding("store", True, f"none at {real} yet")
        with reading(real) as saver:
            return Finding("store", True, f"{real} opens, {size_of(saver.size())}")
    except StoreError as error:
        return Finding("store", False, str(error))


def _file_system(place: str) -> Finding:
    try:
        files.refuse_network(place)
    except StoreError as error:
        return Finding("store's file system", False, str(error))
    return Finding("store's file system", True, files.file_system(place) or "unknown")


def _mode(real: str) -> list[Finding]:
    if not os.path.isdir(real):
        return []
    mode = os.stat(real).st_mode & 0o777
    alone = not mode & 0o077
    says = f"mode {mode:o}" + ("" if alone else ": others may look into it; chmod 700 it")
    return [Finding("store's mode", alone, says)]
