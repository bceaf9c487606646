"""A pytest plugin with the fixtures ``flowpregel_check``, ``flowpregel_clock`` and
``flowpregel_store``, and the option ``--crash-everywhere``.

While tests run, a task that changes an argument in place causes a warning
(`RunNotice`), because a test with inline tasks would not show that the change is lost
in a worker process. Set ``FLOWPREGEL_CHECK_MUTATIONS=0`` to turn this off.

Without the option, a test that is marked ``crash_everywhere`` runs as any other test.
With it, the test is a workflow of `flowpregel.testing.crash`: it runs in separate
processes, is killed at each fault point, and must pass when it runs again in the same
``tmp_path``.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flowpregel.checkpoint.lmdb import LMDBSaver
    from flowpregel.testing.clock import SkippingClock

_MARKER = "crash_everywhere"
_MUTATIONS = "FLOWPREGEL_CHECK_MUTATIONS"
_PROPERTY = "flowpregel_crash"
_HELP = (
    "crash_everywhere(in_a_row=1, at_most=None, timeout=60, history=True): "
    "with the option --crash-everywhere the test is killed at each of its fault "
    "points and run again in the same tmp_path until it passes; nothing may be lost "
    "or done twice (flowpregel.testing.crash)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--crash-everywhere``."""
    group = parser.getgroup("flowpregel")
    group.addoption(
        "--crash-everywhere",
        action="store_true",
        help="kill tests marked crash_everywhere at each of their fault points",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, so that ``pytest --markers`` lists it, and turn on the
    notices about changed arguments, unless the environment variable already turns them
    on or off.
    """
    config.addinivalue_line("markers", _HELP)
    if _MUTATIONS not in os.environ:
        os.environ[_MUTATIONS] = "1"
        config.add_cleanup(_forget_setting)


def _forget_setting() -> None:
    """Remove the environment variable that `pytest_configure` has set."""
    os.environ.pop(_MUTATIONS, None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Kill a marked test at each fault point, instead of calling it, if the option is
    given.
    """
    marker = pyfuncitem.get_closest_marker(_MARKER)
    config = pyfuncitem.config
    if marker is None or not config.getoption("--crash-everywhere"):
        return None
    from flowpregel.testing.crash import crash_everywhere  # noqa: PLC0415

    workflow = _workflow_of(pyfuncitem)
    report = crash_everywhere(workflow, modules=("pytest",), **marker.kwargs)
    text = str(report)
    pyfuncitem.user_properties.append((_PROPERTY, text.splitlines()[0]))
    if not report.ok:
        pytest.fail(text, pytrace=False)
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Add a line about the fault points and kills of each marked test to pytest's
    summary.
    """
    if not config.getoption("--crash-everywhere"):
        return
    terminalreporter.section("killed everywhere")
    reports = [
        *terminalreporter.getreports("passed"),
        *terminalreporter.getreports("failed"),
    ]
    for report in reports:
        summary = dict(report.user_properties).get(_PROPERTY)
        if summary is not None:
            terminalreporter.line(f"{report.nodeid}: {summary}")


@pytest.fixture
def flowpregel_check() -> Callable[..., None]:
    """A function that fails the test if an unfinished run in a store no longer fits its
    flow.

    The arguments of the function are the path of the store, and the flows.

    Example:
        >>> def test_code_fits_the_runs(flowpregel_check):  # doctest: +SKIP
        ...     flowpregel_check("runs.lmdb", study, report)
    """
    return check_runs_fit


@pytest.fixture
def flowpregel_clock() -> Iterator[SkippingClock]:
    """A clock that ends the waits of workflows in this process at once, in their order.

    The function `advance` moves the clock, and the attribute ``now`` is its time.

    Example:
        >>> def test_a_reminder_comes(flowpregel_clock):  # doctest: +SKIP
        ...     begin = flowpregel_clock.now
        ...     remind.run(86_400)
        ...     assert flowpregel_clock.now - begin >= timedelta(days=1)
    """
    from flowpregel.testing.clock import SkippingClock  # noqa: PLC0415 - as below

    with SkippingClock() as clock:
        yield clock


@pytest.fixture
def flowpregel_store(tmp_path: Path) -> Iterator[LMDBSaver]:
    """A new store on disk, which is closed after the test.

    Its folder is in the ``tmp_path`` of the test, and its path is the attribute
    ``path``.

    Example:
        >>> def test_a_run_is_stored(flowpregel_store):  # doctest: +SKIP
        ...     flow = study.copy({"checkpointer": flowpregel_store})
        ...     flow.run([1, 2], id="1")
        ...     assert flowpregel_store.thread("1").status == "done"
    """
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - as below

    with LMDBSaver(tmp_path / "flowpregel_store") as saver:
        yield saver


def check_runs_fit(store: str | Path, *flows: Any) -> None:
    """Fail the current test if an unfinished run in *store* no longer fits its flow.

    A run that belongs to none of *flows* is compared with the first flow, and fails the
    test too.
    """
    # These modules are imported inside the function, because only tests with the
    # fixture need them.
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415
    from flowpregel.pregel.dry_replay import check_runs, owns  # noqa: PLC0415

    def flow_of(saved: Any) -> Any:
        return next((flow for flow in flows if owns(flow, saved)), flows[0])

    assert Path(store).is_dir(), f"there is no store at {store}"
    with LMDBSaver(store) as saver:
        for run_id, report in check_runs(saver, flow_of):
            if not report.fits:
                pytest.fail(f"run {run_id!r}: {report}", pytrace=False)


def _workflow_of(item: pytest.Function) -> Callable[[Path], None]:
    """Return a function of one argument, a folder, that runs the test with this folder
    as ``tmp_path``.
    """
    names = item._fixtureinfo.argnames  # noqa: SLF001 - no public attribute has them
    fixtures = {name: item.funcargs[name] for name in names if name != "tmp_path"}
    try:
        pickle.dumps(fixtures)
    except Exception as error:  # noqa: BLE001 - a user's __getstate__ may raise any
        pytest.fail(
            f"--crash-everywhere: the test runs in other processes, and its fixtures "
            f"{', '.join(fixtures)} cannot be sent there ({error}); "
            "use tmp_path and plain values",
            pytrace=False,
        )
    return partial(_call_test, item.obj, fixtures, "tmp_path" in names)


def _call_test(
    test: Any, fixtures: Mapping[str, Any], wants_folder: bool, path: Path
) -> None:
    """Call a test in this process, with *path* as ``tmp_path`` if *wants_folder*."""
    arguments = dict(fixtures)
    if wants_folder:
        arguments["tmp_path"] = path
    test(**arguments)
