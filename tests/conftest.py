"""What every test shares: how hard hypothesis looks, how reproducibly, where files go,
signals.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, settings

from tests import postgres_server as postgres
from tests import skips
from tests.runs.stores import KEY

# In an installed package pytest does so by itself: their asserts are to explain
# themselves.
pytest.register_assert_rewrite(
    "tests.contract.saver_options",
    "tests.contract.store_options",
    *(
        f"flowpregel.testing.{module}"
        for module in (
            "cache_contract",
            "saver_contract",
            "saver_hooks",
            "saver_values",
            "store_contract",
            "store_hooks",
            "store_search",
        )
    ),
)

postgres_server = postgres.postgres_server
postgres_url = postgres.postgres_url
langgraph_url = postgres.langgraph_url
langgraph_postgres = postgres.langgraph_postgres

# Without bytecode each of the hundreds of processes that are started here compiles the
# package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The timer that ends a test that hangs has an OS thread, which a fork has not: a worker
# that is a fork would wait for it when it cancels the timers of a task.
os.register_at_fork(before=faulthandler.cancel_dump_traceback_later)

MEMORY = "/dev/shm"
ROOM = 4 << 30


def is_roomy(folder: str) -> bool:
    """Return whether the files of all tests fit into *folder*, and libraries are loaded
    from it.
    """
    try:
        place = os.statvfs(folder)
    except OSError:
        return False
    return place.f_bavail * place.f_frsize >= ROOM and not place.f_flag & os.ST_NOEXEC


# No test cuts the power (`tests.disk` computes what would be left), so none needs a
# disk, whose syncs take most of the time of many of them.
if "TMPDIR" not in os.environ and is_roomy(MEMORY):
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY


@pytest.fixture
def store_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests leave the user's own key file alone."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", KEY)


# A shell that starts us in the background, or nohup, has us ignore them, and so all we
# start.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

DAILY = 10
"""How many examples a property is tried with; `tox -e property` tries a hundred."""
settings.register_profile("default", deadline=None, max_examples=DAILY)
settings.register_profile("property", deadline=None, max_examples=100)
settings.register_profile(
    "ci",
    parent=settings.get_profile("default"),
    derandomize=True,
    print_blob=True,
    # How fast examples come depends on the machine, which says nothing about the code.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak", parent=settings.get_profile("default"), max_examples=5_000
)
settings.load_profile("ci" if os.environ.get("CI") else "default")

STORIES = os.environ.get("FLOWPREGEL_STORIES")
"""How many examples each property is tried with; their seed is printed."""
if STORIES:
    settings.register_profile(
        "stories", parent=settings.get_profile("default"), max_examples=int(STORIES)
    )
    settings.load_profile("stories")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Choose a seed if none is given, so that it is known what was tried; and who runs
    what.
    """
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        # Neighbours stay together, and with them the pools and servers that a module
        # has started.
        config.option.dist = "worksteal"
    if STORIES and not config.getoption("hypothesis_seed", None):
        config.option.hypothesis_seed = str(random.randrange(1 << 32))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which stories are told."""
    seed = config.getoption("hypothesis_seed", None)
    return [f"{STORIES} stories each: --hypothesis-seed={seed}"] if STORIES else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI, fail a run that left out a test for a reason that is not on the list."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        not os.environ.get("CI")
        or reporter is None
        or hasattr(session.config, "workerinput")
    ):
        return
    # The reason of a skipped report is the last of (file, line, "Skipped: reason").
    reasons = [
        report.longrepr[2].removeprefix("Skipped: ")
        for report in reporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    ]
    if names := skips.unexpected(reasons, skips.expected_patterns()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.section("skips that are not in tests/expected_skips.toml")
        for reason in names:
            reporter.line(reason, red=True)
