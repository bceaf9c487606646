"""Digests of code: of everything that can be called, wherever it was defined."""

from __future__ import annotations

import itertools
import json
import linecache
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pickle import loads
from typing import Any

import pytest

from flowpregel import entrypoint
from flowpregel._code.digest import CodeDigest, code_digest
from flowpregel._pickling.crossing import dumps
from tests.unit.code import class_samples, code_samples
from tests.unit.code.code_packages import PYTHONS, Import, load, run

__all__ = ["load"]  # a fixture

_numbers = itertools.count()


def test_a_task_has_the_digest_of_its_function(load: Import) -> None:
    """How it is tried again, and what it is called by, is not what it does."""
    source = """
        from functools import lru_cache
        from flowpregel import RetryPolicy, task
        {}
        def parse(x):
            return x
    """
    decorators = [
        "",
        "@task",
        "@task(timeout=3, retry_policy=RetryPolicy(max_attempts=2))",
    ]
    digests = {
        code_digest(load(source.format(each)).parse).digest for each in decorators
    }
    cached = code_digest(load(source.format("@task\n        @lru_cache")).parse)

    assert 1 == len(digests)
    assert cached.digest not in digests


def test_tasks_that_a_body_calls_count_by_name_if_asked_for(load: Import) -> None:
    """The calls of a task have a record of their own."""
    source = """
        from flowpregel import task
        @task
        def parse(x):
            return {}
        def helper(x):
            return x
        def body(xs):
            return parse.map(helper(xs))
    """
    one, two = (load(source.format(n)) for n in (1, 2))

    assert code_digest(one.body).digest != code_digest(two.body).digest
    digests = {
        code_digest(each.body, through_tasks=False).digest for each in (one, two)
    }
    assert 1 == len(digests)
    assert {"helper", "body", "parse"} == {
        name.partition(":")[2]
        for name in code_digest(one.body, through_tasks=False).parts
    }


def test_a_flow_counts_by_its_body() -> None:
    """A flow in a flow."""

    def flow_of(body: Any) -> CodeDigest:
        flow = entrypoint(executor="inline")(body)
        return code_digest(lambda n: flow.invoke(n))

    def one(n: int) -> int:
        return n + 1

    def other(n: int) -> int:
        return n + 2

    assert flow_of(one) == flow_of(one)
    assert flow_of(one).digest != flow_of(other).digest


KINDS = """
    import functools

    class Base:
        def shared(self, n):
            return n + {shared}

    class Scale(Base):
        factor = {factor}
        def __init__(self, k):
            self.k = k
        def __call__(self, n):
            return self.method(n)
        def method(self, n):
            return self.shared(n) * self.k
        @staticmethod
        def static(n):
            return Scale.helper(n)
        @classmethod
        def helper(cls, n):
            return cls(n)

    def plain(n, k={state}):
        return n * k + {shared}

    def logged(function):
        @functools.wraps(function)
        def wrapper(n):
            return function(n) + {factor}
        return wrapper

    def closing(k):
        def inner(n):
            return n + k + {shared}
        return inner

    object_ = Scale({state})
    method = Scale({state}).method
    static = Scale.static
    class_method = Scale.helper
    class_ = Scale
    partial = functools.partial(plain, {state})
    cached = functools.lru_cache(plain)
    wrapped = logged(plain)
    closure = closing({state})
    nested = functools.partial(functools.partial(closure), k=Scale)
"""


@pytest.mark.parametrize(
    "name",
    [
        "object_",
        "method",
        "static",
        "class_method",
        "class_",
        "partial",
        "cached",
        "wrapped",
        "closure",
        "nested",
    ],
)
def test_every_kind_of_callable_is_looked_into(load: Import, name: str) -> None:
    """Its own code, what it inherits and wraps, and the values it carries along."""
    usual = {"shared": 1, "factor": 2, "state": 3}
    changes: list[dict[str, int]] = [{}, {"shared": 7}]
    if name not in ("static", "class_method", "class_"):
        changes.append({"state": 7})
    made = [
        getattr(load(KINDS.format(**{**usual, **each})), name)
        for each in [{}, *changes]
    ]
    digests = [code_digest(each).digest for each in made]

    assert digests[0] == digests[1]
    assert len(changes) == len({*digests})


