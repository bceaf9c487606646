"""A Ray cluster on the namespaces: the head, without CPUs, here; a raylet on each machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.cluster.network import HOME, NAMES, address_of, start, wait_for

PORT = 6397


class RayCluster:
    """Its processes, and the driver's connection.

    Args:
        folder: For logs.
    """

    def __init__(self, folder: Path) -> None:
        os.environ["RAY_AUTH_MODE"] = "disabled"
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        self.folder = folder
        os.environ["RAY_ADDRESS"] = f"{HOME}:{PORT}"
        self.url = "ray://auto"
        self.scheduler = self._start(
            None, "--head", f"--node-ip-address={HOME}", f"--port={PORT}", "--num-cpus=0",
            "--include-dashboard=false",
        )  # fmt: skip
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def _start(self, name: str | None, *words: str) -> subprocess.Popen[bytes]:
        return start(
            name, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
            *words, log=self.folder / f"{name}.log",
        )  # fmt: skip

    def start_worker(self, name: str) -> subprocess.Popen[bytes]:
        """Start the raylet of a machine."""
        return self._start(
            name, f"--address={HOME}:{PORT}", f"--node-ip-address={address_of(name)}",
            "--num-cpus=1",
        )  # fmt: skip

    def __enter__(self) -> Self:
        import ray

        def is_there() -> bool:
            try:
                ray.init(f"{HOME}:{PORT}", log_to_driver=False, ignore_reinit_error=True)
            except Exception:  # noqa: BLE001 - not yet
                return False
            return True

        wait_for(is_there, 60, "the head")
        self.workers.update({name: self.start_worker(name) for name in NAMES})
        wait_for(lambda: ray.cluster_resources().get("CPU") == len(NAMES), 90, "three machines")
        return self

    def executor(self) -> Any:
        """Return our executor on it."""
        from flowpregel.integrations.ray import RayExecutor

        return RayExecutor(timeout=20.0)

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        command = [sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"]
        subprocess.run(command, check=False, capture_output=True)
