"""A workflow whose calls share a limit with those of other programs.

``python -m tests.runs.limit_flows STORE RUN`` runs it, reports when its call has the
only slot, and keeps the slot until a line comes.
"""

from __future__ import annotations

import sys

from flowpregel import entrypoint, task
from flowpregel.executors import ProcessExecutor


@task(limit="licence", executor="threads")
def hold(report: str) -> str:
    """Report that the call has the licence, and wait for a line."""
    sys.stdout.write(report)
    sys.stdout.flush()
    return sys.stdin.readline()


if __name__ == "__main__":
    store, run_id = sys.argv[1:]
    with ProcessExecutor(limits={"licence": 1}, limits_scope="store") as limits:

        @entrypoint(checkpointer=store, executor=limits)
        def hold_once(report: str) -> str:
            """Hold the licence once."""
            return hold(report).result()

        hold_once.run("held\n", id=run_id)
