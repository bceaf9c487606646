"""The files that are mutated, and the tests that have to notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class MutatedRoom:
    """Files of the package, and the tests that decide whether a mutant of them
    lives.
    """

    files: tuple[str, ...]
    """Patterns of paths below ``flowpregel/``."""
    quick: tuple[str, ...]
    """Paths below ``tests/``: the tests there that are not slow are run against each
    mutant.
    """
    slow: tuple[str, ...] = ()
    """Paths below ``tests/``: all tests there are run against the mutants that live
    then.
    """
    is_in_forks: bool = False
    """True if its code runs in forks of the quick tests, where no coverage is
    measured.
    """


ROOMS: Final[dict[str, MutatedRoom]] = {
    "core": MutatedRoom(
        files=("_core/*.py",),
        quick=(
            "unit/core",
            "unit/test_copies.py",
            "unit/test_digest.py",
            "property/test_determinism.py",
            "property/test_edited_bodies.py",
            "runs/graphs/test_what_a_function_is_given.py",
            "runs/functional",
            "runs/questions",
            "runs/replay",
            "runs/graphs/test_state_graph_interrupts.py",
            "runs/graphs/test_state_graph_runs.py",
        ),
    ),
    "code": MutatedRoom(
        files=("_code/*.py",),
        quick=(
            "unit/code",
            "unit/core/test_frozen_digests.py",
            "unit/test_digest.py",
            "property/test_code_digest_edits.py",
        ),
    ),
    "pool": MutatedRoom(
        files=(
            "executors/processes/coordinator/assign.py",
            "executors/processes/coordinator/executor.py",
            "executors/processes/coordinator/io_loop.py",
            "executors/processes/coordinator/pool.py",
            "executors/processes/coordinator/resources.py",
            "executors/processes/coordinator/task_pool.py",
            "executors/processes/coordinator/worker_process.py",
        ),
        quick=(
            "unit/executors",
            "property/test_resources_table.py",
        ),
        slow=(
            "contract/test_process_executor.py",
            "runs/workers/test_worker_traffic.py",
            "runs/workers/test_worker_deaths.py",
            "runs/workers/test_worker_hard_ends.py",
            "runs/limits/test_resources.py",
        ),
    ),
    "worker": MutatedRoom(
        files=("executors/processes/worker/*.py",),
        quick=(
            "unit/executors/test_printed.py",
            "unit/executors/test_process_state.py",
            "unit/executors/test_worker.py",
            "unit/executors/test_worker_contexts.py",
            "unit/executors/test_worker_link.py",
            "unit/executors/test_worker_output.py",
            "unit/executors/test_worker_process.py",
        ),
        is_in_forks=True,
        slow=(
            "runs/workers/test_worker_traffic.py",
            "contract/test_process_executor.py",
            "runs/workers/test_worker_hard_ends.py",
            "runs/workers/test_worker_contexts.py",
            "runs/workers/test_worker_deaths.py",
            "runs/workers/test_worker_waiting.py",
        ),
    ),
    "retention": MutatedRoom(
        files=("checkpoint/retention.py",),
        quick=(
            "runs/storage/test_retention_bounds.py",
            "runs/replay/test_taken_back_calls.py",
            "contract/test_memory_saver.py",
            "property/test_memory_saver_model.py",
            "runs/storage/test_store_care.py",
        ),
        slow=("runs/watching/test_logs_kept.py",),
    ),
}
