"""A call that fails is named with its arguments, which are kept until it succeeds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Address
from flowpregel.checkpoint.arguments import ArgumentNotStored, StoredArguments
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import WorkerDiedError
from flowpregel.executors.shared import shared
from flowpregel.func import Flow, entrypoint, task
from tests.runs import failing_calls as flows


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[LMDBSaver]:
    with LMDBSaver(tmp_path / "store") as saver:
        yield saver


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder in which one of the three files of `study` is missing."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name[0])
    return tmp_path


def failed(flow: Flow[Any, Any], saver: LMDBSaver, *given: Any) -> BaseException:
    """Run *flow* under the id ``x``, and return what it fails with."""
    flow = flow.copy({"checkpointer": saver})
    try:
        flow.run(*given, id="x")
    except (OSError, ValueError, WorkerDiedError) as error:
        return error
    raise AssertionError("it did not fail")


def kept(saver: LMDBSaver) -> list[StoredArguments]:
    """Return what is kept of the arguments of all calls."""
    saved = saver.load(Address("x"))
    assert saved is not None
    found = [
        saver.kept_arguments(saved.address, task_id) for task_id, _, _ in saved.ran
    ]
    return [each for each in found if each is not None]


def test_a_failure_names_its_call(saver: LMDBSaver, files: Path) -> None:
    """The note has the arguments, and which attempt it was."""
    note, *_ = failed(flows.study, saver, str(files)).__notes__

    shown = f"'{str(files)[:40]}...'" if len(str(files)) > 40 else repr(str(files))
    assert note.endswith(f": parse({shown}, 'c.txt') (attempt 1)")


def test_a_failure_names_its_call_without_a_store() -> None:
    """Arguments are not compared there, and named all the same; the redacted are
    not.
    """
    with pytest.raises(PermissionError) as caught:
        flows.session.run(None)

    note, *_ = caught.value.__notes__
    assert note.endswith(": login('ann', <redacted>, table=None) (attempt 1)")


@pytest.mark.slow
def test_a_failure_in_a_worker_names_the_worker(saver: LMDBSaver) -> None:
    error = failed(flows.deadly, saver, "x.bin")

    assert isinstance(error, WorkerDiedError)
    assert "that ran die('x.bin') died: " in str(error)
    assert f"die('x.bin') (attempt 1, worker {error.pid})" in error.__notes__[0]
    assert [StoredArguments("tests.runs.failing_calls:die", ("x.bin",), {})] == kept(
        saver
    )


def test_the_event_of_a_failure_names_the_call(files: Path) -> None:
    events = flows.study.start(str(files))

    (call,) = [each["call"] for _, each in events if "call" in each]

    assert call.startswith("parse('")
    assert call.endswith("', 'c.txt')")


def test_a_drawing_of_the_run_names_the_call(saver: LMDBSaver, files: Path) -> None:
    """In its table the one that failed; as JSON every one."""
    failed(flows.study, saver, str(files))

    drawing = flows.study.copy({"checkpointer": saver}).get_run(thread_id="x")

    (line,) = [line for line in str(drawing).splitlines() if "✗ parse('" in line]
    assert "', 'c.txt')" in line
    (study,) = drawing.to_json()["tasks"]
    called = {each["call"][-7:-2] for each in study["inner"]}
    assert called == {"a.txt", "b.txt", "c.txt"}


def test_the_arguments_of_a_failure_are_kept_until_it_succeeds(
    saver: LMDBSaver, files: Path
) -> None:
    failed(flows.study, saver, str(files))
    before = kept(saver)
    (files / "c.txt").write_text("c")
    flows.study.copy({"checkpointer": saver}).run(str(files), id="x")

    home = "tests.runs.failing_calls:parse"
    assert [StoredArguments(home, (str(files), "c.txt"), {})] == before
    (finished,) = [
        each for each in saver.history(Address("x")) if each.checkpoint.step == -1
    ]
    after = [
        saver.kept_arguments(finished.address, task_id)
        for task_id, _, _ in finished.ran
    ]
    assert {None} == {*after}


def test_arguments_go_with_their_checkpoint(saver: LMDBSaver, files: Path) -> None:
    """Of a failure that its flow has caught they stay for as long as that."""
    flows.lenient.copy({"checkpointer": saver}).run(str(files), id="x")
    (first,) = saver.history(Address("x"), filter={"source": "input"})
    before = [
        saver.kept_arguments(first.address, task_id) for task_id, _, _ in first.ran
    ]
    saver.prune(["x"])

    assert 1 == sum(each is not None for each in before)
    assert 0 == saver.stats().bytes_of_writes


def test_what_is_redacted_is_nowhere_in_the_store(
    saver: LMDBSaver, tmp_path: Path
) -> None:
    failed(flows.session, saver, 7)

    (call,) = kept(saver)
    assert ("ann", ArgumentNotStored("it is redacted")) == call.args
    assert {"table": 7} == call.kwargs
    assert b"secret" not in (tmp_path / "store" / "data.mdb").read_bytes()


def test_an_argument_that_is_too_large_is_told_of(saver: LMDBSaver) -> None:
    failed(flows.session, saver, "x" * 2_000_000)

    (call,) = kept(saver)
    assert "ann" == call.args[0]
    assert "a str of 2,000,001 bytes is too large" in call.kwargs["table"].why


def test_how_much_is_kept_can_be_said(tmp_path: Path) -> None:
    with LMDBSaver(
        tmp_path / "all", options=StoreOptions(kept_arguments=1 << 30)
    ) as large:
        failed(flows.session, large, "x" * 2_000_000)
        assert [2_000_000] == [len(call.kwargs["table"]) for call in kept(large)]
    with LMDBSaver(tmp_path / "none", options=StoreOptions(kept_arguments=0)) as none:
        failed(flows.session, none, 1)
        assert [] == kept(none)


def test_a_small_shared_value_is_kept(saver: LMDBSaver) -> None:
    failed(flows.session, saver, shared([1, 2, 3]))

    (call,) = kept(saver)
    assert [1, 2, 3] == call.kwargs["table"].value


def test_a_large_shared_value_is_told_of(saver: LMDBSaver) -> None:
    failed(flows.session, saver, shared(bytes(2_000_000)))

    (call,) = kept(saver)
    assert "a Shared of 2,000," in call.missing["table"]


def test_an_argument_that_cannot_be_pickled_fails_nothing_else(
    saver: LMDBSaver,
) -> None:
    @task
    def hold(lock: Any, name: str) -> None:
        raise ValueError(name)

    @entrypoint(executor="threads")
    def flow(name: str) -> None:
        hold(threading.Lock(), name).result()

    error = failed(flow, saver, "n")

    assert "n" == str(error)
    assert "n" == kept(saver)[0].args[1]


def test_a_parameter_to_redact_has_to_be_there() -> None:
    with pytest.raises(
        ValueError, match=r"task .* has no parameter 'key' to redact; it has a, b"
    ):
        task(redact=("a", "key"))(_f)


def _f(a: int, b: int) -> int:
    return a + b
