"""Digests of code: whose source is read, and which of its changes count."""

from __future__ import annotations

import importlib
import linecache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from flowpregel._code.digest import KeptDigest, code_digest
from flowpregel._code.source import source_file
from flowpregel._pickling.digest import digest_of
from tests.unit.code.code_packages import Import, load

__all__ = ["load"]  # a fixture


def same(one: Any, other: Any) -> bool:
    """Return whether two functions or objects have one digest."""
    return code_digest(one).digest == code_digest(other).digest


# ---------------------------------------------------------------- callable objects

COUNTING = """
    class Counting:
        def __init__(self, weight=1):
            self.weight = weight
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return self.weight * x

        def set_weight(self, weight):
            self.weight = weight
"""


def test_what_a_call_of_an_object_sets_is_state_and_no_code(load: Import) -> None:
    """A counter of its own calls does not make another function of it."""
    counting = load(COUNTING).Counting()
    before = code_digest(counting).digest

    counting(3)

    assert before == code_digest(counting).digest


@pytest.mark.parametrize(
    ("base", "body"),
    [
        ("", "calls = 0"),
        ("(dict)", "calls = 0"),
        ("", "weight, calls = 1, 0\n__init__ = lambda self: setattr(self, 'k', 2)"),
        ("", "__slots__ = 'calls'"),
        ("", "__slots__ = ('calls', '__dict__')"),
        ("(tuple)", "calls = 0"),
    ],
)
def test_the_first_attribute_that_a_call_sets_is_state_as_well(
    load: Import, base: str, body: str
) -> None:
    """It is in the class, or nowhere, before."""
    lines = body.replace("\n", "\n            ")
    text = f"""
        class Counting{base}:
            {lines}

            def __call__(self):
                self.calls = getattr(self, "calls", 0) + 1
    """
    counting = load(text).Counting()
    before = code_digest(counting).digest

    counting()

    assert before == code_digest(counting).digest


def test_what_a_call_sets_is_found_behind_attributes_that_are_no_methods(
    load: Import,
) -> None:
    """However many of them it names before."""
    names = [f"k{number}" for number in range(50)]
    text = f"""
        class Counting:
            {" = ".join(names)} = 1

            def __init__(self):
                self.calls = 0

            def __call__(self, x):
                self.count()
                return x + {" + ".join(f"self.{name}" for name in names)}

            def count(self):
                self.calls += 1
    """
    counting = load(text).Counting()
    before = code_digest(counting).digest

    counting(3)

    assert before == code_digest(counting).digest


def test_a_container_that_a_call_of_an_object_fills_is_state(load: Import) -> None:
    """As one that it sets is."""
    logging = load(
        """
        class Logging:
            def __init__(self):
                self.rows = []

            def __call__(self, x):
                self.rows.append(x)
        """
    ).Logging()
    before = code_digest(logging).digest

    logging(3)

    assert before == code_digest(logging).digest


def test_what_no_call_of_an_object_sets_counts(load: Import) -> None:
    """Another weight makes another function, also beside a counter."""
    counting = load(COUNTING).Counting()
    before = code_digest(counting).digest

    counting.set_weight(2)

    assert before != code_digest(counting).digest


# ---------------------------------------------------------------- kept digests


def test_a_kept_digest_is_taken_anew_when_the_class_of_a_method_is_another(
    load: Import,
) -> None:
    """A method may call the others of the class that its module has under the name."""
    module = load(
        """
        class Steps:
            def first(self):
                return self.second()

            def second(self):
                return 1
        """
    )
    notes: list[Any] = []
    kept = KeptDigest(module.Steps.first, notes.append)
    before = kept.now()
    assert before is kept.now()

    class Steps:
        def second(self) -> int:
            return 2

    module.Steps = Steps

    assert before.digest != kept.now().digest
    assert [before, kept.now()] == notes


# ---------------------------------------------------------------- bodies of classes


def test_a_class_whose_body_imports_has_a_digest(load: Import) -> None:
    """What the body binds by an import was not set later, under whichever name."""
    text = """
        class Reader:
            import json
            import os.path as paths
            {more}

            def __call__(self):
                return self.json.dumps(1)
    """
    module, other = load(text.format(more="")), load(text.format(more="depth = 1"))

    assert same(module.Reader, load(text.format(more="")).Reader)
    assert not same(module.Reader, other.Reader)


@pytest.mark.parametrize("name", ["k", "k__", "_k"])
def test_an_attribute_that_was_set_later_counts_whatever_its_name(
    load: Import, name: str
) -> None:
    """All but special names, such as ``__doc__``."""
    text = """
        class A:
            def __call__(self):
                return 1
    """
    one, other = load(text), load(text)
    assert same(one.A, other.A)

    setattr(other.A, name, 5)

    assert not same(one.A, other.A)


