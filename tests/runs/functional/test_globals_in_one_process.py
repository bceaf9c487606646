"""Code whose globals change between two runs of one process, as in a notebook."""

from __future__ import annotations

import gc
import linecache
import sys
import types
import weakref
from functools import partial
from itertools import count
from typing import Any

import pytest

from flowpregel._code.digest import code_of
from flowpregel.cache.memory import InMemoryCache
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import CodeChangedError
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from flowpregel.policies import CachePolicy
from tests.runs.replay.test_finished_runs import told

pytestmark = pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")

CELLS = """
from typing import TypedDict
from flowpregel.func import task

K = 1
CONFIG = {"factor": 1, "inner": [1]}
ROWS = []
COUNT = 0

def helper(x):
    return K * x

def scaled(x, by=K):
    return by * x

@task(cache=True)
def shared(x):
    return helper(x)

@task(executor="inline")
def work(x):
    return helper(x)

@task(cache=True)
def configured(x):
    return CONFIG["factor"] * x * CONFIG["inner"][0]

@task(executor="inline")
def plainly_configured(x):
    return CONFIG["factor"] * x

@task(executor="inline")
def mixed(x):
    return helper(x) * CONFIG["factor"]

@task(executor="inline")
def noting(x):
    global COUNT
    COUNT += 1
    ROWS.append(x)
    return len(ROWS)

@task(executor="inline")
def with_default(x):
    return scaled(x)

class Settings:
    factor = 1
    calls = 0

    def scale(self, x):
        Settings.calls += 1
        return self.factor * x

@task(cache=True)
def with_class(x):
    return Settings().scale(x)

@task(executor="inline")
def plainly_with_class(x):
    return Settings().scale(x)

class State(TypedDict):
    x: int
    y: int

def node(state):
    return {"y": K * state["x"] * CONFIG["factor"]}
"""


@pytest.fixture
def cells() -> dict[str, Any]:
    """Return the variables of a notebook in which `CELLS` has run."""
    variables: dict[str, Any] = {"__name__": "notebook_of_the_test"}
    run_cell(CELLS, variables)
    return variables


_numbers = count(1)


def run_cell(text: str, variables: dict[str, Any]) -> None:
    """Run a cell as IPython does: its lines are known under a name of its own."""
    name = f"<ipython-input-{next(_numbers)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec"), variables)


def summed(called: Any, **options: Any) -> Any:
    """Return a workflow that makes one call for each of its numbers."""

    @entrypoint(**{"executor": "inline", **options})
    def flow(numbers: list[int]) -> list[Any]:
        return [called(n).result() for n in numbers]

    return flow


def test_a_global_bound_anew_is_a_miss_in_the_cache(
    cells: dict[str, Any], executor: str
) -> None:
    """It is one that only a helper of the task refers to."""
    flow = summed(cells["shared"], cache=InMemoryCache(), executor=executor)

    assert flow.invoke([2]) == [2]
    cells["K"] = 5
    assert flow.invoke([2]) == [10]
    cells["K"] = 1
    assert flow.invoke([2]) == [2]


def test_a_helper_bound_anew_is_a_miss_in_the_cache(cells: dict[str, Any]) -> None:
    """So is another function under its name."""
    flow = summed(cells["shared"], cache=InMemoryCache())

    assert flow.invoke([2]) == [2]
    run_cell("def helper(x):\n    return 7 * x", cells)
    assert flow.invoke([2]) == [14]


def test_an_attribute_set_in_a_class_is_a_miss_in_the_cache(
    cells: dict[str, Any], executor: str
) -> None:
    """One that its own code counts in is not."""
    flow = summed(cells["with_class"], cache=InMemoryCache(), executor=executor)

    assert flow.invoke([2, 2]) == [2, 2]
    cells["Settings"].factor = 5
    assert flow.invoke([2]) == [10]
    cells["Settings"].factor = 1
    assert flow.invoke([2]) == [2]


