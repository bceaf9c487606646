"""A pytest plugin: the fixture ``flowpregel_check``, and killing marked tests everywhere.

A test that is marked ``crash_everywhere`` runs once, as it stands, unless the
option is given. With it the test is a workflow of `flowpregel.testing.crash`: it
is run in processes of its own, killed at each point, and run again in the same
``tmp_path`` until it passes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

_MARKER = "crash_everywhere"
_PROPERTY = "flowpregel_crash"
_HELP = (
    "crash_everywhere(in_a_row=1, at_most=None, timeout=60, history=True): with the option "
    "--crash-everywhere the test is killed at each of its fault points and run again in the same "
    "tmp_path until it passes; nothing may be lost or done twice (flowpregel.testing.crash)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--crash-everywhere``."""
    help_ = "kill tests marked crash_everywhere at each of their fault points"
    parser.getgroup("flowpregel").addoption("--crash-everywhere", action="store_true", help=help_)


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker to ``pytest --markers``."""
    config.addinivalue_line("markers", _HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Kill the test everywhere, rather than call it, if that was asked for."""
    marker = pyfuncitem.get_closest_marker(_MARKER)
    if marker is None or not pyfuncitem.config.getoption("--crash-everywhere"):
        return None
    from flowpregel.testing.crash import crash_everywhere  # noqa: PLC0415 - only with the option

    report = crash_everywhere(_workflow_of(pyfuncitem), modules=("pytest",), **marker.kwargs)
    text = str(report)
    pyfuncitem.user_properties.append((_PROPERTY, text.splitlines()[0]))
    if not report.ok:
        pytest.fail(text, pytrace=False)
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Add the number of points at which each test was killed."""
    if config.getoption("--crash-everywhere"):
        terminalreporter.section("killed everywhere")
        ended = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        for report in ended:
            if (told := dict(report.user_properties).get(_PROPERTY)) is not None:
                terminalreporter.line(f"{report.nodeid}: {told}")


@pytest.fixture
def flowpregel_check() -> Callable[..., None]:
    """A function: fail if unfinished runs in a store (its path) do not fit these flows any more.

    Example:
        >>> def test_code_fits_the_runs(flowpregel_check):  # doctest: +SKIP
        ...     flowpregel_check("runs.lmdb", study, report)
    """
    return check_store


def check_store(store: str | Path, *flows: Any) -> None:
    """Fail the running test if a run does not fit its flow, or is one of none of *flows*."""
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - only with the fixture
    from flowpregel.pregel.dry_replay import check_runs, owns  # noqa: PLC0415 - as above

    def flow_of(saved: Any) -> Any:
        return next((flow for flow in flows if owns(flow, saved)), flows[0])

    assert Path(store).is_dir(), f"there is no store at {store}"
    with LMDBSaver(store) as saver:
        for run_id, found in check_runs(saver, flow_of):
            if not found.fits:
                pytest.fail(f"run {run_id!r}: {found}", pytrace=False)


def _workflow_of(item: pytest.Function) -> Callable[[Path], None]:
    """Return the test as a function of the folder that takes the place of ``tmp_path``."""
    names = item._fixtureinfo.argnames  # noqa: SLF001 - the one place that has them
    given = {name: item.funcargs[name] for name in names if name != "tmp_path"}
    try:
        pickle.dumps(given)
    except Exception as error:  # noqa: BLE001 - a user's __getstate__ may raise anything
        pytest.fail(
            f"--crash-everywhere: the test runs in other processes, and its fixtures "
            f"{', '.join(given)} cannot be sent there ({error}); use tmp_path and plain values",
            pytrace=False,
        )
    return partial(_call, item.obj, given, "tmp_path" in names)


def _call(test: Any, given: Mapping[str, Any], wants_folder: bool, path: Path) -> None:
    """Call a test in this process, with *path* as its ``tmp_path`` if it takes one."""
    test(**given, **({"tmp_path": path} if wants_folder else {}))