def test_lambdas_on_one_line_are_told_apart(load: Import) -> None:
    """Those in others too, and those that return a constant."""
    source = """
        many = (lambda: 1, lambda: 2, lambda: None, lambda n: n, lambda n: -n,
                lambda: lambda: 3, lambda n: 1 if n else 2)
    """
    many = [*load(source).many]
    many.append(many[5]())
    digests = [code_digest(each).digest for each in many]

    assert len(many) == len({*digests})
    single = load("one = lambda: 2\ntwo = lambda m: -m\n")
    assert digests[1] == code_digest(single.one).digest
    assert digests[4] != code_digest(single.two).digest  # a call may name an argument


def test_a_definition_is_found_wherever_it_is(load: Import) -> None:
    """Under a condition, after text that looks like code, with decorators over many
    lines.
    """
    source = '''TEXT = """
def parse():
    return 0
"""
if TEXT:
    def parse(x=(1,
2)):
        return """Text:
here
""", {}
else:
    def parse():
        return 0
'''
    digests = [code_digest(load(source.format(n)).parse) for n in (1, 1, 2)]

    assert digests[0].digest == digests[1].digest != digests[2].digest
    assert "no source" not in str(digests[0].parts)


def test_a_function_may_refer_to_what_is_not_there_yet() -> None:
    """A local that is bound later."""

    def early() -> Any:
        return late

    before = code_digest(early)
    late = 1

    assert before.digest != code_digest(early).digest


def test_what_wraps_itself_has_a_digest(load: Import) -> None:
    """As broken decorators do."""
    module = load("import functools\n@functools.cache\ndef parse(n):\n    return n\n")
    module.parse.__wrapped__ = module.parse

    assert code_digest(module.parse) == code_digest(module.parse)


def test_a_class_without_source_counts_by_its_public_names(load: Import) -> None:
    """A named tuple, for example."""
    source = (
        "from collections import namedtuple\nP = namedtuple('P', {!r})\ndef f():\n    "
        "return P\n"
    )
    digests = {
        code_digest(load(source.format(each)).f).digest
        for each in ("a b", "b a", "a c")
    }

    assert 3 == len(digests)


# ---------------------------------------------------------------- no file


def test_code_without_source_is_told_by_its_bytecode() -> None:
    """And says so, as another Python compiles it to something else."""

    def made(source: str) -> CodeDigest:
        space: dict[str, Any] = {"__name__": __name__}
        exec(source, space)
        return code_digest(space["f"])

    bodies = ("return lambda: 1", "return lambda: 1", "return lambda: 2")
    one, two, three = (made(f"def f(n):\n    {each}") for each in bodies)

    assert one.digest == two.digest != three.digest
    (part,) = one.parts.values()
    assert "no source: bytecode of Python {}.{}".format(*sys.version_info) in part


def test_a_cell_of_a_notebook_is_source() -> None:
    """It is found where IPython leaves it for tracebacks."""

    def made(source: str) -> CodeDigest:
        name = f"<cell {next(_numbers)}>"
        linecache.cache[name] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            name,
        )
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source, name, "exec"), space)
        return code_digest(space["f"])

    source = (
        "class C:\n    def __init__(self): self.x = {}\n{}def f(n):\n    return C()\n"
    )
    one, two = made(source.format(1, "")), made(source.format(1, "x = 1\n"))

    assert one.digest == two.digest != made(source.format(2, "")).digest
    assert "no source" not in str(one.parts)


def test_a_value_that_raises_counts_by_its_type(load: Import) -> None:
    """Such as a proxy for what is there only while a request is served."""
    source = """
        class Proxy:
            def __getattribute__(self, name):
                raise RuntimeError("not now")
        proxy = Proxy()
        def parse():
            return proxy, [proxy]
    """
    found = code_digest(load(source).parse)

    assert found.digest == code_digest(load(source).parse).digest
    assert "Proxy: by type only, it raised an error" in str(found.parts)


