"""What every test shares: how hard hypothesis looks, how reproducibly, and that signals work."""

from __future__ import annotations

import os
import random
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests import postgres_server as postgres

# In an installed package pytest does so by itself: their asserts are to explain themselves.
pytest.register_assert_rewrite(
    "tests.contract.saver_options",
    "tests.contract.store_options",
    *(
        f"flowpregel.testing.{module}"
        for module in (
            "cache_contract",
            "saver_contract",
            "saver_values",
            "store_contract",
        )
    ),
)

postgres_server = postgres.postgres_server
postgres_url = postgres.postgres_url

# A shell that starts us in the background, or nohup, has us ignore them, and so all we start.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

settings.register_profile("default", deadline=None)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    # How fast examples come depends on the machine, which says nothing about the code.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", parent=settings.get_profile("default"), max_examples=5_000)
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
    """Choose a seed if none is given, so that it is known what was tried."""
    if STORIES and not config.getoption("hypothesis_seed", None):
        config.option.hypothesis_seed = str(random.randrange(1 << 32))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which stories are told."""
    seed = config.getoption("hypothesis_seed", None)
    return [f"{STORIES} stories each: --hypothesis-seed={seed}"] if STORIES else []
