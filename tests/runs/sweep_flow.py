"""A sweep of parameters, of which some fail until there is a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowpregel import entrypoint, task


@dataclass(frozen=True)
class Params:
    """The parameters of a call."""

    lr: float
    depth: int
    seed: int


@task
def train(params: Params, flag: str) -> float:
    if not Path(flag).exists():
        if params.lr == 0.1 and params.depth == 12:
            raise FloatingPointError(f"loss is nan at epoch {params.seed}")
        if params.seed == 1:
            raise MemoryError("could not allocate 12 GiB")
    return params.lr


@entrypoint(executor="inline")
def sweep(count: int, flag: str) -> int:
    futures = []
    for seed in range(count):
        params = Params([0.1, 0.01, 0.001][seed % 3], [8, 12][seed // 3 % 2], seed)
        futures.append(train(params, flag))
    return sum(future.exception() is None for future in futures)