def test_an_attribute_set_in_a_class_is_other_code_in_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The class is one of a notebook: its module has no file, and its name leads to
    it.
    """
    module = types.ModuleType("notebook_of_classes")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cells = vars(module)
    run_cell(CELLS, cells)
    flow = summed(cells["plainly_with_class"], checkpointer=InMemorySaver())

    assert ([2, 2], []) == told(flow, [2, 2], id="1")
    assert ([2, 2], []) == told(flow, [2, 2], id="1")
    cells["Settings"].factor = 5
    _, (notice,) = told(flow, [2, 2], id="1")
    assert "the code of `plainly_with_class` has changed since" in notice


def test_a_dict_changed_in_place_is_a_miss_in_the_cache(
    cells: dict[str, Any], executor: str
) -> None:
    """Wherever in it the change is."""
    flow = summed(cells["configured"], cache=InMemoryCache(), executor=executor)

    assert flow.invoke([2]) == [2]
    cells["CONFIG"]["factor"] = 5
    assert flow.invoke([2]) == [10]
    cells["CONFIG"]["inner"][0] = 2
    assert flow.invoke([2]) == [20]


def test_a_list_closed_over_that_changes_in_place_is_a_miss_in_the_cache() -> None:
    """The names of the closure are bound to what they were."""
    factors = [1]

    @task(executor="inline", cache=True)
    def work(x: int) -> int:
        return factors[0] * x

    flow = summed(work, cache=InMemoryCache())

    assert flow.invoke([2]) == [2]
    factors[0] = 5
    assert flow.invoke([2]) == [10]


def test_the_cached_method_of_an_object_sees_a_global_bound_anew(
    cells: dict[str, Any],
) -> None:
    """All objects of the class share the results, before and after."""
    run_cell(
        "class Work:\n"
        "    @task(executor='inline', cache=True)\n"
        "    def scaled(self, x):\n"
        "        return K * x\n",
        cells,
    )
    flow = summed(lambda n: cells["Work"]().scaled(n), cache=InMemoryCache())

    assert flow.invoke([2]) == [2]
    cells["K"] = 5
    assert flow.invoke([2]) == [10]


def test_a_node_of_a_graph_misses_too(cells: dict[str, Any]) -> None:
    """For a global bound anew, and for a dict changed in place."""
    graph = StateGraph(cells["State"])
    graph.add_node("node", cells["node"], cache_policy=CachePolicy())
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    app = graph.compile(cache=InMemoryCache())

    assert app.invoke({"x": 2})["y"] == 2
    cells["K"] = 5
    assert app.invoke({"x": 2})["y"] == 10
    cells["CONFIG"]["factor"] = 2
    assert app.invoke({"x": 2})["y"] == 20


def failing_once(called: Any, saver: Any) -> tuple[Any, list[bool]]:
    """Return a workflow that makes a call and fails, until the list is empty."""
    broken = [True]

    @entrypoint(checkpointer=saver, executor="inline")
    def flow(n: int) -> Any:
        result = called(n).result()
        if broken:
            raise OSError("not yet")
        return result

    return flow, broken


@pytest.mark.parametrize("name", ["K", "helper"])
def test_going_on_with_a_global_bound_anew_is_refused(
    cells: dict[str, Any], name: str
) -> None:
    """The call is recorded, and ``on_code_change="error"`` does not use what other code
    made.
    """
    flow, broken = failing_once(cells["work"], InMemorySaver())
    with pytest.raises(OSError, match="not yet"):
        flow.run(2, id="t", on_code_change="error")
    broken.clear()
    run_cell("K = 5" if name == "K" else "def helper(x):\n    return 7 * x", cells)

    with pytest.raises(CodeChangedError):
        flow.run(2, id="t", on_code_change="error")
    assert flow.run(2, id="t", on_code_change="rerun") == (10 if name == "K" else 14)


def test_other_defaults_of_a_helper_are_other_code(cells: dict[str, Any]) -> None:
    """They may be set on the function itself."""
    flow, broken = failing_once(cells["with_default"], InMemorySaver())
    with pytest.raises(OSError, match="not yet"):
        flow.run(2, id="t")
    broken.clear()
    cells["scaled"].__defaults__ = (5,)

    with pytest.raises(CodeChangedError):
        flow.run(2, id="t", on_code_change="error")


def test_a_kept_result_gets_its_notice(cells: dict[str, Any]) -> None:
    """The finished run is asked for again in the process that ran it."""
    flow = summed(cells["work"], checkpointer=InMemorySaver())
    assert told(flow, [2], id="t") == ([2], [])
    assert told(flow, [2], id="t") == ([2], [])
    cells["K"] = 5

    result, notices = told(flow, [2], id="t")

    assert result == [2]
    assert len(notices) == 1
    assert "work" in notices[0]


def test_what_tasks_change_in_place_is_no_other_code(cells: dict[str, Any]) -> None:
    """A list that a task appends to, a counter: nothing is told, refused or
    repeated.
    """
    flow, broken = failing_once(cells["noting"], InMemorySaver())
    with pytest.raises(OSError, match="not yet"):
        flow.run(2, id="t")
    broken.clear()
    cells["CONFIG"]["factor"] = 5

    assert told(flow, 2, id="t", on_code_change="error") == (1, [])
    assert cells["ROWS"] == [2]
    assert cells["COUNT"] == 1


def test_a_dict_changed_in_place_is_no_other_code_in_a_record(
    cells: dict[str, Any],
) -> None:
    """A record is compared with what names refer to; a program may fill what they refer
    to.
    """
    flow = summed(cells["plainly_configured"], checkpointer=InMemorySaver())
    assert told(flow, [2], id="t") == ([2], [])
    cells["CONFIG"]["factor"] = 5

    assert told(flow, [2], id="t", on_code_change="error") == ([2], [])


def test_a_body_whose_global_is_bound_anew_is_other_code(cells: dict[str, Any]) -> None:
    """The kept result of the workflow has its notice."""
    run_cell("def body(n):\n    return K * n\n", cells)
    flow = entrypoint(checkpointer=InMemorySaver(), executor="inline")(cells["body"])
    assert told(flow, 2, id="t") == (2, [])
    cells["K"] = 5

    _, notices = told(flow, 2, id="t")

    assert len(notices) == 1


def test_a_cell_that_runs_again_makes_no_other_code(cells: dict[str, Any]) -> None:
    """It binds its names to equal objects; what changed in place meanwhile is state as
    before.
    """
    flow = summed(cells["mixed"], checkpointer=InMemorySaver())
    assert told(flow, [2], id="t") == ([2], [])
    cells["CONFIG"]["factor"] = 5
    run_cell("def helper(x):\n    return K * x\n", cells)

    assert told(flow, [2], id="t", on_code_change="error") == ([2], [])

    run_cell("def helper(x):\n    return 7 * x\n", cells)
    _, notices = told(flow, [2], id="t")
    assert len(notices) == 1


def test_a_global_bound_anew_is_other_code_to_a_closure_that_changed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That a closure holds something else is no edit; that a global is bound anew is
    one.
    """
    notebook = types.ModuleType("another_notebook_of_the_test")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    cells = vars(notebook)
    run_cell(
        "from flowpregel.func import task\n"
        "K = 1\n"
        "def made():\n"
        "    by = 1\n"
        "    @task(executor='inline')\n"
        "    def work(x):\n"
        "        return K * by * x\n"
        "    def bind(value):\n"
        "        nonlocal by\n"
        "        by = value\n"
        "    return work, bind\n",
        cells,
    )
    work, bind = cells["made"]()
    flow = summed(work, checkpointer=InMemorySaver())
    assert told(flow, [2], id="t") == ([2], [])
    bind(3)
    assert told(flow, [2], id="other") == ([6], [])
    assert told(flow, [2], id="t") == ([2], [])
    cells["K"] = 5

    _, notices = told(flow, [2], id="t")

    assert len(notices) == 1


