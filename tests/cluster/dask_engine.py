"""A Dask cluster on the namespaces: the scheduler here, a worker on each machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Self

from tests.cluster.network import HOME, NAMES, address_of, start, wait_for

PORT = 8796


class DaskCluster:
    """Its processes, and a client.

    Args:
        folder: For logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"dask://{HOME}:{PORT}"
        self.scheduler: subprocess.Popen[bytes] = start(
            None,
            "-m",
            "distributed.cli.dask_scheduler",
            "--host",
            HOME,
            "--port",
            str(PORT),
            "--no-dashboard",
            # Its HTTP server would take the port that others' dashboards have.
            "--dashboard-address",
            ":0",
            "--no-show",
            log=folder / "scheduler.log",
        )
        self.workers = {name: self.start_worker(name) for name in NAMES}

    def start_worker(self, name: str) -> subprocess.Popen[bytes]:
        """Start the worker of a machine."""
        return start(
            name,
            "-m",
            "distributed.cli.dask_worker",
            f"tcp://{HOME}:{PORT}",
            "--host",
            address_of(name),
            "--nthreads",
            "1",
            "--nworkers",
            "1",
            "--no-dashboard",
            "--local-directory",
            str(self.folder / name),
            "--no-nanny",
            "--death-timeout",
            "60",
            log=self.folder / f"{name}.log",
        )

    def __enter__(self) -> Self:
        from distributed import Client

        self.client: Any = None

        def is_there() -> bool:
            try:
                self.client = self.client or Client(
                    f"tcp://{HOME}:{PORT}", timeout=2, set_as_default=False
                )
            except OSError:
                return False
            return self.count() == len(NAMES)

        wait_for(is_there, 60, "three workers")
        return self

    def count(self) -> int:
        """Return how many machines there are."""
        return len(self.client.nthreads())

    def retire(self, name: str) -> None:
        """Let the worker of a machine leave in peace, if it is there."""
        host = f"//{address_of(name)}:"
        workers = [address for address in self.client.nthreads() if host in address]
        self.client.retire_workers(workers, close_workers=True)

    def state(self) -> dict[str, Any]:
        """Return what programs must leave as it was."""

        def of_scheduler(dask_scheduler: Any) -> dict[str, Any]:
            return {
                "workers": len(dask_scheduler.workers),
                "tasks": sorted(
                    f"{key} is {task.state} for {len(task.who_wants or ())} clients"
                    for key, task in dask_scheduler.tasks.items()
                ),
                "clients": len(dask_scheduler.clients),
                "plugins": sorted(dask_scheduler.plugins),
                "worker plugins": sorted(dask_scheduler.worker_plugins),
                "handlers": sorted(dask_scheduler.handlers),
            }

        def of_worker(dask_worker: Any) -> tuple[list[str], list[str], int]:
            plugins, handlers = dask_worker.plugins, dask_worker.handlers
            return sorted(plugins), sorted(handlers), len(dask_worker.data)

        state: dict[str, Any] = self.client.run_on_scheduler(of_scheduler)
        state["of workers"] = sorted(self.client.run(of_worker).values())
        return state

    def executor(self) -> Any:
        """Return our executor on it."""
        from flowpregel.plugins.cluster.dask import DaskExecutor

        return DaskExecutor(self.client, timeout=20.0)

    def __exit__(self, *_: object) -> None:
        self.client.close(timeout=2)
        for process in (*self.workers.values(), self.scheduler):
            process.kill()
            process.wait()
