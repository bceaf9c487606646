"""Classes of recorded arguments that have gained a field with a default."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest

from flowpregel.cache.memory import InMemoryCache
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import InputMismatchError
from flowpregel.executors import ProcessExecutor

pytestmark = pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")

KINDS = {
    "dataclass": "@dataclass\nclass Job:",
    "keyword_only": "@dataclass(kw_only=True)\nclass Job:",
    "slots": "@dataclass(slots=True)\nclass Job:",
    "frozen_slots": "@dataclass(frozen=True, slots=True)\nclass Job:",
    "named_tuple": "class Job(NamedTuple):",
    "pydantic": "class Job(BaseModel):",
}
PROGRAM = """
from __future__ import annotations
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from pydantic import BaseModel
from flowpregel import entrypoint, task

{head}
    {fields}

ran = []

@task
def work(job):
    with open(Path(__file__).parent / "ran", "a") as file:
        file.write(f"{{(job[0] if isinstance(job, list) else job).n}} ")
    return (job[0] if isinstance(job, list) else job).n

@task(cache=True, executor="inline")
def shared(job):
    ran.append(job.n)
    return job.n

def jobs(names):
    return [{call} for n in names]

def done(results):
    if (Path(__file__).parent / "bad").exists():
        raise OSError("bad")
    return results

@entrypoint()
def study(names):
    return done([work(job).result() for job in jobs(names)])

@entrypoint()
def chunked(names):
    return done([each.result() for each in work.map(jobs(names), chunksize=2)])

@task
def outer(names):
    return done([work(job).result() for job in jobs(names)])

@entrypoint()
def nested(names):
    return outer(names).result()

@entrypoint()
def given(job):
    return done(work(job).result())
"""
Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write a program with the fields of its class and how it is called, and import it
    anew.
    """
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load_program(
        fields: str, call: str = "Job(n=n)", kind: str = "dataclass"
    ) -> Any:
        sys.modules.pop("gained", None)
        text = PROGRAM.format(
            head=KINDS[kind], fields=fields.replace("; ", "\n    "), call=call
        )
        (tmp_path / "gained.py").write_text(text)
        invalidate_caches()
        return import_module("gained")

    yield load_program
    sys.modules.pop("gained", None)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Run a flow under the id 1, and return the numbers of the calls that were made."""

    def calls_of(
        flow: Any, given: Any, *, fails: bool = False, executor: Any = "inline"
    ) -> list[int]:
        bad, ran = tmp_path / "bad", tmp_path / "ran"
        ran.write_text("")
        with LMDBSaver(tmp_path / "store") as saver:
            own = flow.copy({"checkpointer": saver, "executor": executor})
            if fails:
                bad.touch()
                with pytest.raises(OSError, match="bad"):
                    own.run(given, id="1")
                bad.unlink()
            else:
                own.run(given, id="1")
        return [int(each) for each in ran.read_text().split()]

    return calls_of


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_matches_if_the_field_has_its_default(
    load: Load, run: Any, kind: str
) -> None:
    """Given or not; the other calls run."""
    assert [0, 1] == run(load("n: int", kind=kind).study, [0, 1], fails=True)

    edited = load("n: int; deep: bool = False", "Job(n=n, deep=n == 1)", kind)
    assert [1] == run(edited.study, [0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_default_that_is_edited_matches_no_more(
    load: Load, run: Any, kind: str
) -> None:
    """The call was recorded with the default of then."""
    assert [0] == run(load("n: int; k: int = 1", kind=kind).study, [0], fails=True)

    assert [0] == run(load("n: int; k: int = 2", kind=kind).study, [0])


def test_the_default_that_a_call_has_matched_with_is_recorded(
    load: Load, run: Any
) -> None:
    """Edited afterwards, it matches no more."""
    assert [0] == run(load("n: int").study, [0], fails=True)
    assert [] == run(load("n: int; k: int = 1").study, [0], fails=True)
    assert [] == run(load("n: int; k: int = 1").study, [0], fails=True)

    assert [0] == run(load("n: int; k: int = 2").study, [0])


@pytest.mark.parametrize(
    "fields",
    [
        "before: int = 3; n: int = 0; k: int = 1",
        "n: int; k: int = 1; rows: list = field(default_factory=list)",
        "n: int; a: int = 1; k: int = 1; b: int = 2; c: Any = None",
    ],
)
def test_several_fields_may_be_gained_anywhere(
    load: Load, run: Any, fields: str
) -> None:
    """Beside one that had its default before."""
    assert [0, 1] == run(load("n: int; k: int = 1").study, [0, 1], fails=True)

    assert [] == run(load(fields).study, [0, 1])


@pytest.mark.parametrize(
    "call",
    ["[Job(n=n), {'a': Job(n=n + 1)}]", "[Job(n=n), (Job(n=n), {1: [Job(n=2)]})]"],
)
def test_an_object_inside_of_others_matches_too(
    load: Load, run: Any, call: str
) -> None:
    """All objects of the class have gained the field."""
    assert [0, 1] == run(load("n: int", call).study, [0, 1], fails=True)

    assert [] == run(load("n: int; k: int = 1", call).study, [0, 1])


@pytest.mark.parametrize("name", ["chunked", "nested"])
def test_calls_in_chunks_and_of_tasks_match_too(
    load: Load, run: Any, name: str
) -> None:
    assert [0, 1] == run(getattr(load("n: int"), name), [0, 1], fails=True)

    assert [] == run(getattr(load("n: int; k: int = 1"), name), [0, 1])


@pytest.mark.slow
def test_calls_from_worker_processes_match_too(load: Load, run: Any) -> None:
    program = load("n: int")
    with ProcessExecutor(max_workers=1) as pool:
        assert [0, 1] == run(program.nested, [0, 1], fails=True, executor=pool)

    program = load("n: int; k: int = 1")
    with ProcessExecutor(max_workers=1) as pool:
        assert [] == run(program.nested, [0, 1], executor=pool)


def test_an_input_that_gained_a_default_is_the_same_input(load: Load, run: Any) -> None:
    """One with another value, or with a default that was edited, is another one."""
    program = load("n: int")
    assert [0] == run(program.given, program.Job(0), fails=True)
    program = load("n: int; k: int = 1")

    with pytest.raises(InputMismatchError):
        run(program.given, program.Job(0, 2))
    assert [] == run(program.given, program.Job(0))
    program = load("n: int; k: int = 2")
    with pytest.raises(InputMismatchError):
        run(program.given, program.Job(0))


def test_for_a_cache_a_class_that_gained_a_field_is_a_miss(load: Load) -> None:
    """Its promise is another one: what it returns was computed by the code of now."""
    cache, made = InMemoryCache(), []
    for fields in (
        "n: int",
        "n: int; k: int = 1",
        "n: int; k: int = 2",
        "n: int; k: int = 2",
    ):
        program = load(fields)
        flow = program.entrypoint(cache=cache)(
            lambda n, program=program: program.shared(program.Job(n)).result()
        )
        assert 7 == flow.invoke(7)
        made.append([*program.ran])

    assert [[7], [7], [7], []] == made
