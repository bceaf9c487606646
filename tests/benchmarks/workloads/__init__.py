"""The goals, a file for each workload; ``ALL`` names them in the order of the goals."""

from __future__ import annotations

import importlib

from tests.benchmarks.model import Workload

ALL: tuple[str, ...] = (
    "w1_supersteps",
    "w2_durable",
    "w2c_crowd",
    "w2d_slow_disk",
    "w3_gather",
    "w4_cpu",
    "w5_small",
    "w5c_sends",
    "w6_arrays",
    "w7_deltas",
    "w8_cold",
    "w9_channels",
    "w10_tasks",
    "w11_resume",
    "graphs",
    "main_job",
    "lim_resources",
)


def of(module: str, *, quick: bool) -> list[Workload]:
    """Return the workloads of a module.

    Args:
        module: One of `ALL`.
        quick: With tiny sizes, to see that they work.
    """
    found: list[Workload] = importlib.import_module(
        f"tests.benchmarks.workloads.{module}"
    ).workloads(quick)
    return found