def test_code_that_is_nested_very_deeply_is_told_by_its_bytecode(load: Import) -> None:
    """A sum of a thousand terms, for example."""
    source = "def parse(x):\n    return " + " + ".join(["x"] * 1000)

    assert "no source" in str(code_digest(load(source).parse).parts)


def test_a_file_that_is_no_longer_what_was_loaded_is_not_believed(load: Import) -> None:
    """If that can be seen: lines have moved. The digest is that of the code that
    runs.
    """
    module = load("def parse(x):\n    return x\n")
    before = code_digest(module.parse)
    file = Path(str(module.__file__))
    for more in ("import json\n\n", "this is (not Python\n"):
        file.write_text(more + file.read_text())
        assert "no source" in str(code_digest(module.parse).parts)
    assert "no source" not in str(before.parts)


def test_a_program_on_standard_input_has_digests() -> None:
    """Without any source at all."""
    program = (
        "from flowpregel._code.digest import code_digest\n"
        "K = 1\ndef f(n):\n    return n + K\nprint(*code_digest(f).parts)\n"
    )

    assert "__main__:f __main__:K" == run("-", given=program)


def test_a_function_by_value_has_the_same_digest_in_another_process(
    tmp_path: Path,
) -> None:
    """Workers get the functions of the main program by value."""
    (tmp_path / "script.py").write_text(
        "import subprocess, sys\n"
        "from flowpregel._code.digest import code_digest\n"
        "from flowpregel.executors.processes.wire.serialization import dumps\n"
        "K = 3\n"
        "class C:\n    x: int = K\n    def m(self):\n        return self.x\n"
        "def helper(n):\n    return C().m() + n\n"
        "def f(n):\n    return helper(n) + K\n"
        "code = 'import sys, pickle as p; f = p.load(sys.stdin.buffer);'\n"
        "code += 'from flowpregel._code.digest import code_digest as d; "
        "print(d(f).digest)'\n"
        "print(code_digest(f).digest)\n"
        "sys.stdout.flush()\n"
        "subprocess.run([sys.executable, '-c', code], input=dumps(f), check=True)\n"
    )
    here, there = run("script.py", cwd=tmp_path).split()

    assert here == there


def test_a_function_by_value_knows_its_file_in_another_process() -> None:
    """So do those inside it: their source is found by that, and shown in tracebacks."""

    def outer() -> Any:
        def inner() -> None: ...

        return inner

    there = loads(dumps(outer))

    assert (__file__, __file__) == (
        there.__code__.co_filename,
        there().__code__.co_filename,
    )
    assert outer.__code__.co_firstlineno == there.__code__.co_firstlineno


# every Python, many threads ------------------------------------------------


@pytest.mark.parametrize("samples", [code_samples, class_samples])
@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_has_the_same_digests(python: str, samples: Any) -> None:
    """Of the samples, which use all of the syntax, and of each part of them."""
    here = {name: code_digest(each) for name, each in samples.SAMPLES.items()}

    there = json.loads(run("-m", samples.__name__, python=python))

    assert {name: each.digest for name, each in here.items()} == {
        name: digest for name, (digest, _) in there.items()
    }
    assert [[*each.parts.values()] for each in here.values()] == [
        [*parts.values()] for _, parts in there.values()
    ]


def test_quoted_annotations_of_a_named_tuple_are_read() -> None:
    """A cache would refuse a task whose code refers to what cannot be read."""
    found = code_digest(class_samples.CLASSES["Unresolved"])

    assert () == found.unseen
    assert "'Missing'" in "".join(found.parts.values())


def test_threads_get_the_same_digests() -> None:
    """At the same time, each file read by whichever comes first."""
    linecache.clearcache()
    samples = [*code_samples.SAMPLES.values()] * 4
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(code_digest, samples)]

    assert [code_digest(each) for each in samples] == found


def test_a_digest_has_the_source_of_its_parts(load: Import) -> None:
    """For people who ask what changed: as it was written, and what constants hold."""
    source = "@staticmethod\ndef f(n: int) -> int:\n    # why\n    return n+K\n"
    found = code_digest(load(f"K = [3]\n{source}").f)

    assert source in found.source
    assert ":K = " in found.source.removeprefix(source)
