"""The checks of `flowpregel doctor`: this machine, and the folder of a store."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flowpregel import __version__
from flowpregel._lmdb import folder
from flowpregel.cli.console import size_of
from flowpregel.cli.targets import reading
from flowpregel.errors import StoreError

_NEEDED = ("cloudpickle", "lmdb", "loky", "structlog")
_EXTRAS = ("click", "rich", "cryptography", "zstandard", "numpy", "langgraph")
_SHM = "/dev/shm"
_LEAST_SHM = 64 << 20
_LEAST_DISK = 256 << 20


def check_machine() -> list[dict[str, Any]]:
    """Check Python, the packages, the cores and the shared memory."""
    python = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform}"
    extras = [f"{name} {found}" for name in _EXTRAS if (found := _version(name))]
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    rows = [
        _row("python", sys.version_info >= (3, 11), python),
        _row("flowpregel", True, __version__),
        *(_package(name) for name in _NEEDED),
        _row("extras", True, ", ".join(extras) or "none"),
        _row("cores", True, f"{usable} of {total} usable by this process"),
    ]
    if sys.platform == "linux":
        rows.append(_shared_memory())
    return rows


def check_store(path: str) -> list[dict[str, Any]]:
    """Check the folder of a store, and whether the store in it opens."""
    try:
        real = folder.real_path(path)
    except StoreError as error:
        return [_row("store", False, str(error))]
    place = real
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    writable = os.access(place, os.W_OK)
    rows = [
        _opens(real),
        _file_system(place),
        _row("store's disk", free >= _LEAST_DISK, f"{size_of(free)} free"),
        _row("store's rights", writable, "writable" if writable else f"{place} is read-only"),
    ]
    if place == real:
        mode = os.stat(real).st_mode & 0o777
        private = not mode & 0o077
        advice = "" if private else ": others may look into it; chmod 700 it"
        rows.append(_row("store's mode", private, f"mode {mode:o}{advice}"))
    return rows


def _row(check: str, ok: bool, found: str) -> dict[str, Any]:
    return {"check": check, "ok": ok, "found": found}


def _package(name: str) -> dict[str, Any]:
    found = _version(name)
    return _row(name, found is not None, found or "is not installed: pip install flowpregel")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _shared_memory() -> dict[str, Any]:
    if not os.access(_SHM, os.W_OK):
        return _row(_SHM, False, "cannot be written: big arrays go through pipes")
    free = shutil.disk_usage(_SHM).free
    return _row(_SHM, free >= _LEAST_SHM, f"{size_of(free)} free")


def _opens(real: str) -> dict[str, Any]:
    try:
        if not folder.exists(real):
            return _row("store", True, f"none at {real} yet")
        with reading(real) as saver:
            return _row("store", True, f"{real} opens, {size_of(saver.size())}")
    except StoreError as error:
        return _row("store", False, str(error))


def _file_system(place: str) -> dict[str, Any]:
    try:
        folder.refuse_network(place)
    except StoreError as error:
        return _row("store's file system", False, str(error))
    return _row("store's file system", True, folder.file_system(place) or "unknown")
