"""``flowpregel recover``: dead runs are resumed together and by age, also by a service
whose server is away for a time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.maintenance import ThreadInfo
from flowpregel.checkpoint.work import work_of
from flowpregel.cli.run_choices import AbandonedRuns
from flowpregel.cli.working import RunWorker
from flowpregel.errors import StoreError
from flowpregel.plugins.postgres import PostgresSaver
from flowpregel.pregel.pregel import Pregel
from flowpregel.storage.options import StoreOptions
from tests.postgres_server import Server
from tests.runs.cli_jobs import environment
from tests.runs.pooling import wait_until

pytestmark = pytest.mark.slow

PROGRAM = """
import os, pathlib, sys, time
from typing import TypedDict
from flowpregel import StateGraph, entrypoint, task
from flowpregel.plugins.postgres import PostgresSaver
from flowpregel.storage.options import StoreOptions

SAVER = PostgresSaver(
    os.environ["URL"], lease_ttl=2, options=StoreOptions(kept_previews=0)
)


def began(name):
    with open("began", "a") as log:
        log.write(f"{name}\\n")


def wait_for(*names):
    while not all(pathlib.Path(name).exists() for name in names):
        time.sleep(0.02)


@task
def meet(name):
    began(name)
    wait_for("go")
    pathlib.Path(f"met-{name}").touch()
    wait_for(*os.environ.get("MEETS", "").split())
    return name


@entrypoint(checkpointer=SAVER, executor="threads")
def job(name):
    return meet(name).result()


class State(TypedDict):
    name: str


def look(state):
    began(state["name"])
    wait_for("go")
    return {"name": state["name"].upper()}


def made_graph(saver):
    builder = StateGraph(State)
    builder.add_node("look", look)
    builder.add_edge("__start__", "look")
    return builder.compile(checkpointer=saver, executor="threads")


graph = made_graph(SAVER)


if __name__ == "__main__":
    kind, name = sys.argv[1:]
    if kind == "flow":
        job.run(name, id=name)
    else:
        # This graph is no variable of the module, so its run records no flow.
        config = {"configurable": {"thread_id": name}}
        made_graph(SAVER).invoke({"name": name}, config)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the program ``job.py``."""
    (tmp_path / "job.py").write_text(PROGRAM)
    return tmp_path


def kill_runs(folder: Path, url: str, kind: str, *names: str) -> None:
    """Start runs one after the other, kill each in its call, and wait until the leases
    have expired.
    """
    for count, name in enumerate(names, start=1):
        words = [sys.executable, "job.py", kind, name]
        with subprocess.Popen(words, cwd=folder, env=environment(URL=url)) as process:
            wait_until(lambda count=count: len(_began(folder)) == count)
            process.kill()
    addresses = [Address(name) for name in names]
    with PostgresSaver(url) as saver:
        wait_until(lambda: sorted(saver.abandoned(), key=str) == addresses)
    (folder / "go").touch()


def _began(folder: Path) -> list[str]:
    log = folder / "began"
    return log.read_text().split() if log.exists() else []


def recover(
    folder: Path, url: str, *options: str, meets: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command, as another machine would."""
    words = [sys.executable, "-m", "flowpregel", "recover", "--store", url, "--json"]
    return subprocess.run(
        [*words, *options],
        cwd=folder,
        env=environment(URL=url, MEETS=meets),
        text=True,
        capture_output=True,
        check=False,
        timeout=90,
    )