# ---------------------------------------------------------------- which source it is


def test_the_first_of_several_decorators_counts(load: Import) -> None:
    """A definition begins with it, though it may leave no trace in the function."""
    text = """
        def mark(text):
            return lambda function: function

        @mark("{first}")
        @mark("last")
        def work(x):
            return x
    """
    one, other = load(text.format(first="a")), load(text.format(first="b"))

    assert not same(one.work, other.work)


def test_a_function_around_text_at_the_margin_is_found(load: Import) -> None:
    """The lines of the text look like statements of the module."""
    text = '''
def work(x):
    """{docs}

margin
"""
    return x
'''
    one, other = load(text.format(docs="One.")), load(text.format(docs="Two."))
    code = one.work.__code__

    assert source_file(code.co_filename, vars(one)).function(code) is not None
    assert same(one.work, other.work)


CONDITIONAL = """
class A:
    def of(self):
        return 0

if True:
    class A:
        class Inner:
            def of(self):
                return {number}

        def of(self):
            return {number}

def other():
    class A:
        def of(self):
            return 3
"""


@pytest.mark.parametrize("name", ["A", "A.Inner"])
def test_of_two_classes_with_one_name_the_last_one_is_read(
    load: Import, name: str
) -> None:
    """Wherever it is defined, but in no function."""
    one, other = (
        attrgetter(name)(load(CONDITIONAL.format(number=number))) for number in (1, 2)
    )

    source = code_digest(one).source
    assert not same(one, other)
    assert f"class {one.__name__}:" in source
    assert "return 1" in source
    assert "return 0" not in source
    assert "return 3" not in source


@pytest.mark.parametrize("parameters", ["x, z", "z, y", "x", "x, y, z"])
def test_a_file_that_was_edited_since_is_not_taken_for_the_source(
    load: Import, parameters: str
) -> None:
    """A definition of other parameters at the same line is another function."""
    module = load("def work(x, y):\n    return x\n")
    code = module.work.__code__
    assert source_file(code.co_filename, vars(module)).function(code) is not None

    edited = f"def work({parameters}):\n    return x  # edited\n"
    Path(code.co_filename).write_text(edited, encoding="utf-8")
    linecache.checkcache(code.co_filename)

    assert source_file(code.co_filename, vars(module)).function(code) is None


@pytest.mark.parametrize("name", ["work", "Outer.Inner"])
def test_a_definition_is_read_though_another_statement_is_no_python(
    load: Import, name: str
) -> None:
    """A file that is being edited may not parse as a whole."""
    module = load(
        """
        def work(x):
            return x

        class Outer:
            class Inner:
                limit = 1
        """
    )
    definition = attrgetter(name)(module)
    before = code_digest(definition)

    with Path(str(module.__file__)).open("a", encoding="utf-8") as file:
        file.write("this is (not Python\n")

    assert before == code_digest(definition)


@pytest.mark.parametrize("statement", ["import json", "import os.path as json"])
def test_what_a_function_imports_itself_is_a_local_name(
    load: Import, statement: str
) -> None:
    """A global of the same name does not count for it, with or without ``as``."""
    text = """
        json = {number}

        def work():
            {statement}
            return json
    """
    one = load(text.format(number=1, statement=statement))
    other = load(text.format(number=2, statement=statement))

    assert same(one.work, other.work)


# ---------------------------------------------------------------- constants


def test_an_error_among_the_constants_counts_by_its_content(load: Import) -> None:
    """Its notes do not, nor where it was raised: an attribute does."""
    module = load(
        """
        PLAIN = ValueError("plain")
        CODED = ValueError("coded")
        CODED.code = 1

        def work():
            raise CODED from PLAIN
        """
    )
    before = code_digest(module.work).digest

    with pytest.raises(ValueError, match="coded") as raised:
        module.work()
    raised.value.add_note("from a test")
    module.PLAIN.add_note("from a test")
    assert before == code_digest(module.work).digest

    module.CODED.code = 2
    assert before != code_digest(module.work).digest


def test_the_code_of_the_users_classes_counts_where_results_are_shared(
    load: Import,
) -> None:
    """Of a class of the standard library the name is enough, of an edited one not."""
    text = """
        class Scale:
            def __init__(self):
                self.factor = 2

            def of(self, x):
                return self.factor * x
    """
    module = load(text)
    before = digest_of(module.Scale(), "the argument", strict=True)
    file = Path(module.__file__ or "")

    edited = file.read_text(encoding="utf-8").replace("* x", "+ x + 0")
    file.write_text(edited, encoding="utf-8")
    importlib.reload(module)

    assert before != digest_of(module.Scale(), "the argument", strict=True)
