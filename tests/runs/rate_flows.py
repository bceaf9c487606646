"""A workflow whose calls share a rate with those of other programs.

``python -m tests.runs.rate_flows STORE RUN COST...`` runs it, and waits in each call
until a line comes.
"""

from __future__ import annotations

import sys

from flowpregel import entrypoint, task


@task(rate="6/day", cost=lambda tokens, waits: tokens, executor="threads")
def ask(tokens: int, waits: bool) -> int:
    """Spend tokens, and wait until the program gets a line."""
    if waits:
        sys.stdout.write(f"spent {tokens}\n")
        sys.stdout.flush()
        sys.stdin.readline()
    return tokens


@entrypoint
def spend(costs: list[int], waits: bool = False) -> int:
    """Spend tokens one after the other."""
    return sum(ask(tokens, waits).result() for tokens in costs)


if __name__ == "__main__":
    from tests.runs import rate_flows  # the task has another name in this module

    store, run_id, *words = sys.argv[1:]
    flow = rate_flows.spend.copy({"checkpointer": store})
    flow.run([int(word) for word in words], True, id=run_id)
