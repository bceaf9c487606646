"""A worker imports what ``FLOWPREGEL_PRELOAD`` names, before anything else."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from flowpregel.executors.processes.wire import messages, protocol
from tests.unit.executors.driven_workers import WorkerMaker, error_of, value

# The test's own process has other OS threads, of which none matters in the fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def test_a_worker_preloads_before_it_runs_the_initializer(
    worker_of: WorkerMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports the modules, and calls the functions, that the variable names."""
    (tmp_path / "preloaded.py").write_text(
        "calls = []\ndef prepare(): calls.append('prepared')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FLOWPREGEL_PRELOAD", "colorsys, preloaded:prepare")
    note = "__import__('sys').modules['preloaded'].calls.append('initialized')"

    worker = worker_of(initializer=pickle.dumps((eval, (note,))))

    calls = "__import__('sys').modules['preloaded'].calls"
    assert ["prepared", "initialized"] == value(worker, eval, calls)


def test_a_preload_that_fails_is_told_and_ends_the_worker(
    worker_of: WorkerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an initializer that fails; the note names the variable."""
    monkeypatch.setenv("FLOWPREGEL_PRELOAD", "no_such_module")
    worker = worker_of(is_ready=False)

    error = error_of(messages.unpack_outcome(worker.frame(protocol.FAILED).body))

    assert isinstance(error, ModuleNotFoundError)
    assert "in FLOWPREGEL_PRELOAD" in error.__notes__
    assert 0 == worker.exit_code()
