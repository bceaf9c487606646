"""A Ray cluster on the namespaces: the head, without CPUs, here; a raylet on each
machine.
"""

from __future__ import annotations

import os
import subprocess
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
            None,
            "--head",
            f"--node-ip-address={HOME}",
            f"--port={PORT}",
            "--num-cpus=0",
            "--include-dashboard=false",
        )
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def _start(self, name: str | None, *words: str) -> subprocess.Popen[bytes]:
        return start(
            name,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--disable-usage-stats",
            *words,
            log=self.folder / f"{name}.log",
        )

    def start_worker(self, name: str) -> subprocess.Popen[bytes]:
        """Start the raylet of a machine."""
        return self._start(
            name,
            f"--address={HOME}:{PORT}",
            f"--node-ip-address={address_of(name)}",
            "--num-cpus=1",
        )

    def __enter__(self) -> Self:
        import ray

        self._wait_for(None, self.scheduler)
        ray.init(f"{HOME}:{PORT}", log_to_driver=False)
        for name in NAMES:
            # One by one, and more than once: Ray gives up when a busy machine takes 30
            # s.
            while name not in self.workers or self.workers[name].poll() is not None:
                self.workers[name] = self.start_worker(name)
                self._wait_for(name, self.workers[name])
        wait_for(lambda: self.count() == len(NAMES), 60, "three machines")
        return self

    def _wait_for(self, name: str | None, process: subprocess.Popen[bytes]) -> None:
        log, started = self.folder / f"{name}.log", "runtime started"
        wait_for(
            lambda: started in log.read_text() or process.poll() is not None, 120, "Ray"
        )

    def count(self) -> int:
        """Return how many machines there are."""
        import ray

        return sum(each["Alive"] and "CPU" in each["Resources"] for each in ray.nodes())

    def retire(self, name: str) -> None:
        """Let the raylet of a machine leave in peace, if it is there."""
        process = self.workers[name]
        process.terminate()
        process.wait()

    def state(self) -> dict[str, Any]:
        """Return what programs must leave as it was."""
        import ray

        # `ray.util.state` needs the dashboard.
        actors = ray._private.state.actors().values()  # noqa: SLF001
        alive = [actor for actor in actors if actor["State"] != "DEAD"]
        return {
            "machines": self.count(),
            "CPUs": ray.available_resources().get("CPU", 0),
            "actors": len(alive),
        }

    def executor(self) -> Any:
        """Return our executor on it."""
        from flowpregel.plugins.cluster.ray import RayExecutor

        return RayExecutor(timeout=20.0)

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        for process in (*self.workers.values(), self.scheduler):
            process.terminate()  # what it has started ends too
            process.wait()
