"""The parts of a task's code (functions, classes, constants, package versions) by name.
A record of them is stored with the source of the code, so that a message can name the
part that has changed.

A record has one line for each part, with the part's kind, name and content. The content
is the value of a small constant, the version of a package, or a digest. The size of a
record is bounded, and a record does not influence the digest of the code.
"""

from __future__ import annotations

import hashlib
import re
import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

from flowpregel._code.values import ATOMS

if TYPE_CHECKING:
    from flowpregel._code.units import Unit

PartKind: TypeAlias = Literal["constant", "function", "class", "version"]
MOST_PARTS: Final = 200
"""The greatest number of parts in a record."""
_MOST_PACKAGES: Final = 20
_LONGEST_NAME: Final = 120
_LONGEST_VALUE: Final = 60
_LONGEST_INT: Final = 128
"""The greatest number of bits of an int whose value is written into the record. For a
larger int, the record has a digest.
"""
_MOST_ITEMS: Final = 20
_VALUE: Final = "="
"""The prefix of a part's content that is a value. Any other content is a digest."""
_LINK: Final = re.compile(r"->\d+;")
"""A pattern for links from one unit (a function, class or constant) to another, in the
string that represents the unit. A link contains the number of the unit, which depends
on the order of the units. So the number is removed before a part's digest is computed.
"""
_KINDS: Final = frozenset({"constant", "function", "class", "version"})
_UNORDERED: Final = frozenset({set, frozenset})
_CONTAINERS: Final = frozenset({list, tuple}) | _UNORDERED


class CodePart(NamedTuple):
    """A function, class or constant to which code refers, or the version of a package
    that the code uses.
    """

    kind: PartKind
    name: str
    """The name of the function, class or constant without its module, or the name of
    the package.
    """
    content: str
    """The content: ``=`` and a value or a version, or a digest without the ``=``."""

    @property
    def value(self) -> str | None:
        """The value as a string, or None if only its digest is known."""
        if self.content.startswith(_VALUE):
            return self.content.removeprefix(_VALUE)
        return None


def unit_part(unit: Unit, meaning: str, *, is_constant: bool) -> CodePart:
    """Return the part that describes a unit (a function, class or constant).

    Args:
        unit: The unit to describe.
        meaning: The meaning of the unit.
        is_constant: True if the unit is a constant.
    """
    name = unit.name.rpartition(":")[2][:_LONGEST_NAME]
    kind: PartKind = "function"
    # Unit 0 is the root, whose digest is computed. It is recorded as a function even if
    # it is another callable object.
    if is_constant and unit.number:
        kind = "constant"
        text = _value_text(unit.value)
        if text is not None:
            return CodePart(kind, name, _VALUE + text)
    elif isinstance(unit.value, type):
        kind = "class"
    content = _LINK.sub("->;", meaning)
    data = content.encode("utf-8", "surrogatepass")
    return CodePart(kind, name, hashlib.blake2b(data, digest_size=8).hexdigest())


def version_parts(packages: Iterable[str]) -> list[CodePart]:
    """Return a part for each of the *packages* whose module has a version."""
    parts: list[CodePart] = []
    for package in packages:
        module = sys.modules.get(package)
        # The version is read from the variables of the module, because a module may
        # define a `__getattr__` that imports other modules.
        version = vars(module).get("__version__") if module else None
        if isinstance(version, str):
            text = " ".join(version[:_LONGEST_VALUE].split())
            parts.append(CodePart("version", package, _VALUE + text))
    return parts[:_MOST_PACKAGES]


def parts_record(parts: Iterable[CodePart]) -> str:
    """Return a record of *parts*, which `parts_in` reads."""
    lines = {"\t".join(part): None for part in parts}
    return "\n".join([*lines][:MOST_PARTS])


def parts_in(record: str) -> list[CodePart]:
    """Return the parts in a record. Lines of another form are left out."""
    parts: list[CodePart] = []
    for line in record.splitlines():
        fields = line.split("\t")
        if len(fields) == len(CodePart._fields) and fields[0] in _KINDS:
            kind, name, content = fields
            parts.append(CodePart(cast("PartKind", kind), name, content))
    return parts


def package_of(value: Any) -> str:
    """Return the top-level package of a module, class or function, or an empty string
    for the standard library.
    """
    home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    package = str(home).partition(".")[0]
    is_standard = package in sys.stdlib_module_names or package == "__main__"
    return "" if is_standard else package


def _value_text(value: Any) -> str | None:
    """Return the `repr` of a small value of a built-in type, or None for any other
    value.
    """
    items = [value]
    if type(value) is dict:
        items = [*value, *value.values()]
    elif type(value) in _CONTAINERS:
        items = [*value]
    if len(items) > _MOST_ITEMS or not all(map(_is_short, items)):
        return None
    text = repr(value)
    if type(value) in _UNORDERED:
        # The items of a set are sorted, because their order may differ between two
        # processes.
        text = f"{{{', '.join(sorted(map(repr, items)))}}}"
    return text if len(text) <= _LONGEST_VALUE else None


def _is_short(value: Any) -> bool:
    """Return whether *value* is a value with a short `repr`, such as a number or a
    short string.
    """
    if type(value) not in ATOMS:
        return False
    if isinstance(value, str | bytes):
        return len(value) <= _LONGEST_VALUE
    return not isinstance(value, int) or value.bit_length() <= _LONGEST_INT