def printed(ended: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    """Return the runs and statuses that the command printed, in order."""
    records = [json.loads(line) for line in ended.stdout.splitlines()]
    return [(record["thread_id"], record["status"]) for record in records]


def test_several_runs_are_resumed_at_once(folder: Path, postgres_url: str) -> None:
    """Each ends only when all are under way."""
    kill_runs(folder, postgres_url, "flow", "a", "b", "c")

    meets = "met-a met-b met-c"
    ended = recover(folder, postgres_url, "--jobs", "3", meets=meets)

    assert ended.returncode == 0, ended.stderr
    assert sorted(printed(ended)) == [("a", "done"), ("b", "done"), ("c", "done")]


def test_the_oldest_run_is_resumed_first(folder: Path, postgres_url: str) -> None:
    """Whatever the names of the runs."""
    for name in ["c", "a", "b"]:
        (folder / "go").unlink(missing_ok=True)
        (folder / "began").unlink(missing_ok=True)
        words = [sys.executable, "job.py", "flow", name]
        env = environment(URL=postgres_url)
        with subprocess.Popen(words, cwd=folder, env=env) as process:
            wait_until(lambda name=name: _began(folder) == [name])
            process.kill()
    with PostgresSaver(postgres_url) as saver:
        wait_until(lambda: len(saver.abandoned()) == 3)
    (folder / "go").touch()

    ended = recover(folder, postgres_url)

    assert printed(ended) == [("c", "done"), ("a", "done"), ("b", "done")]


def test_a_run_that_recorded_no_flow_needs_a_name_for_it(
    folder: Path, postgres_url: str
) -> None:
    """Such as that of a graph that a function has compiled."""
    kill_runs(folder, postgres_url, "graph", "a")

    without = recover(folder, postgres_url)
    ended = recover(folder, postgres_url, "--flow", "job:graph")

    assert without.returncode == 1
    assert "pass --flow MODULE:FLOW" in without.stdout
    assert printed(ended) == [("a", "done")]
    assert json.loads(ended.stdout)["output"] == {"name": "A"}


def test_a_resumed_run_keeps_what_its_own_saver_keeps(
    folder: Path, postgres_url: str
) -> None:
    """The flow's saver keeps no previews of arguments, but others do."""
    kill_runs(folder, postgres_url, "flow", "a")

    recover(folder, postgres_url)

    with PostgresSaver(postgres_url) as saver:
        _, before = saver.list({"configurable": {"thread_id": "a"}})
        identifier = before.config["configurable"]["checkpoint_id"]
        saved = saver.load(Address("a", "", identifier))
    assert saved is not None
    previews = {work.ran.preview for work in work_of(saved) if work.ran}
    assert previews == {b""}


@dataclass
class _InterruptedChoice:
    """The dead runs of a store whose server is stopped before the first look and
    started after the third.
    """

    server: Server
    choice: AbandonedRuns
    looks: int = 0

    def threads(self) -> list[ThreadInfo]:
        """Return the threads of the dead runs. When the run is done, ask the process to
        end: as long as it is under way, it is not dead either.
        """
        self.looks += 1
        if self.looks == 1:
            self.server.stop()
        if self.looks == 4:
            self.server.start()
        threads = self.choice.threads()
        run = self.choice.reader.thread("a")
        if run is not None and run.status == "done":
            signal.raise_signal(signal.SIGTERM)
        return threads

    def thread(self, thread_id: str) -> ThreadInfo | None:
        """Return the facts about a thread."""
        return self.choice.thread(thread_id)

    def flow_of(self, thread: ThreadInfo) -> Pregel:
        """Return the flow of a thread."""
        return self.choice.flow_of(thread)


def test_a_service_outlives_a_server_that_is_away(
    folder: Path,
    postgres_server: Server,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For longer than an operation waits; it says so once."""
    kill_runs(folder, postgres_url, "flow", "a")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("URL", postgres_url)
    options = StoreOptions(lock_timeout=0.1)
    with PostgresSaver(postgres_url, options=options) as saver:
        choice = _InterruptedChoice(postgres_server, AbandonedRuns(saver, None))
        # The store is opened before the server is away.
        saver.abandoned()
        RunWorker(choice, saver).work(1, 0.1, until_empty=False)

    told = capsys.readouterr()
    assert told.out.splitlines() == ["done: a"]
    assert told.err.count("this is tried again until it succeeds") == 1
    assert told.err.count("the store answers again") == 1


def test_a_look_for_cron_fails_while_the_server_is_away(
    folder: Path, postgres_server: Server, postgres_url: str
) -> None:
    """The next one finds the run again."""
    kill_runs(folder, postgres_url, "flow", "a")
    options = StoreOptions(lock_timeout=0.1)
    with PostgresSaver(postgres_url, options=options) as saver:
        choice = _InterruptedChoice(postgres_server, AbandonedRuns(saver, None))
        saver.abandoned()
        try:
            with pytest.raises(StoreError):
                RunWorker(choice, saver).work(1, 0.1, until_empty=True)
        finally:
            postgres_server.start()
        wait_until(lambda: saver.abandoned() == [Address("a")])
