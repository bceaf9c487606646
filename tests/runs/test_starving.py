"""The system gives the program no more OS threads: the run fails, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("starving.py")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_NPROC for threads")
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_run_that_gets_no_os_thread_fails_by_name_and_can_be_resumed(
    executor: str, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever of its threads: no lease stays, and no error hides the reason."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")
    # Not pytest's own folder, which other users may not enter.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, PROGRAM, folder, executor, durability],
            check=False, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    tries = [line.split("\t") for line in done.stdout.splitlines()]
    assert ["6"] * 6 == [resumed for _, resumed in tries]
    failed = [ended for ended, _ in tries if ended != "6"]
    assert failed
    assert all("can't start new thread" in ended for ended in failed), failed
