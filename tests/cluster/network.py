"""Three machines that are none: network namespaces behind a bridge, with a delay on
each wire. A kernel without netem gives the wires a bandwidth instead.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

BRIDGE = "fpbr0"
HOME = "10.231.77.1"
NAMES = ("fp1", "fp2", "fp3")
DELAY = "netem delay 2ms"
BANDWIDTH = "tbf rate {} burst 64k latency 400ms"


def address_of(name: str) -> str:
    """Return the address of a machine."""
    return f"10.231.77.1{name[-1]}"


def sh(line: str, *, check: bool = True) -> None:
    """Run a command."""
    subprocess.run(line.split(), check=check, capture_output=not check)


@contextmanager
def machines() -> Iterator[Sequence[str]]:
    """Make the machines, and remove them at the end with all that runs there.

    Only one program at a time has them. Others wait here.
    """
    with Path(tempfile.gettempdir(), f"{BRIDGE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _made_machines():
            yield NAMES


@contextmanager
def _made_machines() -> Iterator[None]:
    remove()
    sh(f"ip link add {BRIDGE} type bridge")
    sh(f"ip addr add {HOME}/24 dev {BRIDGE}")
    sh(f"ip link set {BRIDGE} up")
    try:
        for name in NAMES:
            sh(f"ip netns add {name}")
            sh(f"ip link add {name}a type veth peer name {name}b")
            sh(f"ip link set {name}a master {BRIDGE} up")
            sh(f"ip link set {name}b netns {name}")
            sh(f"ip -n {name} addr add {address_of(name)}/24 dev {name}b")
            sh(f"ip -n {name} link set {name}b up")
            sh(f"ip -n {name} link set lo up")
            shape(name)
        yield
    finally:
        remove()


def shape(name: str) -> None:
    """Give the wire of a machine a delay, or else a bandwidth; print it if there is
    neither.
    """
    for discipline in (DELAY, BANDWIDTH.format("400mbit")):
        line = f"tc qdisc replace dev {name}a root {discipline}"
        if not subprocess.run(
            line.split(), check=False, capture_output=True
        ).returncode:
            break
        print(f"this kernel cannot do '{discipline}' on {name}", flush=True)


def slow_down(name: str, rate: str) -> None:
    """Give the wire of a machine this bandwidth, in both directions."""
    discipline = BANDWIDTH.format(rate)
    sh(f"tc qdisc replace dev {name}a root {discipline}")
    sh(f"ip netns exec {name} tc qdisc replace dev {name}b root {discipline}")


def remove() -> None:
    """Remove the machines, if they are there."""
    for name in NAMES:
        kill_all_on(name)
        sh(f"ip netns del {name}", check=False)
        sh(f"ip link del {name}a", check=False)
    sh(f"ip link del {BRIDGE}", check=False)


def pids_on(name: str) -> list[int]:
    """Return what runs on a machine."""
    done = subprocess.run(
        ["ip", "netns", "pids", name], check=False, capture_output=True, text=True
    )
    return [int(pid) for pid in done.stdout.split()]


def commands_on(name: str) -> list[str]:
    """Return the command lines of what runs on a machine."""
    found = []
    for pid in pids_on(name):
        try:
            line = (
                Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            )
        except OSError:
            continue
        found.append(f"{pid} {line}")
    return found


def kill(pid: int) -> None:
    """Kill a process, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_all_on(name: str) -> None:
    """Kill what runs on a machine."""
    for pid in pids_on(name):
        kill(pid)


def cut(name: str) -> None:
    """Cut the wire of a machine."""
    sh(f"ip link set {name}a down")


def mend(name: str) -> None:
    """Mend it."""
    sh(f"ip link set {name}a up")


def start(name: str | None, *words: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a Python program on a machine, or here."""
    inside = ["ip", "netns", "exec", name] if name else []
    with log.open("ab") as out:
        return subprocess.Popen(
            [*inside, sys.executable, *words],
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def wait_for(condition: object, seconds: float, what: str) -> float:
    """Look until *condition* holds; return how long that took."""
    assert callable(condition)
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what}: not after {seconds:g} s")
        time.sleep(0.1)
    return time.monotonic() - began
