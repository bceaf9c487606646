"""The package keeps the rules of the house, but for a list of breaches that shrinks."""

from __future__ import annotations

import pytest

from tests.house.rules import (
    FILE_LINES,
    RULES,
    Source,
    breaches,
    dense_rooms,
    known_breaches,
    package_sources,
    shared_function_names,
    sources,
)


def test_no_file_breaks_more_rules_than_the_list_allows() -> None:
    """Each file has at most the breaches that ``broken.toml`` counts for it."""
    files = sources()
    assert "flowpregel/errors.py" in {source.name for source in files}
    known = known_breaches()

    excess = [
        line
        for source in files
        for rule, lines in breaches(source).items()
        if len(lines) > known.get(source.name, {}).get(rule, 0)
        for line in (f"{rule}:", *lines)
    ]

    assert [] == excess


def test_the_list_of_breaches_names_no_file_that_is_gone() -> None:
    """A file that was moved or removed is no longer listed, nor is an empty room."""
    names = {source.name for source in sources()}
    rooms = {name.rpartition("/")[0] + "/" for name in names}

    assert set() == set(known_breaches()) - names - rooms


def test_no_room_is_denser_than_the_list_allows() -> None:
    """A folder of the package has at most 7.0 tokens a code line, but for those that
    the list names.
    """
    known = known_breaches()

    excess = {
        room: tenths
        for room, tenths in dense_rooms(package_sources()).items()
        if tenths > known.get(room, {}).get("dense_room", 0)
    }

    assert {} == excess


@pytest.mark.parametrize(
    ("text", "excess"),
    [
        ("x = 1\n" * 40, {}),
        ("x = (1, 2, 3)\n" * 40, {"flowpregel/room/": 20}),
        ("x = (1, 2, 3)\n" * 20, {}),
    ],
)
def test_a_room_is_dense_over_seven_tokens_a_code_line(
    text: str, excess: dict[str, int]
) -> None:
    """The measure itself; a room of a few lines is left to chance."""
    assert excess == dense_rooms([Source("flowpregel/room/m.py", text)])


def test_module_functions_have_one_owner_each() -> None:
    """No two files of the package define a module function of the same name."""
    assert [] == list(shared_function_names(package_sources()))


@pytest.mark.parametrize(
    ("rule", "text", "count"),
    [
        ("large_file", "x = 1\n\n# why\n" * FILE_LINES, 0),
        ("large_file", "x = 1\n" * (FILE_LINES + 1), 1),
        ("long_function", "def f():\n" + "    pass\n" * 39, 0),
        ("long_function", "async def f():\n" + "    pass\n" * 40, 1),
        ("long_function", 'def f():\n    """A.\n\n    B."""\n' + "    pass\n" * 39, 0),
        ("complex_function", "def f():\n" + "    if a: pass\n" * 12, 0),
        ("complex_function", "def f():\n" + "    if a: pass\n" * 13, 1),
        ("complex_function", "def f():\n" + "    x = a if b else c\n" * 13, 1),
        ("complex_function", "def f():\n" + "    x = a and b\n" * 13, 1),
        ("complex_function", "def f():\n" + "    for a in b:\n     if a: b\n" * 5, 1),
        (
            "large_record",
            "class C:\n" + "".join(f"    f{n}: int\n" for n in range(12)),
            0,
        ),
        (
            "large_record",
            "class C:\n" + "".join(f"    f{n}: int\n" for n in range(13)),
            1,
        ),
        (
            "large_record",
            "@dataclass(frozen=True)\nclass C:\n"
            + "".join(f"    f{n}: int\n" for n in range(13)),
            0,
        ),
        (
            "large_record",
            "class C(Options, total=False):\n"
            + "".join(f"    f{n}: int\n" for n in range(13)),
            0,
        ),
        ("clause_docstring", '"""What it is."""\n', 1),
        ("clause_docstring", '"""Return what it is."""\n', 0),
        ("clause_docstring", 'class C:\n    x: int\n    """Of the run."""\n', 1),
        ("banned_phrase", '"""Return a lock for whoever waits."""\n', 1),
        ("banned_phrase", "# nobody waits\nx = 'nobody'\n", 1),
        ("banned_message", "x = f'{n} calls were run ' 'anew'\n", 1),
        ("banned_message", 'def f():\n    """Go on with it."""\n', 0),
        ("no_noun", "for each in x: pass\n", 1),
        ("no_noun", "def f(place): pass\n", 1),
        ("no_noun", "def f(left): pass\n", 1),
        ("no_noun", "def f(left, right): pass\n", 0),
        ("no_noun", "for task in x: pass\n", 0),
        ("long_line", "x = 1  # noqa: E1 - " + 68 * "a" + "\n", 0),
        ("long_line", "x = 1  # noqa: E1 - " + 69 * "a" + "\n", 1),
        ("skipped_format", "x = 1  # fmt: skip\n", 1),
    ],
)
def test_each_rule_finds_what_breaks_it(rule: str, text: str, count: int) -> None:
    """The measure itself, at its limits."""
    assert count == len(list(RULES[rule](Source("flowpregel/m.py", text))))
