"""A disk that fails in the middle of a commit: the outcome is read, not assumed."""

import shutil
import subprocess
import sys

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.runs.stores import PRELUDE, ROOT, newest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("strace") is None, reason="strace makes system calls fail"
    ),
]

CODE = """
saver = LMDBSaver(path)
acknowledged = -1
while acknowledged < 11:
    try:
        commit(saver, acknowledged + 1)
        acknowledged += 1
    except StoreError as error:
        print("error", type(error).__name__, flush=True)
        # What the error says must be so: it is not there, and can be tried again.
        found = saver.load(Address("t"))
        step = found.checkpoint.step if found else -1
        assert step == acknowledged, (found, acknowledged)
print("acknowledged", acknowledged)
saver.close()
"""


def run(path, injection):
    """Run the workload under strace; return what it printed."""
    if "strace" not in run.__dict__:
        probe = subprocess.run(
            ["strace", "-e", "trace=none", "true"], capture_output=True, check=False
        )
        run.strace = probe.returncode == 0
    if not run.strace:
        pytest.skip("strace may not trace here")
    command = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=pwrite64,pwritev,fdatasync",
        "-e",
        f"inject={injection}",
        sys.executable,
        "-c",
        PRELUDE + CODE,
        str(path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


@pytest.mark.parametrize(
    "injection",
    [
        "fdatasync:error=EIO:when=3",
        "fdatasync:error=EIO:when=4..5",
        "pwritev:error=EIO:when=2",
        "pwrite64:error=EIO:when=7",
        "pwrite64:error=ENOSPC:when=8",
        "pwrite64:retval=100:when=9",
        "pwrite64:error=EIO:when=4+5",
    ],
)
def test_a_commit_whose_disk_fails_is_there_or_named(tmp_path, injection):
    path = tmp_path / "store"
    LMDBSaver(path).close()

    printed = run(path, injection)

    assert "acknowledged 11" in printed
    assert newest(path) == 11
    with LMDBSaver(path) as saver:
        assert saver.verify().ok


def test_the_workload_without_a_fault_meets_no_error(tmp_path):
    path = tmp_path / "store"
    LMDBSaver(path).close()

    assert not any(
        line.startswith("error") for line in run(path, "fdatasync:error=EIO:when=9999")
    )


def test_a_fault_in_the_sync_is_met(tmp_path):
    """The faults above do reach a commit: else their tests would show nothing."""
    path = tmp_path / "store"
    LMDBSaver(path).close()

    assert any(
        line.startswith("error") for line in run(path, "fdatasync:error=EIO:when=3")
    )