@pytest.mark.parametrize("is_counter", [False, True])
def test_an_attribute_of_a_module_is_a_constant_unless_the_code_sets_it(
    monkeypatch: pytest.MonkeyPatch, is_counter: bool
) -> None:
    """``settings.factor`` bound anew is other code; ``settings.factor += 1`` in a task
    is state.
    """
    settings = types.ModuleType("package_of_the_test.settings")
    monkeypatch.setitem(sys.modules, settings.__name__, settings)
    run_cell("factor = 1\n", vars(settings))
    cells: dict[str, Any] = {
        "__name__": "package_of_the_test.work",
        "settings": settings,
    }
    run_cell(
        "from flowpregel.func import task\n"
        "@task(executor='inline')\n"
        "def work(x):\n"
        f"    {'settings.factor += 1' if is_counter else 'pass'}\n"
        "    return settings.factor * x\n",
        cells,
    )
    flow = summed(cells["work"], checkpointer=InMemorySaver())
    first = [4] if is_counter else [2]
    assert told(flow, [2], id="t") == (first, [])
    if not is_counter:
        settings.__dict__["factor"] = 5

    result, notices = told(flow, [2], id="t")

    assert result == first
    assert len(notices) == (0 if is_counter else 1)


def test_what_a_digest_was_taken_of_can_go() -> None:
    """A closure that refers to itself is not kept alive by the digest that is kept of
    it.
    """

    def made() -> Any:
        def body(n: int) -> Any:
            return body if n else None

        return body

    body = made()
    code_of(body)
    gone = weakref.ref(body)
    del body
    gc.collect()

    assert gone() is None


