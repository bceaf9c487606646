"""A reader of code that follows a function to all definitions that it refers to.

::

    function ──► syntax tree ──► names in it ──► helpers, classes, constants ──► their
    trees ...

Each function, class and constant is a `Unit`. Each unit is *filled* once with its
meaning, in the order in which units are reached:

* The meaning of a function or class is the text of the syntax tree, followed by the
  values of the names that the definition uses but does not bind.
* The meaning of a constant is its content (`ValueWriter`).

The attributes that were set in a class after its body had run are written last, when
all units are filled. Only then is it known which of these attributes are set by
functions: such attributes are state, and left out. Writing the others may add units,
which are then filled too.

The digest is computed from all meanings, in this order. Where one unit refers to
another, its meaning contains a link with the number of the other unit, not a name, so
the digest does not depend on module names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flowpregel._code import values
from flowpregel._code.bindings import Bindings, weak_reference_to
from flowpregel._code.class_bodies import attributes_set
from flowpregel._code.classes import class_content, is_importable
from flowpregel._code.modules import Modules
from flowpregel._code.own_state import set_by_call
from flowpregel._code.parts import CodePart, unit_part, version_parts
from flowpregel._code.source import Definition, rebound_by, source_file
from flowpregel._code.units import Unit, Units
from flowpregel._code.value_writer import ValueWriter

_MISSING = object()
_LONGEST_MEANING = 1 << 20
"""The greatest number of characters in the meaning of a unit (the string that
represents the unit's code or content). A longer meaning is replaced by its length and
digest.
"""


class Constant(NamedTuple):
    """A constant whose value may change in place, and the meaning (the text for the
    digest) that was computed for it.
    """

    value: Callable[[], Any]
    """A function, such as a weak reference. It returns the constant, or None if the
    constant no longer exists.
    """
    meaning: str


@dataclasses.dataclass(frozen=True)
class CodeDigest:
    """The digest of the meaning of a function, with the parts from which the digest was
    computed.

    Example:
        >>> from flowpregel._code.digest import code_digest
        >>> def half(n):
        ...     return n / 2
        >>> code = code_digest(half)
        >>> len(code.digest), [name.partition(":")[2] for name in code.parts]
        (32, ['half(...)'])
    """

    digest: str
    """The digest, as 32 hexadecimal digits."""
    parts: Mapping[str, str]
    """The meaning of the function, and of each function, class and constant that it
    refers to, by ``module:name``. If the content of a part could not be read, its
    meaning contains a note about that.
    """
    # no mutant: Equal parts imply equal sources, so comparing `source` has no effect.
    source: str = dataclasses.field(repr=False, compare=False)
    """The source of the parts, which users can compare."""
    unseen: tuple[str, ...] = ()
    """The values whose content is not in the digest, by name and type: ``"`CLIENT`
    (http.Client)"``.
    """
    bindings: Bindings = dataclasses.field(
        default_factory=Bindings, repr=False, compare=False
    )
    """The objects to which the names in the code referred when the digest was
    computed.
    """
    constants: Mapping[str, Constant] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )
    """The constants that may change in place, by ``module:name``."""
    is_fixed: bool = dataclasses.field(default=True, compare=False)
    """True if no value in the digest can change in place."""
    named_parts: tuple[CodePart, ...] = dataclasses.field(
        default=(), repr=False, compare=False
    )
    """The parts in the form in which they are stored, and the versions of the packages
    that the code uses. The versions are not in the digest.
    """


class CodeReader:
    """A reader that follows references from unit to unit (function, class or constant)
    until no new unit is reached.

    Args:
        root: A function, method, partial, class, task or callable object.
        through_tasks: True to represent tasks and graphs by their functions, False to
            represent them by their names.
        earlier: The digest that the new digest replaces, if any. A constant that is
            still the same object keeps the meaning that it has in *earlier*.
    """

    def __init__(
        self, root: Any, *, through_tasks: bool, earlier: CodeDigest | None = None
    ) -> None:
        self._earlier: Mapping[str, Constant] = {}
        # The constants of the earlier digest do not show which of them contained values
        # that could not be read. So if there were such values, all constants are read
        # again.
        if earlier is not None and not earlier.unseen:
            self._earlier = earlier.constants
        self._root = values.peeled(root)
        home = values.home_of(self._root)
        self._modules = Modules(home)
        self._units = Units(self._modules)
        self._bindings = Bindings()
        self._writer = ValueWriter(
            self._units,
            self._modules,
            self._bindings,
            set_by_call(self._root),
            through_tasks=through_tasks,
        )
        self._constants: dict[str, Constant] = {}
        self._filled: set[str] = set()
        """The full names of the containers to which functions add items, so that their
        content is state.
        """
        self._rebound: set[str] = set()
        """The names that one of the definitions binds outside of itself (see
        `Definition.rebound`).
        """
        self._classes: list[tuple[Unit, type, Definition]] = []
        """The classes for which the attributes that were set after the class body had
        run must still be written.
        """
        if self._units.of_definition(self._root) is None:
            name = f"{values.module_of(home)}:{values.qualname(home)}(...)"
            self._units.add(0, name, self._root)

    def read(self) -> CodeDigest:
        """Return the digest of the root and of all units to which the root refers."""
        units = self._units.order
        # The list grows during the loop, because filling a unit may add units.
        for unit in units:
            self._fill(unit)
            if unit is units[-1]:
                self._write_attributes_set()
        parts: dict[str, str] = {}
        sources: list[str] = []
        named_parts: list[CodePart] = []
        for unit in units:
            name = unit.name
            while name in parts:
                name += "'"
            parts[name] = _meaning_of(unit)
            named_parts.append(self._part_of(unit, parts[name]))
            source = unit.source
            if source is None:
                source = f"{name} = {parts[name]}\n"
            if source:
                sources.append(source)
        named_parts += version_parts(self._writer.packages)
        self._bindings.close(self._rebound)
        return CodeDigest(
            _text_digest(repr(list(parts.values()))),
            parts,
            "\n".join(sources),
            tuple(self._writer.unseen),
            self._bindings,
            self._constants,
            self._writer.is_fixed,
            tuple(named_parts),
        )

    def _part_of(self, unit: Unit, meaning: str) -> CodePart:
        is_constant = self._units.is_constant(unit)
        return unit_part(unit, meaning, is_constant=is_constant)

    def tasks(self) -> list[Any]:
        """Return the tasks and graphs to which the code refers. `read` must have been
        called before.
        """
        return self._writer.tasks

    def _fill(self, unit: Unit) -> None:
        self._writer.begin_unit()
        if self._units.is_constant(unit):
            self._fill_constant(unit)
        elif isinstance(unit.value, type):
            self._fill_class(unit, unit.value)
        else:
            self._fill_function(unit, unit.value)

    # ------------------------------------------------------------ constants

    def _fill_constant(self, unit: Unit) -> None:
        value = unit.value
        earlier = self._earlier.get(unit.name)
        if earlier is not None and value is not None and earlier.value() is value:
            unit.tokens.append(earlier.meaning)
        elif re.split("[:.]", unit.name)[-1] in self._filled:
            self._writer.write(values.first_content(unit.name, value), unit)
        else:
            self._writer.write(value, unit)
        if unit.source is not None or type(value) in values.ATOMS:
            return
        meaning = _meaning_of(unit)
        # A constant is not remembered if its content refers to other units, such as
        # functions in a table: the next digest must read these units, and so the
        # constant, again.
        if "->" not in meaning:
            self._constants[unit.name] = Constant(weak_reference_to(value), meaning)

    # ------------------------------------------------------------ functions

    def _fill_function(self, unit: Unit, function: types.FunctionType) -> None:
        code = function.__code__
        variables = function.__globals__
        module = values.module_of(function)
        definition = source_file(code.co_filename, variables).function(code)
        if definition is None:
            definition = self._definition_without_source(unit, code)
        self._filled |= definition.filled
        self._bindings.note_function(function)
        self._write_definition(unit, definition, module, values.cells_of(function))
        for defaults in (function.__defaults__, function.__kwdefaults__):
            if defaults:
                self._writer.write(defaults, unit)
        class_ = values.class_of(code, variables)
        if isinstance(class_, type):
            name = code.co_qualname.partition(".")[0]
            self._note_name(module, name, name)
            self._writer.write(class_, unit)

    def _definition_without_source(
        self, unit: Unit, code: types.CodeType
    ) -> Definition:
        """Add the bytecode of a function to *unit*, in place of the source.

        Returns:
            A definition that contains the names in the bytecode, and no source.
        """
        version = sys.version_info
        unit.tokens.append(
            f"no source: bytecode of Python {version.major}.{version.minor};"
        )
        names = sorted(self._writer.write_code(code, unit))
        return Definition("", [(name,) for name in names], "", rebound=rebound_by(code))

    # ------------------------------------------------------------ classes

    def _fill_class(self, unit: Unit, class_: type) -> None:
        if is_importable(class_) and self._fill_from_source(unit, class_):
            return
        self._writer.is_fixed = False
        for name, value in class_content(class_):
            unit.tokens.append(f"|{name}=")
            self._writer.write(value, unit)

    def _fill_from_source(self, unit: Unit, class_: type) -> bool:
        """Add the source of a class to *unit*. Return False if the class has no
        source.
        """
        methods = [
            value
            for value in vars(class_).values()
            if isinstance(value, types.FunctionType)
        ]
        definition = self._definition_of_class(class_, methods)
        if definition is None:
            return False
        cells: dict[str, Any] = {}
        for method in methods:
            cells |= values.cells_of(method)
            self._bindings.note_function(method)
        self._write_definition(unit, definition, class_.__module__, cells)
        self._classes.append((unit, class_, definition))
        return True

    def _definition_of_class(
        self, class_: type, methods: list[types.FunctionType]
    ) -> Definition | None:
        module = self._modules.module(class_.__module__)
        # In a notebook, the module has no file. The file name of the class's methods is
        # the name of the cell that defines it.
        names = [module.file, *(method.__code__.co_filename for method in methods)]
        for name in names:
            file = source_file(name, module.variables)
            definition = file.class_(class_.__qualname__)
            if definition is not None:
                return definition
        return None

    def _write_attributes_set(self) -> None:
        """Write the class attributes that were set after the class bodies had run, as
        in ``A.k = 5``.

        An attribute that a function sets is state and is left out.
        """
        classes = self._classes
        self._classes = []
        for unit, class_, definition in classes:
            state = self._filled | definition.filled | self._attributes_rebound(class_)
            bound = definition.attributes
            for name, value in attributes_set(class_, bound):
                if name not in state:
                    unit.tokens.append(f"|{name} was set=")
                    self._writer.write(value, unit)
            self._bindings.note_attributes(class_, sorted(bound.keys() - state))

    def _attributes_rebound(self, class_: type) -> set[str]:
        """Return the names of those attributes of *class_* to which functions assign
        values.
        """
        names = set()
        for path in self._rebound:
            owner, _, name = path.rpartition(".")
            owner = owner.rpartition(".")[2]
            if owner in {class_.__name__, "cls", "__class__"}:
                names.add(name)
        return names

    # ------------------------------------------------------------ names

    def _write_definition(
        self,
        unit: Unit,
        definition: Definition,
        module: str,
        cells: Mapping[str, Any],
    ) -> None:
        """Write the definition of a function or class, and the values of the names that
        it uses but does not bind.

        Args:
            unit: The unit of the definition.
            definition: The definition.
            module: The name of the module.
            cells: The values that the definition closes over, by name.
        """
        unit.tokens.append(definition.meaning)
        unit.source = definition.source or None
        self._rebound |= definition.rebound
        for name, *attributes in definition.names:
            if name in cells:
                value, prefix = cells[name], f"{unit.name}."
            else:
                prefix = f"{module}:"
                value = self._modules.module(module).variables.get(name, _MISSING)
                if name not in self._modules.rebound(prefix):
                    self._note_name(module, name, name)
            self._write_reference(unit, value, prefix, [name, *attributes])

    def _write_reference(
        self, unit: Unit, value: Any, prefix: str, path: list[str]
    ) -> None:
        """Write the value of a name in the code, or, if the name refers to a near
        module, of the attribute that the code reads from it.

        Args:
            unit: The unit whose code refers to the value.
            value: The value of the first name of *path*.
            prefix: The beginning of the full name of *value*, such as ``module:``.
            path: The name, followed by the attributes that the code reads from it.
        """
        name = path[0]
        for position, attribute in enumerate(path[1:], 1):
            if not self._is_near_module(value):
                break  # no mutant: `continue` would test this value again.
            prefix, name = f"{value.__name__}:", attribute
            variables = vars(value)
            if name not in self._modules.rebound(prefix):
                text = ".".join(path[: position + 1])
                self._bindings.note_name(value, variables, name, text)
            value = variables.get(name, _MISSING)
        if name in self._modules.rebound(prefix):
            unit.tokens.append(f"{name} is rebound while running: by name only;")
        elif value is not _MISSING:
            # A name without a value is a builtin, or not defined yet, so there is
            # nothing to write.
            self._writer.write_named(value, unit, prefix + name)

    def _is_near_module(self, value: Any) -> bool:
        """Return whether *value* is a near module, so that its definitions are read
        (see `flowpregel._code.modules`).
        """
        # The type is checked with `type`, because `isinstance` could run code of the
        # value's class.
        if not issubclass(type(value), types.ModuleType):
            return False
        return self._modules.is_near(value.__name__)

    def _note_name(self, module: str, name: str, text: str) -> None:
        """Record the present value of a global name in the bindings, if the variables
        of the module can be read again later.

        Args:
            module: The name of the module.
            name: The name in the variables of the module.
            text: The name as the code writes it.
        """
        home = self._modules.module(module)
        if home.owner is not None:
            self._bindings.note_name(home.owner, home.variables, name, text)


def _text_digest(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _meaning_of(unit: Unit) -> str:
    """Return the meaning of a unit, or its length and digest if it is very long."""
    text = "".join(unit.tokens)
    if len(text) <= _LONGEST_MEANING:
        return text
    return f"{len(text)} characters: {_text_digest(text)}"
