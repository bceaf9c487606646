"""A SLURM cluster of the tests' own: one node, which is this machine, with four CPUs in
SLURM's books, in a temporary folder.

Its daemons are children of this process, and the kernel ends them when this process
dies, however that does. Where SLURM or MUNGE is not installed, or where the tests do
not run as root, a test that asks for a cluster is skipped and says why.
`python -m tests.slurm_cluster` starts a cluster and a shell in which its commands work.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 120
_PR_SET_PDEATHSIG = 1
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=8000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefMemPerCPU=100
PartitionName=other Nodes=ALL MaxTime=INFINITE DefMemPerCPU=100
"""


def why_not() -> str | None:
    """Return why no cluster can be started here; None: one can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=path)]
    if missing:
        names = ", ".join(missing)
        return f"SLURM is not installed: no {names} (Debian: slurm-wlm munge)"
    if os.geteuid() != 0:
        return "a SLURM cluster needs root"
    return None


class Cluster:
    """A cluster that `serving` started.

    Args:
        folder: Where its configuration, state and logs are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []
        # The kernel ends daemons when the OS thread ends that has started them.
        self._starter = ThreadPoolExecutor(1)

    def start(self) -> None:
        """Start the daemons, and wait until the node is idle."""
        folder = self.folder
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(mode=0o755)
        account = pwd.getpwnam("munge")
        key = folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        for path in (folder / "munge", key):
            os.chown(path, account.pw_uid, account.pw_gid)
        ports = _free_ports(2)
        text = _CONFIG.format(
            host=socket.gethostname(),
            folder=folder,
            controller_port=ports[0],
            node_port=ports[1],
        )
        self.config.write_text(text)
        munge = folder / "munge"
        self._daemon(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={munge}/socket",
            f"--pid-file={munge}/pid",
            f"--seed-file={munge}/seed",
            f"--log-file={munge}/log",
            user=account.pw_uid,
            group=account.pw_gid,
        )
        until((munge / "socket").exists)
        self._daemon("slurmctld", "-D", "-c", "-f", str(self.config))
        self._daemon("slurmd", "-D", "-c", "-f", str(self.config))
        until(lambda: "idle" in self._try("sinfo", "-h", "-o", "%T"))

    def stop(self) -> None:
        """Cancel all jobs, and end the daemons when none runs any more."""
        self._try("scancel", "--full", "--signal=KILL", "--user=root")
        self._try("scancel", "--user=root")
        until(lambda: not self.jobs())
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._starter.shutdown()

    def environment(self) -> dict[str, str]:
        """Return the variables of a program that uses this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.config)}

    def run(self, *words: str) -> str:
        """Return the output of one of SLURM's commands."""
        result = subprocess.run(
            words,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert 0 == result.returncode, result.stderr
        return result.stdout.strip()

    def submit(self, script: str, *options: str, folder: Path) -> str:
        """Submit a script as a job, and return the job's id."""
        path = folder / f"{secrets.token_hex(4)}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        output = f"--output={folder}/%j.out"
        place = f"--chdir={folder}"
        return self.run("sbatch", "--parsable", output, place, *options, str(path))

    def jobs(self, *options: str) -> list[str]:
        """Return the ids of the jobs that wait, run or are ending."""
        return self._try("squeue", "-h", "-o", "%A", *options).split()

    def exit_code(self, job: str) -> str:
        """Return the exit code and the signal of a job that has ended: ``0:0``."""
        shown = self.run("scontrol", "show", "job", "--oneliner", job)
        fields = dict(field.partition("=")[::2] for field in shown.split())
        return fields["ExitCode"]

    def until_ended(self, *jobs: str) -> None:
        """Wait until none of *jobs* waits, runs or is ending."""
        until(lambda: not set(jobs) & set(self.jobs()))

    def _try(self, *words: str) -> str:
        result = subprocess.run(
            words, env=self.environment(), capture_output=True, text=True, check=False
        )
        return result.stdout

    def _daemon(self, *words: str, **account: Any) -> None:
        start = partial(self._popen, words, account)
        self._daemons.append(self._starter.submit(start).result())

    def _popen(
        self, words: tuple[str, ...], account: dict[str, Any]
    ) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            return subprocess.Popen(
                words,
                env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
                **account,
            )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


def until(condition: Callable[[], bool]) -> None:
    """Ask for *condition* until it holds, for at most two minutes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def serving() -> Iterator[Cluster]:
    """Run a cluster while the context is open; where there can be none: skip."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    # MUNGE wants each folder above its socket to be writable by root alone, or sticky.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    with serving() as running:
        shell = os.environ.get("SHELL", "/bin/sh")
        words = sys.argv[1:] or [shell]
        sys.exit(subprocess.call(words, env=running.environment()))
