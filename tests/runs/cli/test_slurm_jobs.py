"""Commands in jobs of a real SLURM: a job that ends loses no work, and the next job
resumes the run.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs import slurm_flows
from tests.runs.queues import status_of
from tests.slurm_cluster import Cluster, serving, until

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).parents[3]
FLOW = f"{slurm_flows.__name__}:note_and_wait"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """A cluster of one node."""
    with serving() as cluster:
        yield cluster


class Study:
    """A run in jobs of SLURM.

    Args:
        slurm: The cluster.
        folder: Where the flow has its files and its store.
    """

    def __init__(self, slurm: Cluster, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder
        self.store = str(folder / "runs.lmdb")

    def submit(self, *options: str, launcher: str = "", grace: str = "20s") -> str:
        """Submit a job that runs the flow, and return the job's id.

        Args:
            options: Options of ``sbatch``.
            launcher: What precedes the command in the script, such as ``srun``.
            grace: The value of ``--stop-grace``.
        """
        words = [sys.executable, "-m", "flowpregel", "run", FLOW, "--id=a"]
        words += [f'--input="{self.folder}"', "--store", self.store]
        words += ["--stop-grace", grace]
        script = f"cd {PROJECT}\n{launcher} {shlex.join(words)}"
        return self.slurm.submit(script, *options, folder=self.folder)

    def notes(self) -> list[str]:
        """Return what the tasks have noted."""
        file = self.folder / "notes"
        return sorted(file.read_text().split()) if file.exists() else []

    def wait_for_task(self) -> None:
        """Wait until the third task runs."""
        until((self.folder / "begun").exists)

    def open_gate(self) -> None:
        """Let the third task end."""
        (self.folder / "gate").touch()


@pytest.fixture
def study(slurm: Cluster, tmp_path: Path) -> Study:
    """A run that no job has begun."""
    return Study(slurm, tmp_path)


def resume(study: Study) -> list[str]:
    """Run the flow to its end in another job, and return all notes."""
    study.open_gate()
    study.slurm.until_ended(study.submit())
    assert "done" == status_of(study.store, "a")
    return study.notes()


def test_a_run_stops_before_its_job_ends_and_the_next_job_resumes_it(
    study: Study,
) -> None:
    """Without an option for that, also in a SLURM that does not set the end."""
    job = study.submit("--time=1", launcher="", grace="15s")
    after = study.submit("--hold", f"--dependency=afternotok:{job}")
    study.slurm.until_ended(job)

    assert "stopped" == status_of(study.store, "a")
    assert "75:0" == study.slurm.exit_code(job)
    study.open_gate()
    study.slurm.run("scontrol", "release", after)
    study.slurm.until_ended(after)
    assert "done" == status_of(study.store, "a")
    assert ["one", "three", "two"] == study.notes()


@pytest.mark.parametrize(
    ("launcher", "options"),
    [
        ("srun", ["--signal=TERM"]),  # as `#SBATCH --signal=TERM@120` does
        ("exec", ["--batch", "--signal=TERM"]),  # as `--signal=B:TERM@120` does
        ("srun", ["--full", "--signal=TERM"]),
    ],
)
def test_sigterm_of_slurm_stops_a_run(
    study: Study, launcher: str, options: list[str]
) -> None:
    """Although its workers get the signal, too."""
    job = study.submit(launcher=launcher)
    study.wait_for_task()
    study.slurm.run("scancel", *options, job)
    study.slurm.until_ended(job)

    assert "stopped" == status_of(study.store, "a")
    assert ["one", "three", "two"] == resume(study)


def test_a_killed_job_loses_nothing(study: Study) -> None:
    """What had ended is not run again, and no worker is left."""
    job = study.submit()
    study.wait_for_task()
    study.slurm.run("scancel", "--full", "--signal=KILL", job)
    study.slurm.until_ended(job)

    assert ["one", "three", "two"] == resume(study)


def test_jobs_of_an_array_share_a_store(slurm: Cluster, tmp_path: Path) -> None:
    """Each has a run of its own."""
    study = Study(slurm, tmp_path)
    study.open_gate()
    flow = shlex.quote(f"{slurm_flows.__name__}:note_and_wait")
    command = f"{sys.executable} -m flowpregel run {flow} --store {study.store}"
    options = f"--id=$SLURM_ARRAY_TASK_ID --input='\"{tmp_path}\"'"
    job = slurm.submit(
        f"cd {PROJECT}\n{command} {options}", "--array=1-2", folder=tmp_path
    )
    until(lambda: job not in slurm.jobs() and not slurm.jobs("--job", job))

    assert ["done", "done"] == [status_of(study.store, name) for name in "12"]
    assert 6 == len(study.notes())
