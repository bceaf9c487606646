"""A workflow whose tasks share results, for the tests of `why`."""

from __future__ import annotations

from flowpregel import CachePolicy, File, entrypoint, task

RATE = 2
FLOWS = "tests.runs.sharing_flows"


@task(executor="inline", cache=True)
def scale(number: int, offset: int = 0) -> int:
    return RATE * number + offset


@task(executor="inline", cache=True)
def add(numbers: list[int], key: str = "") -> int:
    return sum(numbers)


@task(executor="inline", cache=True)
def size(file: File) -> int:
    with open(file, "rb") as opened:
        return len(opened.read())


@task(executor="inline", cache=True)
def length(text: str) -> int:
    return len(text)


@task(executor="inline", cache_policy=CachePolicy(key_func=str))
def keyed(number: int) -> int:
    return number


@task(executor="inline")
def alone(number: int) -> int:
    return number


@entrypoint()
def study(numbers: list[int], path: str = "", text: str = "") -> int:
    total = add([scale(number).result() for number in numbers]).result()
    total += scale(offset=0, number=numbers[0]).result()
    total += keyed(total).result() + alone(total).result() + length(text).result()
    return total + (size(File(path)).result() if path else 0)
