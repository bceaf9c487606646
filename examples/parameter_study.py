"""A parameter study: Monte Carlo over a grid, in worker processes, safe from crashes.

    python examples/parameter_study.py python examples/parameter_study.py --paths 100000
    --store study.lmdb --plot prices.svg

What is an option worth whose payoff depends on the average price on the way to its end?
There is no formula, so for each volatility and strike many price paths are simulated
with numpy. Every cell of the grid is one task; all of them are given the same random
numbers, so that the cells can be compared, and these are in memory once. Stop the
program and run it again: cells that are done are not simulated again, and a study that
is done is only looked up.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import dataclass
from typing import Any

from flowpregel import shared
from flowpregel.func import entrypoint, task
from flowpregel.pregel import Pregel

VOLATILITIES = (0.1, 0.2, 0.3, 0.4)
STRIKES = (80.0, 90.0, 100.0, 110.0, 120.0)
START, RATE, DAYS = 100.0, 0.03, 252
AT_ONCE = 5_000
"""Paths that a task has in memory at the same time."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    volatility: float
    strike: float


@dataclass(frozen=True)
class Price:
    """What a cell came to."""

    cell: Cell
    value: float
    error: float
    """One standard error of the mean."""


@task(cpus=1, memory="200MB")
def simulate(cell: Cell, noise: Any) -> Price:
    """Return the discounted mean payoff of an Asian call; *noise* has a row for each
    path.
    """
    import numpy as np  # noqa: PLC0415 - not needed to look a study up

    day = 1 / DAYS
    drift = (RATE - cell.volatility**2 / 2) * day
    payoffs = []
    for first in range(0, len(noise), AT_ONCE):
        steps = (
            drift + cell.volatility * math.sqrt(day) * noise[first : first + AT_ONCE]
        )
        means = (START * np.exp(np.cumsum(steps, axis=1))).mean(axis=1)
        payoffs.append(np.maximum(means - cell.strike, 0.0) * math.exp(-RATE))
    values = np.concatenate(payoffs)
    return Price(
        cell, float(values.mean()), float(values.std() / math.sqrt(values.size))
    )


def study(store: str | None, executor: str = "processes") -> Pregel:
    """Return the workflow, kept in the folder *store*."""

    @entrypoint(checkpointer=store, executor=executor)
    def prices(paths: int) -> list[Price]:
        import numpy as np  # noqa: PLC0415 - not needed to look a study up

        noise = shared(
            np.random.default_rng(7).standard_normal((paths, DAYS), dtype=np.float32)
        )
        grid = [Cell(*place) for place in itertools.product(VOLATILITIES, STRIKES)]
        return list(simulate.imap(grid, [noise] * len(grid)))

    return prices


def table(prices: list[Price]) -> str:
    """Return the grid as text: a line for each volatility."""
    lines = ["volatility " + "".join(f"{strike:>16.0f}" for strike in STRIKES)]
    for volatility in VOLATILITIES:
        row = [p for p in prices if p.cell.volatility == volatility]
        lines.append(
            f"{volatility:>10} "
            + "".join(f"{p.value:9.3f} ±{p.error:5.3f}" for p in row)
        )
    return "\n".join(lines)


def plot(prices: list[Price], file: str) -> None:
    """Draw a line for each volatility, with its errors."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only for who asks for a picture

    figure = Figure(layout="constrained")
    axes = figure.add_subplot(xlabel="strike", ylabel="price")
    for volatility in VOLATILITIES:
        row = [p for p in prices if p.cell.volatility == volatility]
        values, errors = [p.value for p in row], [p.error for p in row]
        axes.errorbar(
            STRIKES, values, errors, capsize=3, label=f"volatility {volatility}"
        )
    axes.legend()
    figure.savefig(file)


def main(arguments: list[str] | None = None) -> None:
    """Run the study, or go on with it, and print the grid."""
    parser = argparse.ArgumentParser(description="Prices of Asian options.")
    parser.add_argument(
        "--paths", type=int, default=20_000, help="simulated for each cell"
    )
    parser.add_argument(
        "--store", default="study.lmdb", help="folder to keep the run in"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the prices, as .svg or .png"
    )
    asked = parser.parse_args(arguments)
    flow = study(asked.store)
    # A run_id names the request: asked for again, it goes on, or is looked up.
    name = f"{asked.paths} paths"
    prices = flow.invoke(asked.paths, thread_id=name, run_id=name)
    print(table(prices))
    if asked.plot:
        plot(prices, asked.plot)


if __name__ == "__main__":
    main()
