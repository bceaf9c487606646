"""A parameter sweep whose calls have arguments, metrics and results to plot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowpregel import LMDBSaver, entrypoint, task
from flowpregel.runtime import Runtime

RATES = (0.001, 0.01, 0.1)
DEPTHS = (4, 8, 12, 16)
WIDTH = {"width": 1}
"""The width of each model, which is no argument, so that equal calls have other
results.
"""


@dataclass
class Params:
    """The arguments of a training."""

    lr: float
    depth: int
    kind: str = "adam"


@task(version="1")
def train(params: Params, *, runtime: Runtime) -> dict[str, float]:
    """Return a loss, or fail for one of the parameters."""
    runtime.metric("epochs", 40 - 2 * params.depth)
    for epoch in range(5):
        runtime.metric("rmse", params.lr * params.depth / (1 + epoch), step=10 * epoch)
    if params.depth == 16 and params.lr == 0.1:
        raise FloatingPointError("loss is nan")
    distance = abs(params.lr - 0.01) * 20 + abs(params.depth - 8) / 8
    return {"loss": (1 + distance) * WIDTH["width"]}


@entrypoint(executor="inline")
def sweep(depths: list[int], width: int = 1) -> int:
    """Return the number of trainings that did not fail."""
    WIDTH["width"] = width
    kinds = {4: "adam", 8: "sgd", 12: "adam", 16: "sgd"}
    calls = [
        train(Params(rate, depth, kinds[depth])) for depth in depths for rate in RATES
    ]
    return sum(call.exception() is None for call in calls)


def sweep_store(path: Path) -> str:
    """Make a store with two runs of `sweep`, and return its path."""
    with LMDBSaver(path) as saver:
        flow: Any = sweep.copy({"checkpointer": saver})
        flow.run([*DEPTHS], id="base")
        flow.run([*DEPTHS], width=2, id="wide")
    return str(path)
