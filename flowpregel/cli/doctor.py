"""The command `doctor`: checks of this machine, of a store and of an executor."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from flowpregel._stores import StorePlugin, store_plugin_at
from flowpregel._text import size_text
from flowpregel._urls import scheme_of
from flowpregel.cli import console, targets
from flowpregel.errors import ConfigurationError, FlowPregelError

_NEEDED = (
    "flowpregel",
    "cloudpickle",
    "loky",
    "structlog",
)
_EXTRAS = (
    "click",
    "rich",
    "cronsim",
    "cryptography",
    "zstandard",
    "numpy",
    "langgraph",
    "psycopg",
)
_SHM = "/dev/shm"
_LEAST_SHM = 64 << 20
_TIMEOUT = 30.0


@console.store_command("doctor")
@click.argument("executor", required=False)
@click.option(
    "--flow",
    metavar="MODULE:FLOW",
    help="A flow whose module the machines must be able to import.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=_TIMEOUT,
    show_default=True,
    help="Seconds to wait for each answer of EXECUTOR.",
)
def doctor_command(
    executor: str | None,
    flow: str | None,
    timeout: float,
    store: str | None,
) -> console.Code:
    """Check this machine and, if named, a store and an executor.

    EXECUTOR is what executor= takes, such as dask://HOST:PORT or ray://HOST:PORT. Its
    machines are checked, and a task and a value of 10 MB are sent there and back.

    Exits with 0 if all is well, 4 if the store's folder is not, 1 if anything else is
    not.
    """
    if flow is not None and executor is None:
        raise ConfigurationError("--flow needs an executor: doctor dask://HOST:PORT")
    needs_lmdb = store is None or scheme_of(store) is None
    other_checks = list(_checks_of_machine(needs_lmdb=needs_lmdb))
    store_checks: list[dict[str, Any]] = []
    if executor is not None:
        other_checks += _checks_of_executor(executor, flow, timeout)
    if store is not None:
        store_checks += _checks_of_store(store)
    if executor is not None and store is not None:
        other_checks.append(_check_reach(store))
    _print_checks(other_checks + store_checks)
    if _has_failed(store_checks):
        return console.Code.STORE
    return console.Code.FAILED if _has_failed(other_checks) else console.Code.OK


def _has_failed(checks: Iterable[dict[str, Any]]) -> bool:
    return not all(check["ok"] for check in checks)


def _print_checks(checks: Sequence[dict[str, Any]]) -> None:
    rows: list[tuple[str, str, str]] = []
    for check in checks:
        verdict = "ok" if check["ok"] else "BAD"
        rows.append((check["check"], verdict, check["found"]))
    console.print_result(checks, console.make_table(("CHECK", "", "FOUND"), rows))


def _checks_of_executor(
    executor: str,
    flow: str | None,
    timeout: float,
) -> Iterator[dict[str, Any]]:
    """Check an executor, and whether its machines can import the module of a flow if
    one is named.
    """
    from flowpregel.cli.executor_checks import (  # noqa: PLC0415 - keeps --help fast
        checks_of_executor,
    )

    modules: list[str] = []
    if flow is not None:
        targets.load_flow(flow)
        file = os.path.basename(flow.rpartition(":")[0])
        modules.append(file.partition(".")[0])
    for check in checks_of_executor(executor, modules, timeout):
        yield _finding(check.name, check.ok, check.finding)


def _check_reach(store: str) -> dict[str, Any]:
    """Report whether other machines can use a store."""
    if not store_plugin_at(store).is_local(store):
        return _finding("store's reach", True, "other machines can use it")
    text = (
        "only this machine can use it: enough for a run that begins and ends here, but "
        "recover, work and enqueue --remote on other machines need postgresql://"
    )
    return _finding("store's reach", True, text)


def _checks_of_machine(*, needs_lmdb: bool) -> Iterator[dict[str, Any]]:
    """Check Python, the packages, the cores and the shared memory.

    Args:
        needs_lmdb: False if the store that is checked as well is not in a folder.
    """
    implementation = platform.python_implementation()
    version = platform.python_version()
    yield _finding(
        "python",
        sys.version_info >= (3, 11),
        f"{implementation} {version} on {sys.platform}",
    )
    yield from _checks_of_packages()
    yield _check_lmdb(is_needed=needs_lmdb)
    total = os.cpu_count() or 1
    usable = total
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    yield _finding("cores", True, f"{usable} of {total} usable by this process")
    if sys.platform == "linux":
        if os.access(_SHM, os.W_OK):
            yield _check_free_space(_SHM, _SHM, _LEAST_SHM)
        else:
            yield _finding(
                _SHM, False, "cannot be written: big arrays go through pipes"
            )


def _checks_of_packages() -> Iterator[dict[str, Any]]:
    """Check the required packages, and list the optional packages."""
    from importlib import metadata  # noqa: PLC0415 - keeps --help fast

    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        versions[distribution.name] = distribution.version
    for name in _NEEDED:
        version = versions.get(name, "is not installed: pip install flowpregel")
        yield _finding(name, name in versions, version)
    extras = [f"{name} {versions[name]}" for name in _EXTRAS if name in versions]
    yield _finding("extras", True, ", ".join(extras) or "none")


def _check_lmdb(*, is_needed: bool) -> dict[str, Any]:
    """Check that LMDB, which keeps stores in folders, can be imported."""
    try:
        import lmdb  # noqa: PLC0415 - keeps --help fast
    except ImportError as error:
        text = (
            f"cannot be imported ({error}): only sqlite:/// and postgresql:// stores "
            "work; on Python 3.15 and on musl (Alpine) there is no wheel, and pip "
            "needs a C compiler"
        )
        return _finding("lmdb", not is_needed, text)
    return _finding("lmdb", True, lmdb.__version__)


def _checks_of_store(path: str) -> Iterator[dict[str, Any]]:
    """Check that a store opens, and run the checks that the store's plug-in adds."""
    plugin = store_plugin_at(path)
    yield _check_opens(plugin, path)
    for check in plugin.checks(path):
        yield _finding(check.name, check.ok, check.finding)


def _finding(check: str, ok: bool, text: str) -> dict[str, Any]:
    return {
        "check": check,
        "ok": ok,
        "found": text,
    }


def _check_free_space(check: str, folder: str, least: int) -> dict[str, Any]:
    free = shutil.disk_usage(folder).free
    return _finding(check, free >= least, f"{size_text(free)} free")


def _check_opens(plugin: StorePlugin, path: str) -> dict[str, Any]:
    """Check that a store can be opened, if it exists."""
    try:
        full_path = plugin.full_location(path)
        if not plugin.exists(full_path):
            return _finding("store", True, f"none at {full_path} yet")
        with targets.open_to_read(full_path) as saver:
            finding = f"{saver.path} opens, {size_text(saver.size())}"
    except FlowPregelError as error:
        return _finding("store", False, str(error))
    return _finding("store", True, finding)