# objects that are called ---------------------------------------------------


class Model:
    """A model with a weight, that counts its calls and keeps what it has computed."""

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.calls = 0
        self.memory: dict[int, int] = {}

    def __call__(self, x: int) -> int:
        self.calls += 1
        return self._remembered(x)

    def predict(self, x: int) -> int:
        return self(x)

    def set_weight(self, weight: int) -> None:
        self.weight = weight

    def _remembered(self, x: int) -> int:
        self.memory[x] = self.weight * x
        return self.memory[x]


class SlottedModel:
    """The same, with slots."""

    __slots__ = ("calls", "weight")

    def __init__(self, weight: int) -> None:
        self.weight, self.calls = weight, 0

    def __call__(self, x: int) -> int:
        self.calls += 1
        return self.weight * x

    def predict(self, x: int) -> int:
        return self(x)

    def set_weight(self, weight: int) -> None:
        self.weight = weight


@pytest.mark.parametrize("kind", [Model, SlottedModel])
@pytest.mark.parametrize("form", ["instance", "method", "partial"])
def test_another_weight_of_a_model_is_a_miss_and_a_counter_is_not(
    kind: Any, form: str
) -> None:
    """However it is called, and whether the weight is set from outside or by a
    method.
    """
    model: Any = kind(1)
    called = {"instance": model, "method": model.predict, "partial": partial(model)}[
        form
    ]
    shared = task(executor="inline", cache=True, name="shared")(called)
    flow = summed(shared, cache=InMemoryCache())

    assert [2] == flow.invoke([2])
    assert [2] == flow.invoke([2])
    assert 1 == model.calls
    model.weight = 2
    assert [4] == flow.invoke([2])
    model.set_weight(3)
    assert [6] == flow.invoke([2])
    assert [6] == flow.invoke([2])
    assert 3 == model.calls


def test_another_weight_of_a_node_is_a_miss_and_a_counter_is_not() -> None:
    model = Model(1)
    builder = StateGraph(int).add_node("model", model, cache_policy=CachePolicy())
    builder.add_edge(START, "model").add_edge("model", END)
    graph = builder.compile(cache=InMemoryCache(), executor="inline")

    results = [graph.invoke(2) for _ in range(2)]
    model.weight = 2
    results += [graph.invoke(2) for _ in range(2)]

    assert [2, 2, 4, 4] == results
    assert 2 == model.calls
