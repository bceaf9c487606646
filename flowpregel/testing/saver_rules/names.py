"""Rules of names: any text is a name, and no two are mixed up."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from flowpregel._core.records import Address, Batch, TaskWrites
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.transactional import TransactionalSaver
from flowpregel.testing.saver_rules.records import Hooks, Line, config, nth_id

NAMES = {
    "empty": "",
    "nul": "\0",
    "nul inside": "a\0b",
    "plain": "a",
    "capital": "A",
    "space": " ",
    "bar": "a|b",
    "bar at the end": "a|",
    "colon": "a:b",
    "path": "/../",
    "dots": "..",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "emoji": "\N{SNAKE}",
    "surrogate": "\ud800",
    "other surrogate": "\udfff",
    "10 kB": "x" * 10_000,
    "10 kB and a bit": "x" * 10_000 + "y",
    "none": "None",
    "zero": "0",
}


class NameRules(Hooks):
    """Threads, namespaces, channels and tasks of any name."""

    @pytest.mark.parametrize("kind", NAMES)
    def test_a_thread_of_any_name_reads_back(
        self, saver: TransactionalSaver, kind: str, tmp_path: Path
    ) -> None:
        name = NAMES[kind]
        Line(saver, name, name).commit(1, {name: name}, {f"{name}!": (name,)})
        pending = TaskWrites(nth_id(1), name, name, ((name, name),))
        saver.commit([Batch(address=Address(name, name), writes=(pending,))])

        saver = self.reopen(saver, tmp_path)
        saved = Line(saver, name, name).load()

        assert Address(name, name, nth_id(1)) == saved.address
        assert {name: name} == saved.checkpoint.values
        assert ((name,),) == saved.deltas[f"{name}!"].writes
        assert saved.deltas[f"{name}!"].seed is MISSING
        assert [(name, name, name)] == [(w.task_id, w.channel, w.value) for w in saved.writes]
        assert [Address(name, name)] == [*saver.namespaces()]

    def test_no_two_threads_or_namespaces_are_mixed_up(self, saver: TransactionalSaver) -> None:
        places = [*product(NAMES.values(), NAMES.values())]
        saver.commit([Line(saver, *place).batch(1, {"a": place}) for place in places])

        for place in places:
            assert {"a": place} == Line(saver, *place).load().checkpoint.values
        assert {*places} == {(each.thread_id, each.namespace) for each in saver.namespaces()}
        for name in NAMES.values():
            of_one = {each.namespace for each in saver.namespaces(name)}
            assert {*NAMES.values()} == of_one

    def test_deleting_a_thread_touches_no_look_alike(self, saver: TransactionalSaver) -> None:
        for name in NAMES.values():
            Line(saver, name).commit(1, {"a": name})

        for index, gone in enumerate(NAMES.values(), 1):
            saver.delete_thread(gone)
            left = [*NAMES.values()][index:]
            assert {*left} == {each.thread_id for each in saver.namespaces()}

    def test_no_two_channels_are_mixed_up(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1, {name: index for index, name in enumerate(NAMES.values())})
        line.commit(2, None, {name: (name,) for name in NAMES.values()})

        saved = line.load()

        for index, name in enumerate(NAMES.values()):
            assert (index, ((name,),)) == (saved.deltas[name].seed, saved.deltas[name].writes)

    def test_no_two_tasks_are_mixed_up(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1)
        places = [*product(NAMES.values(), [*NAMES.values()][:4])]
        pending = tuple(
            TaskWrites(nth_id(1), f"{task}#{path}", path, (("a", (task, path)),))
            for task, path in places
        )
        saver.commit([Batch(address=Address("t"), writes=pending)])

        assert {*places} == {write.value for write in line.load().writes}

    def test_a_name_is_listed_as_it_is(self, saver: TransactionalSaver) -> None:
        for name in NAMES.values():
            Line(saver, name).commit(1)

        listed = {each.config["configurable"]["thread_id"] for each in saver.list(None)}

        assert {*NAMES.values()} == listed
        assert len([*saver.list(config("\ud800"))]) == 1
