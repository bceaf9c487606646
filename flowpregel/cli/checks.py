"""The checks of `flowpregel doctor`: this machine, and the folder of a store."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flowpregel._lmdb import files
from flowpregel.cli.console import size_of
from flowpregel.cli.targets import reading
from flowpregel.errors import StoreError

_NEEDED = ("flowpregel", "cloudpickle", "lmdb", "loky", "structlog")
_EXTRAS = ("click", "rich", "cryptography", "zstandard", "numpy", "langgraph")
_SHM = "/dev/shm"
_LEAST_SHM = 64 << 20
_LEAST_DISK = 256 << 20


def check_machine() -> Iterator[dict[str, Any]]:
    """Check Python, the packages, the cores and the shared memory."""
    python = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform}"
    yield _row("python", sys.version_info >= (3, 11), python)
    for name in _NEEDED:
        found = _version(name)
        yield _row(name, bool(found), found or "is not installed: pip install flowpregel")
    extras = [f"{name} {found}" for name in _EXTRAS if (found := _version(name))]
    yield _row("extras", True, ", ".join(extras) or "none")
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    yield _row("cores", True, f"{usable} of {total} usable by this process")
    if sys.platform == "linux" and os.access(_SHM, os.W_OK):
        yield _free(_SHM, _SHM, _LEAST_SHM)
    elif sys.platform == "linux":
        yield _row(_SHM, False, "cannot be written: big arrays go through pipes")


def check_store(path: str) -> Iterator[dict[str, Any]]:
    """Check the folder of a store, and whether the store in it opens."""
    try:
        real = files.real_path(path)
    except StoreError as error:
        yield _row("store", False, str(error))
        return
    place = real
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    yield _tried("store", lambda: _state_of(real))
    yield _tried("store's file system", lambda: _file_system(place))
    yield _free("store's disk", place, _LEAST_DISK)
    writable = os.access(place, os.W_OK)
    yield _row("store's rights", writable, "writable" if writable else f"{place} is read-only")
    if place == real:
        mode = os.stat(real).st_mode & 0o777
        advice = ": others may look into it; chmod 700 it" if mode & 0o077 else ""
        yield _row("store's mode", not advice, f"mode {mode:o}{advice}")


def _row(check: str, ok: bool, found: str) -> dict[str, Any]:
    return {"check": check, "ok": ok, "found": found}


def _free(check: str, place: str, least: int) -> dict[str, Any]:
    free = shutil.disk_usage(place).free
    return _row(check, free >= least, f"{size_of(free)} free")


def _tried(check: str, find: Callable[[], str]) -> dict[str, Any]:
    try:
        return _row(check, True, find())
    except StoreError as error:
        return _row(check, False, str(error))


def _state_of(real: str) -> str:
    if not files.exists(real):
        return f"none at {real} yet"
    with reading(real) as saver:
        return f"{real} opens, {size_of(saver.size())}"


def _file_system(place: str) -> str:
    files.refuse_network(place)
    return files.file_system(place) or "unknown"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
