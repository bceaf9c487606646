"""Many OS threads of one process use one store."""

import threading
from contextlib import closing, contextmanager

import pytest

from flowpregel._core.records import Address, Batch, TaskWrites
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import StoreBusyError, StoreError, ValueEncodingError
from flowpregel.storage.lmdb.gates import SharedExclusiveLock
from tests.runs.stores import commit, environment_of, id_of, step

pytestmark = pytest.mark.slow


def run_all(functions):
    """Run each function in an OS thread of its own; return what they raised."""
    raised = []

    def run(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - it is looked at in the test
            raised.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in functions]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not any(each.is_alive() for each in threads)
    return raised


def test_200_os_threads_commit_at_once(path):
    with LMDBSaver(path) as saver:

        def run(name):
            for number in range(5):
                commit(saver, number, thread=name)

        raised = run_all([lambda n=n: run(f"t{n}") for n in range(200)])

        assert raised == []
        assert {len([*saver.history(Address(f"t{n}"))]) for n in range(200)} == {5}


def test_one_commits_batch_that_fails_takes_no_other_along(path):
    with LMDBSaver(path) as saver:

        def good(name):
            for number in range(20):
                commit(saver, number, thread=name)

        def bad():
            for _ in range(20):
                # Its own parent: refused inside the transaction, which others may
                # share.
                odd = step(1)
                object.__setattr__(odd, "parent_id", odd.id)
                with pytest.raises(ValueError, match="own parent"):
                    saver.commit([Batch(address=Address("bad"), checkpoint=odd)])

        raised = run_all([*(lambda n=n: good(f"t{n}") for n in range(8)), bad, bad])

        assert raised == []
        assert {len([*saver.history(Address(f"t{n}"))]) for n in range(8)} == {20}
        assert saver.load(Address("bad")) is None


def test_readers_and_writers_go_on_while_the_map_grows(path):
    with LMDBSaver(path, map_size=1) as saver:
        commit(saver, 0, {"n": b"first"}, thread="read")
        stop = threading.Event()
        environment = environment_of(path)

        def grow():
            while not stop.is_set():
                environment.grow()
                stop.wait(0.005)

        def read():
            while not stop.is_set():
                assert saver.load(Address("read")).checkpoint.values == {"n": b"first"}

        def write(name):
            for number in range(60):
                commit(saver, number, {"n": bytes(20_000)}, thread=name)

        def end(function):
            try:
                function()
            finally:
                ended.append(1)
                if len(ended) == 3:
                    stop.set()

        ended = []
        writers = [lambda n=n: end(lambda: write(f"t{n}")) for n in range(3)]
        raised = run_all([grow, read, read, read, *writers])

        environment.close()
        assert raised == []
        assert {len([*saver.history(Address(f"t{n}"))]) for n in range(3)} == {60}


def test_a_store_can_be_closed_while_others_use_it(path):
    saver = LMDBSaver(path)
    commit(saver, 0)
    begun = threading.Barrier(4)

    def use_for_ever():
        while True:
            saver.load(Address("t"))

    def use():
        begun.wait()
        with pytest.raises(StoreError, match="closed"):
            use_for_ever()

    def close():
        begun.wait()
        saver.close()

    assert run_all([use, use, use, close]) == []


@contextmanager
def lock_held(path):
    """Let another OS thread of this process write for as long as the block lasts."""
    held, enough = threading.Event(), threading.Event()

    def hold(_):
        held.set()
        enough.wait(20)

    with closing(environment_of(path)) as environment:
        holder = threading.Thread(
            target=environment.commits.write, args=(hold,), kwargs={"timeout": 1}
        )
        holder.start()
        held.wait(20)
        try:
            yield
        finally:
            enough.set()
            holder.join()


def test_a_write_lock_held_in_this_process_is_named_after_the_timeout(path):
    with LMDBSaver(path, options=StoreOptions(lock_timeout=0.1)) as saver:
        with lock_held(path), pytest.raises(StoreBusyError, match="another OS thread"):
            commit(saver, 0)
        commit(saver, 0)


def test_those_who_wait_for_a_group_get_their_turn_after_a_timeout(path):
    with LMDBSaver(path, options=StoreOptions(lock_timeout=0.2)) as saver:
        with lock_held(path):
            raised = run_all(
                [lambda n=n: commit(saver, 0, thread=f"t{n}") for n in range(5)]
            )
            assert [type(each) for each in raised] == [StoreBusyError] * 5
        commit(saver, 0)
        assert [each.thread_id for each in saver.namespaces()] == ["t"]


def test_the_gate_lets_nobody_in_while_one_is_alone():
    gate, log = SharedExclusiveLock(), []
    inside, passed = threading.Event(), threading.Event()

    def alone():
        with gate.alone():
            inside.set()
            assert not passed.wait(0.05)
            log.append("alone")

    def pass_through():
        inside.wait()
        with gate:
            log.append("passed")
            passed.set()

    assert run_all([alone, pass_through, pass_through]) == []
    assert log == ["alone", "passed", "passed"]


# ---------------------------------------------------------------- sizes and values


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        4079,
        4080,
        4096,
        (1 << 20) - 34,
        (1 << 20) - 33,
        (1 << 20) - 32,
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
        5_000_000,
    ],
)
def test_values_of_any_size_come_back(path, size):
    value = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with LMDBSaver(path) as saver:
        commit(saver, 0, {"n": value})
        writes = TaskWrites(id_of(0), "task", "", (("n", value),))
        saver.commit([Batch(address=Address("t"), writes=(writes,))])
        found = saver.load(Address("t"))

    assert found.checkpoint.values["n"] == value
    assert found.writes[0].value == value


def test_the_room_of_a_large_value_is_used_again(path):
    with LMDBSaver(path) as saver:
        for number in range(12):
            commit(saver, 0, {"n": bytes(4_000_000)}, thread=f"t{number}")
            saver.delete_thread(f"t{number}")

        assert saver.size() < 3.5 * 4_000_000


def test_a_value_that_cannot_be_kept_is_named_with_its_place(path):
    class Model:
        def __init__(self):
            self.lock = threading.Lock()

    with LMDBSaver(path) as saver:
        with pytest.raises(ValueEncodingError) as raised:
            commit(saver, 0, {"good": 1, "bad": {"models": [1, Model()]}})
        assert saver.load(Address("t")) is None

    for part in ("channel 'bad'", "['models'][1].lock", "_thread.lock"):
        assert part in str(raised.value)


def test_a_pending_write_that_cannot_be_kept_names_its_task(path):
    with LMDBSaver(path) as saver:
        writes = TaskWrites(id_of(0), "the task", "", (("n", threading.Lock()),))
        with pytest.raises(ValueEncodingError, match="the task"):
            saver.commit([Batch(address=Address("t"), writes=(writes,))])
