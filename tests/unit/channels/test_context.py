"""`Context`: entered when first read, once, and left when told."""

import asyncio
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from flowpregel.channels import Context
from flowpregel.channels.base import MISSING
from flowpregel.channels.context import contexts_in
from flowpregel.errors import ConfigurationError, EmptyChannelError, InvalidUpdateError


class Resource:
    """A context manager that keeps count of itself."""

    entered = 0
    left: list[Any]

    def __init__(self) -> None:
        self.left = []

    def __enter__(self) -> "Resource":
        type(self).entered += 1
        return self

    def __exit__(self, *exc_info: Any) -> bool:
        self.left.append(exc_info[1])
        return True


@pytest.fixture
def kind() -> type[Resource]:
    """A class of its own for each test, so that counts start at 0."""
    return type("Resource", (Resource,), {"entered": 0})


def named(factory: Any) -> Context[Any]:
    channel = Context(factory)
    channel.key = "db"
    return channel


def test_it_is_there_without_being_entered(kind: type[Resource]) -> None:
    channel = named(kind)

    assert channel.is_available()
    assert MISSING is channel.checkpoint()
    assert kind.entered == 0


def test_it_is_entered_by_the_first_read_alone(kind: type[Resource]) -> None:
    channel = named(kind)

    assert channel.get() is channel.get()
    assert kind.entered == 1


def test_threads_that_read_at_once_enter_it_once(kind: type[Resource]) -> None:
    channel, ready = named(kind), threading.Barrier(4)

    def read(_: int) -> Resource:
        ready.wait()
        return channel.get()

    with ThreadPoolExecutor(4) as threads:
        values = {id(value) for value in threads.map(read, range(4))}

    assert 1 == len(values) == kind.entered


def test_closing_leaves_it_once_and_for_good(kind: type[Resource]) -> None:
    channel = named(kind)
    value = channel.get()

    channel.close()
    channel.close()

    assert value.left == [None]
    assert not channel.is_available()
    with pytest.raises(EmptyChannelError, match="'db'"):
        channel.get()


def test_closing_what_was_never_read_enters_nothing(kind: type[Resource]) -> None:
    channel = named(kind)

    channel.close()

    assert kind.entered == 0
    assert not channel.is_available()


def test_it_is_told_what_ended_the_run(kind: type[Resource]) -> None:
    channel = named(kind)
    value, error = channel.get(), KeyError("why")

    channel.close(error)

    assert value.left == [error]


def test_nobody_can_write_it(kind: type[Resource]) -> None:
    channel = named(kind)

    assert not channel.update([])
    with pytest.raises(
        InvalidUpdateError, match="'db' is a Context and can only be read"
    ):
        channel.update([1])  # type: ignore[list-item]
    assert not channel.consume()
    assert not channel.finish()


def test_each_run_gets_its_own_and_its_copies_share_it(kind: type[Resource]) -> None:
    declared = named(kind)
    run, other = declared.from_checkpoint(MISSING), declared.from_checkpoint("ignored")

    assert run.copy().get() is run.get()
    assert run.get() is not other.get()
    run.copy().close()

    assert not run.is_available()
    assert other.is_available()
    assert (run.key, run.copy().key) == ("db", "db")


def test_functions_make_contexts_too() -> None:
    @contextmanager
    def opened() -> Iterator[int]:
        yield 5

    channel = Context(opened, int)

    assert channel.get() == 5
    assert int is channel.ValueType
    channel.close()


class AsyncOnly:
    async def __aenter__(self) -> int:
        return 1

    async def __aexit__(self, *exc_info: Any) -> None: ...


@asynccontextmanager
async def async_function() -> Any:
    yield 1


@pytest.mark.parametrize("factory", [AsyncOnly, async_function, lambda: AsyncOnly()])
def test_an_async_context_is_not_read_where_nothing_is_awaited(factory: Any) -> None:
    channel = named(factory)

    with pytest.raises(
        ConfigurationError, match="only async nodes of an async run"
    ) as caught:
        channel.get()

    assert caught.value.__notes__ == ["raised on entering the Context channel 'db'"]


