"""Mistakes that both type checkers refuse; read by them, never executed.

Each marked line is wrong and is refused; no other line is. The end of the file has the
mistakes that they accept: those are refused when the program runs.
"""

from __future__ import annotations

from typing import ParamSpec, Protocol, TypeVar

from flowpregel.func import entrypoint, task
from flowpregel.runtime import Runtime

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


@task
def double(n: int) -> int:
    """Return twice *n*."""
    return 2 * n


@task
def fit(x: float, runtime: Runtime) -> float:
    """Return *x*; the run fills in the second parameter."""
    return x


@task(timeout=3)
async def fetch(url: str, *, runtime: Runtime) -> bytes:
    """Return what is at *url*."""
    return url.encode()


@task
def refine(runtime: Runtime, x: float, times: int = 1) -> float:
    """Return *x*; the run fills in the first parameter."""
    return x


@task
async def load(runtime: Runtime, url: str) -> bytes:
    """Return what is at *url*."""
    return url.encode()


@entrypoint(checkpointer="runs.lmdb")
def study(seeds: list[int], scale: float = 1.0) -> float:
    """Return a sum."""
    double("3")  # mistake: a wrong type
    double()  # mistake: no argument
    double(1, 2)  # mistake: one too many
    double(m=1)  # mistake: no such parameter
    double(1) + 1  # mistake: a future is not its result
    fit("a")  # mistake: a wrong type, beside what the run fills in
    fit(1.0, 2.0)  # mistake: what the run fills in
    refine("a")  # mistake: a wrong type, behind what the run fills in
    refine(1.0, times="b")  # mistake: a wrong type, given by name
    refine(1.0, 2, 3)  # mistake: one too many
    load(3)  # mistake: a wrong type, of an async task
    fetch(3)  # mistake: a wrong type, of an async task
    fetch("a").upper()  # mistake: an attribute of the result
    double.map(["a"])  # mistake: a wrong type of items
    double.submit(1)  # mistake: another library's method
    task(timeot=3)  # mistake: no such option
    refined: float = refine(1.0).result() + refine(x=1.0, times=2).result()
    loaded: bytes = load("a").result()
    scale += refined + len(loaded)
    return scale * sum(future.result() for future in double.map(seeds))


entrypoint(checkpontr="runs.lmdb")  # mistake: no such option
study.run("a")  # mistake: a wrong type
study.run([1], scales=2.0)  # mistake: no such parameter
study.run("a", id="1")  # mistake: a wrong type, beside an id
study.run([1], "x", id="1")  # mistake: a wrong type in the second place
study.run([1], 2.0, 3.0, id="1")  # mistake: one too many, beside an id
study.run([1], id=1)  # mistake: an id is text
study.run([1], durability="now", progress=True)  # mistake: no such durability
study.run([1], adoptt=True)  # mistake: no such option
study.answer("yes", id="1", adopt=True)  # mistake: an answer adopts nothing
study.answer("yes")  # mistake: an answer needs an id
study.start("a", id="1")  # mistake: a wrong type
study.invoke([1], durability="now")  # mistake: no such durability
study.invoke([1], tread_id="1")  # mistake: no such option
named = study.with_options(id="1", durability="sync")
named.run([1], scale="a")  # mistake: a wrong type by name, the id set before
named.run([1], scales=2.0)  # mistake: no such parameter, the id set before
named.run(scale=2.0)  # mistake: an argument is missing, the id set before
named.start(seeds="a")  # mistake: a wrong type by name, of a handle
study.with_options(id=1)  # mistake: an id is text
study.with_options(idd="1")  # mistake: no such option

fine: float = study.run([1], 2.0, id="1", adopt=True, durability="sync")
by_name: float = study.run([1], scale=2.0, id="1")
all_by_name: float = study.run(seeds=[1], scale=2.0)
by_name_with_id: float = named.run(seeds=[1], scale=2.0)


class NamedRun(Protocol[P, R_co]):
    """The smallest program that would check arguments by name beside an id.

    PEP 612 does not allow it. If both checkers accept it one day, `RunMethod` needs
    only this.
    """

    def call(self, *a: P.args, id: str, **k: P.kwargs) -> R_co: ...  # mistake: PEP 612


# So arguments by name beside an id are not checked: both checkers accept these.
# `with_options(id=...)` is the way that checks them.
study.run([1], scales=2.0, id="1")
study.run([1], scale="a", id="1")
study.run(id="1")

# Last: it never returns, so checkers do not look at what follows.
study([1])  # mistake: a workflow is run, not called
