"""The system gives no more OS threads or processes: the run fails, and nothing is left
behind.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import product

import pytest

from tests.runs.stores import ROOT

REASONS = ("can't start new thread", "no worker process can be started")


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="needs /proc and RLIMIT_NPROC for threads"
)
@pytest.mark.parametrize(
    ("executor", "durability"),
    [
        *product(("inline", "threads", "coroutines"), ("sync", "async")),
        ("processes", "async"),
    ],
)
def test_a_run_that_gets_no_os_thread_fails_by_name_and_can_be_resumed(
    executor: str, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever of its threads: no lease stays, and no error hides the reason."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")
    # Not pytest's own folder, which other users may not enter.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.runs.starving", folder, executor, durability],
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
            cwd=ROOT,
        )

    assert done.returncode == 0, done.stderr
    tries = [line.split("\t") for line in done.stdout.splitlines()]
    assert {("0", "6")} == {(left, resumed) for left, _, resumed in tries}
    failed = [ended for _, ended, _ in tries if ended != "'6'"]
    assert failed
    assert all(any(reason in ended for reason in REASONS) for ended in failed), failed
