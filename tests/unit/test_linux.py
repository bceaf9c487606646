"""What other systems do instead of the ways of Linux, which are switched off here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowpregel import _linux
from flowpregel.executors.processes.coordinator import crash_report
from flowpregel.executors.processes.wire.shared_memory import PrivateMapping, Segment
from flowpregel.storage.file_systems import file_system
from flowpregel.storage.locks import LockHolder
from tests.descriptors import is_readable

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys, time
from flowpregel import RetryPolicy, _linux, entrypoint, task
from flowpregel.errors import NodeTimeoutError

assert not _linux.IS_USED

@task
def size_of(data):
    assert not _linux.IS_USED
    data[0] = 1                       # copy-on-write
    return len(data)

@task(retry_policy=RetryPolicy(max_attempts=2, initial_interval=0))
def die_once(mark):
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"

@task(timeout=0.5)
def spin():
    while True:
        pass

@entrypoint(checkpointer="runs.lmdb")
def study(_):
    data = bytearray(4 << 20)
    sizes = [size_of(data).result() for _ in range(2)]
    try:
        spin().result()
    except NodeTimeoutError:
        return sizes, data[0], die_once("mark").result()

if __name__ == "__main__":
    result = study.run(None, id="one")
    assert ([4 << 20, 4 << 20], 0, "lived") == result, result
    assert result == study.run(None, id="one")
"""


@pytest.fixture
def no_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the ways of Linux off in this process."""
    monkeypatch.setattr(_linux, "IS_USED", False)
    monkeypatch.setattr(_linux, "PID_NAMESPACE", "")


@pytest.mark.slow
def test_workers_and_a_store_do_without_linux(tmp_path: Path) -> None:
    """A worker that is killed, a timeout, a large argument and a store."""
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")

    result = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FLOWPREGEL_PORTABLE": "1"},
        stdin=subprocess.DEVNULL,
    )

    assert 0 == result.returncode, result.stderr


@pytest.mark.usefixtures("no_linux")
def test_a_process_without_a_descriptor_is_signalled_by_its_pid() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        fd = _linux.process_fd(process.pid)
        _linux.send_signal(process.pid, fd, signal.SIGKILL)

        assert -signal.SIGKILL == process.wait(60)
    assert fd is None


def test_the_descriptor_of_a_process_is_readable_at_its_end() -> None:
    if not _linux.IS_USED:
        pytest.skip("only Linux has descriptors of processes")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        fd = _linux.process_fd(process.pid)
        assert fd is not None
        _linux.send_signal(process.pid, fd, signal.SIGKILL)

        assert is_readable(fd, 60)
        os.close(fd)


@pytest.mark.usefixtures("no_linux")
def test_shared_memory_is_a_file_that_has_no_name() -> None:
    segment = Segment(4096)
    segment.memory[:3] = b"abc"
    mapping = PrivateMapping(segment.fd, 4096)
    mapping[:1] = b"x"

    assert 0 == os.fstat(segment.fd).st_nlink
    assert (b"xbc", b"abc") == (mapping[:3], segment.memory[:3])
    assert not mapping.is_untouched()


@pytest.mark.usefixtures("no_linux")
def test_figures_of_proc_are_unknown() -> None:
    pid = os.getpid()

    assert ({}, 0, 0.0) == (
        crash_report.memory_sizes(pid),
        crash_report.memory_of(pid),
        crash_report.cpu_of(pid),
    )
    assert 0 == crash_report.count_oom_kills()
    crash_report.forget_peak(pid)


@pytest.mark.usefixtures("no_linux")
def test_a_lock_names_a_holder_without_a_namespace(tmp_path: Path) -> None:
    holder = LockHolder.me()

    assert (0, "") == (holder.namespace, holder.state)
    assert not holder.has_ended()
    # The kernel's number of the file system is asked instead of the list of mounts.
    assert file_system(str(tmp_path))