@pytest.mark.parametrize("factory", [AsyncOnly, async_function])
def test_an_async_context_is_entered_once_and_left_from_another_os_thread(
    factory: Any,
) -> None:
    channel = named(factory)

    async def story() -> list[Any]:
        found = await asyncio.gather(channel.aget(), channel.aget())
        await asyncio.to_thread(channel.close)
        return found

    assert channel.is_async
    assert asyncio.run(story()) == [1, 1]
    assert not channel.is_available()
    with pytest.raises(EmptyChannelError):
        asyncio.run(channel.aget())


def test_a_failed_async_entry_says_which_and_can_be_tried_again() -> None:
    tries = iter([OSError("down"), None])

    @asynccontextmanager
    async def flaky() -> Any:
        if (error := next(tries)) is not None:
            raise error
        yield 1

    channel = named(flaky)

    async def story() -> int:
        with pytest.raises(OSError, match="down") as caught:
            await channel.aget()
        assert caught.value.__notes__ == ["raised on entering the Context channel 'db'"]
        return await channel.aget()

    assert asyncio.run(story()) == 1


@pytest.mark.parametrize(
    ("factory", "message"), [(5, "not 5"), (closing(Resource()), "not <")]
)
def test_a_factory_has_to_be_callable(factory: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Context(factory)


def test_a_factory_that_makes_something_else_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"returned 5, which is not a context manager"
    ):
        named(lambda: 5).get()


def test_a_failed_entry_says_which_and_can_be_tried_again() -> None:
    tries = iter([OSError("down"), None])

    class Flaky(Resource):
        def __enter__(self) -> "Flaky":
            if error := next(tries):
                raise error
            return self

    channel = named(Flaky)
    with pytest.raises(OSError, match="down") as caught:
        channel.get()

    assert caught.value.__notes__ == ["raised on entering the Context channel 'db'"]
    assert isinstance(channel.get(), Flaky)


def test_a_failed_exit_says_which_and_is_not_tried_again() -> None:
    class Sticky(Resource):
        def __exit__(self, *exc_info: Any) -> bool:
            raise OSError("stuck")

    channel = named(Sticky)
    channel.get()
    with pytest.raises(OSError, match="stuck") as caught:
        channel.close()

    assert caught.value.__notes__ == ["raised on leaving the Context channel 'db'"]
    channel.close()


def test_pickles_of_one_run_meet_in_one_process() -> None:
    channel = named(Resource)
    frozen = pickle.dumps(channel)

    one, two = pickle.loads(frozen), pickle.loads(frozen)

    assert one.get() is two.get() is channel.get()
    assert one.key == "db"
    assert channel == one


def _enter_elsewhere(frozen: bytes, path: str) -> None:
    channel = pickle.loads(frozen)
    assert channel.get() is pickle.loads(frozen).get()
    Path(path).write_text(str(Resource.entered))


@pytest.mark.slow
def test_another_process_enters_its_own(tmp_path: Path) -> None:
    channel = named(Resource)
    here, path = channel.get(), tmp_path / "entered"
    worker = get_context("spawn").Process(
        target=_enter_elsewhere, args=(pickle.dumps(channel), str(path))
    )

    worker.start()
    worker.join()

    assert (worker.exitcode, path.read_text()) == (0, "1")
    assert channel.get() is here


def test_declarations_are_the_same_if_their_factories_are() -> None:
    assert Context(Resource) == Context(Resource)
    assert Context(Resource) != Context(AsyncOnlyNot)


class AsyncOnlyNot(AsyncOnly, Resource):
    """Both at once is fine: the plain side is used."""


def test_a_context_that_is_both_is_used_as_a_plain_one() -> None:
    assert isinstance(Context(AsyncOnlyNot).get(), Resource)


def test_contexts_are_found_in_what_a_node_is_given(kind: type[Resource]) -> None:
    """It is given one alone, or beside other values."""
    channel = named(kind)

    assert [channel] == contexts_in(channel) == contexts_in({"db": channel, "n": 1})
    assert [] == contexts_in(1)


def test_who_leaves_an_async_one_on_its_own_loop_does_not_wait_for_that() -> None:
    """The loop, which has to leave it, would stand still."""

    async def use() -> None:
        left = asyncio.Event()

        @asynccontextmanager
        async def resource() -> Any:
            yield "value"
            left.set()

        channel = named(resource)
        assert "value" == await channel.aget()

        channel.close()

        assert not channel.is_available()
        await asyncio.wait_for(left.wait(), 120)

    asyncio.run(use())
