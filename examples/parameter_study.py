"""A parameter study: Monte Carlo over a grid, in worker processes, safe from crashes.

    python examples/parameter_study.py
    python examples/parameter_study.py --paths 1000000 --store study.lmdb

What is an option worth whose payoff depends on the average price on the way to
its end? There is no formula, so for each volatility and strike many price paths
are simulated with numpy. Every cell of the grid is one task. Stop the program
and run it again: cells that are done are not simulated again, and a study that is
done is only looked up.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import dataclass

from flowpregel.func import entrypoint, task
from flowpregel.pregel import Pregel

VOLATILITIES = (0.1, 0.2, 0.3, 0.4)
STRIKES = (80.0, 90.0, 100.0, 110.0, 120.0)
START, RATE, DAYS = 100.0, 0.03, 252


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    volatility: float
    strike: float
    paths: int
    seed: int


@dataclass(frozen=True)
class Price:
    """What a cell came to."""

    cell: Cell
    value: float
    error: float
    """One standard error of the mean."""


@task
def simulate(cell: Cell) -> Price:
    """Return the discounted mean payoff of an Asian call."""
    import numpy as np  # noqa: PLC0415 - only workers need it

    random = np.random.default_rng([cell.seed, int(cell.strike), int(1000 * cell.volatility)])
    day = 1 / DAYS
    drift = (RATE - cell.volatility**2 / 2) * day
    payoffs = []
    for _ in range(0, cell.paths, 5_000):
        noise = random.standard_normal((5_000, DAYS))
        steps = drift + cell.volatility * math.sqrt(day) * noise
        means = (START * np.exp(np.cumsum(steps, axis=1))).mean(axis=1)
        payoffs.append(np.maximum(means - cell.strike, 0.0) * math.exp(-RATE))
    values = np.concatenate(payoffs)
    return Price(cell, float(values.mean()), float(values.std() / math.sqrt(values.size)))


def study(store: str | None, executor: str = "processes") -> Pregel:
    """Return the workflow, kept in the folder *store*."""

    @entrypoint(checkpointer=store, executor=executor)
    def prices(paths: int) -> list[Price]:
        grid = [Cell(v, k, paths, seed=7) for v, k in itertools.product(VOLATILITIES, STRIKES)]
        return [future.result() for future in simulate.map(grid)]

    return prices


def table(prices: list[Price]) -> str:
    """Return the grid as text: a line for each volatility."""
    lines = ["volatility " + "".join(f"{strike:>16.0f}" for strike in STRIKES)]
    for volatility in VOLATILITIES:
        row = [p for p in prices if p.cell.volatility == volatility]
        lines.append(f"{volatility:>10} " + "".join(f"{p.value:9.3f} ±{p.error:5.3f}" for p in row))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run the study, or go on with it, and print the grid."""
    parser = argparse.ArgumentParser(description="Prices of Asian options.")
    parser.add_argument("--paths", type=int, default=100_000, help="simulated for each cell")
    parser.add_argument("--store", default="study.lmdb", help="folder to keep the run in")
    asked = parser.parse_args(arguments)
    flow = study(asked.store)
    # A run_id names the request: asked for again, it goes on, or is looked up.
    name = f"{asked.paths} paths"
    print(table(flow.invoke(asked.paths, thread_id=name, run_id=name)))


if __name__ == "__main__":
    main()
