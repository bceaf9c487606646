"""A digest of what a function does: of its code, and of all that its code refers to.

    function ──► syntax tree ──► names in it ──► helpers, classes, constants ──► their
    trees ...

Each of these is a *unit* with a digest of its own. The digest of the function is that
of all its units, in the order in which they are reached, and of how they refer to each
other. Looked into is what belongs to the package or folder of the function; everything
else counts by its name.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Set, Sized
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from flowpregel._code import values
from flowpregel._code.bindings import Bindings, weak_reference_to
from flowpregel._code.class_bodies import attributes_set
from flowpregel._code.classes import class_content, is_importable
from flowpregel._code.own_state import set_by_call
from flowpregel._code.source import Found, rebound_by, source_file
from flowpregel._code.tree import constant_text

_MISSING = object()


@dataclasses.dataclass(frozen=True)
class CodeDigest:
    """What a function does, in short.

    Example:
        >>> def half(n):
        ...     return n / 2
        >>> found = code_digest(half)
        >>> len(found.digest), [name.partition(":")[2] for name in found.parts]
        (32, ['half'])
    """

    digest: str
    """32 hex digits."""
    parts: Mapping[str, str]
    """By ``module:name``, what the digest is made of: what the function means, and each
    function, class and constant that it refers to. It says so where something could not
    be looked into.
    """
    # no mutant: it follows from the parts
    source: str = dataclasses.field(repr=False, compare=False)
    """The source of these parts, to be compared by people."""
    unseen: tuple[str, ...] = ()
    """The values whose content it does not see, by name and type: ``"`CLIENT`
    (http.Client)"``.
    """
    bindings: Bindings = dataclasses.field(
        default_factory=Bindings, repr=False, compare=False
    )
    """What the names in these parts referred to."""
    constants: Mapping[str, tuple[Callable[[], Any], str]] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )
    """By name, the constants that may change in place, and what each meant."""
    is_fixed: bool = dataclasses.field(default=True, compare=False)
    """Whether it is of objects alone that cannot change in place."""


class KeptDigest:
    """The digest of a function, taken again when a name in its code refers to something
    else.

    What a program changes in place, such as a list that its tasks fill, is state: that
    makes no other code of it.

    Args:
        function: What `code_digest` takes.
        note: Called with each digest that is taken.
    """

    def __init__(self, function: Any, note: Callable[[CodeDigest], None]) -> None:
        self._function = function
        self._note = note
        self._known: CodeDigest | None = None

    def now(self) -> CodeDigest:
        """Return the digest of the code as it is now."""
        known = self._known
        if known is None or not known.bindings.hold():
            known = self._known = code_digest(self._function, earlier=known)
            self._note(known)
        return known


def code_digest(
    function: Any, *, through_tasks: bool = True, earlier: CodeDigest | None = None
) -> CodeDigest:
    """Return a digest of what *function* does.

    It is the same in every process and every version of Python, and whatever layout,
    comments, docstrings, annotations and names of locals are.

    Args:
        function: A function, method, partial, class, task, or an object that can be
            called.
        through_tasks: Whether the tasks and graphs that it refers to count by what
            they do; otherwise they count by name.
        earlier: The digest that this one takes the place of: a constant that is the
            same object as then means what it did, though it may have changed in place.
    """
    return _Reader(function, through_tasks, earlier).read()


_MOST_REDUCTIONS = 20_000
"""Of so many objects of other packages the content is looked into for one constant."""
_MOST_CLASSES = 200
"""Of so many classes that are not importable the content is looked into for one
digest.
"""
_DEEPEST = 100
"""A constant that is nested deeper is not looked into any further."""
_LONGEST_PART = 1 << 20
"""Characters; the meaning of a constant with more is replaced by its digest."""


def _shortened(text: str) -> str:
    """Return *text*, or its digest if it is very long: the meaning of a large table,
    say.
    """
    if len(text) <= _LONGEST_PART:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    return f"{len(text)} characters: {digest.hexdigest()}"


def _last_names(text: str) -> tuple[str, str]:
    """Return the owner and the name in ``settings.A.k``: A and k."""
    owner, _, name = text.rpartition(".")
    return owner.rpartition(".")[2], name


_OF_BODIES: WeakKeyDictionary[types.FunctionType, CodeDigest] = WeakKeyDictionary()
_MOST_BODIES = 1_000


def code_of(function: Any) -> CodeDigest:
    """Return the digest of a body, whose calls are looked at one by one: tasks count by
    name.

    That of a plain function is taken again when a name in it refers to something else.
    """
    if not isinstance(function, types.FunctionType):
        return code_digest(function, through_tasks=False)
    known = _OF_BODIES.get(function)
    if known is None or not known.bindings.hold():
        known = code_digest(function, through_tasks=False, earlier=known)
        _OF_BODIES[function] = known
        if len(_OF_BODIES) > _MOST_BODIES:
            del _OF_BODIES[next(iter(_OF_BODIES))]
    return known


def tasks_named_by(function: Any) -> list[Any]:
    """Return the tasks and graphs that the code of *function*, or a helper of it,
    refers to.
    """
    reader = _Reader(function, through_tasks=False)
    reader.read()
    return reader.tasks


@dataclasses.dataclass(slots=True, eq=False)
class _Unit:
    """A function, a class or a constant."""

    name: str
    value: Any
    number: int
    """The how manieth it is that was reached."""
    tokens: list[str] = dataclasses.field(default_factory=list)
    """What it means; other units are in it by their numbers."""
    source: str | None = None
    """None: it has none, so that what it means is shown."""


class _Reader:
    """Reads units until no further one is referred to, each once."""

    def __init__(
        self, root: Any, through_tasks: bool, earlier: CodeDigest | None = None
    ) -> None:
        self._through_tasks = through_tasks
        # What it could not look into it would have to tell again.
        self._earlier = {} if earlier is None or earlier.unseen else earlier.constants
        self._constants: dict[str, tuple[Callable[[], Any], str]] = {}
        self._units: dict[int | str, _Unit] = {}
        """By identity; constants by name, as equal ones may or may not be one
        object.
        """
        self._order: list[_Unit] = []
        self._modules: dict[str, tuple[str, dict[str, Any]]] = {}
        """File and variables by name; a function from another process brings its
        own.
        """
        self._open: set[int] = set()
        """The values that contain the one being written."""
        self.tasks: list[Any] = []
        """The tasks and graphs that were reached."""
        self._unseen: dict[str, None] = {}
        self._filled: set[str] = set()
        """The names of the containers that functions fill which were read so far."""
        self._reductions = 0
        """How many objects were looked into for the unit that is being filled."""
        self._made: set[type] = set()
        """The classes that are not importable."""
        self._bindings = Bindings()
        self._owners: dict[str, Any] = {}
        """By name, the module, or a function of it: what its variables are read from
        later.
        """
        self._classes: list[tuple[_Unit, type, Found]] = []
        """Classes of which the attributes that were set are still to be written."""
        self._state: set[str] = set()
        """What code rebinds while it runs, as a `Found` has it."""
        self._is_fixed = True
        self._is_near = functools.cache(self._belongs)
        self._rebound = functools.cache(self._names_rebound)
        self._begin_at(root)

    def _begin_at(self, root: Any) -> None:
        """Find out where the root is at home, and make it the first unit."""
        self._root = values.peeled(root)
        self._own_state = set_by_call(self._root)
        """The attributes that a call sets, by the id of their object."""
        home = values.home_of(self._root)
        module = values.module_of(home)
        self._learn(home)
        variables = self._module(module)[1]
        tops = {
            values.top_package(module),
            values.top_package(variables.get("__package__") or ""),
        }
        self._packages = tops - {"", values.LIBRARY} - sys.stdlib_module_names
        # A notebook has no file; it imports from the working folder.
        file = os.path.abspath(variables.get("__file__") or "notebook")
        self._folder = os.path.join(os.path.dirname(file), "")
        if self._unit_of(self._root) is None:
            self._add(0, f"{module}:{values.qualname(home)}(...)", self._root)

    def read(self) -> CodeDigest:
        """Return the digest of the root and of all that it leads to."""
        for unit in self._order:  # it grows meanwhile
            self._fill(unit)
            if unit is self._order[-1]:
                self._write_attributes_set()
        parts, sources = dict[str, str](), list[str]()
        for unit in self._order:
            name = unit.name
            while name in parts:
                name += "'"
            parts[name] = _shortened("".join(unit.tokens))
            if unit.source is None:
                unit.source = f"{name} = {parts[name]}\n"
            sources.append(unit.source)
        meaning = repr([*parts.values()]).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(meaning, digest_size=16).hexdigest()
        self._bindings.close(self._state)
        source = "\n".join(filter(None, sources))
        unseen = (*self._unseen,)
        return CodeDigest(
            digest,
            parts,
            source,
            unseen,
            self._bindings,
            self._constants,
            self._is_fixed,
        )

    # ------------------------------------------------------------ units

    def _add(self, key: int | str, name: str, value: Any) -> _Unit:
        if key not in self._units:
            self._units[key] = _Unit(name, value, len(self._order))
            self._order.append(self._units[key])
        return self._units[key]

    def _unit_of(self, value: Any) -> _Unit | None:
        """Return the unit of a function or class that is looked into."""
        if isinstance(value, types.FunctionType | type):
            module = values.module_of(value)
            if self._is_near(module) or self._is_made(value):
                self._learn(value)
                return self._add(id(value), f"{module}:{values.qualname(value)}", value)
        return None

    def _is_made(self, value: Any) -> bool:
        """Return whether *value* is a class that a program made, and no name leads
        to.
        """
        if not isinstance(value, type) or is_importable(value):
            return False
        # A mock makes a class for each of its attributes, and those have attributes.
        self._made.add(value)
        return len(self._made) <= _MOST_CLASSES

    def _fill(self, unit: _Unit) -> None:
        value, self._reductions = unit.value, 0
        if self._units.get(id(value)) is not unit:
            self._fill_constant(unit, value)
        elif isinstance(value, type):
            self._fill_class(unit, value)
        else:
            self._fill_function(unit, value)

    def _fill_constant(self, unit: _Unit, value: Any) -> None:
        known, meant = self._earlier.get(unit.name, (None, ""))
        if known is not None and value is not None and known() is value:
            unit.tokens.append(meant)
        else:
            content = value
            if re.split("[:.]", unit.name)[-1] in self._filled:
                content = values.first_content(unit.name, value)
            self._write(content, unit)
        text = _shortened("".join(unit.tokens))
        # What it refers to otherwise, such as a function in a table, has to be reached
        # again.
        if unit.source is None and "->" not in text and type(value) not in values.ATOMS:
            self._constants[unit.name] = weak_reference_to(value), text

    def _fill_function(self, unit: _Unit, function: types.FunctionType) -> None:
        code, variables = function.__code__, function.__globals__
        file = source_file(code.co_filename, variables)
        found = file.function(code)
        if found is None:
            unit.tokens.append(
                "no source: bytecode of Python {}.{};".format(*sys.version_info)
            )
            names: list[tuple[str, ...]] = [*zip(sorted(self._write_code(code, unit)))]
            found = Found("", names, "", rebound=rebound_by(code))
        self._filled |= found.filled
        self._bindings.note_function(function)
        self._refer(unit, found, values.module_of(function), values.cells_of(function))
        for defaults in filter(None, (function.__defaults__, function.__kwdefaults__)):
            self._write(defaults, unit)
        if isinstance(class_ := values.class_of(code, variables), type):
            name = code.co_qualname.partition(".")[0]
            self._note_name(values.module_of(function), name, name)
            self._write(class_, unit)

    def _fill_class(self, unit: _Unit, class_: type) -> None:
        if not (is_importable(class_) and self._fill_from_source(unit, class_)):
            self._is_fixed = False
            for name, value in class_content(class_):
                unit.tokens.append(f"|{name}=")
                self._write(value, unit)

    def _fill_from_source(self, unit: _Unit, class_: type) -> bool:
        """Write a class as its source has it; return whether there is one."""
        file, variables = self._module(class_.__module__)
        methods = [
            each
            for each in vars(class_).values()
            if isinstance(each, types.FunctionType)
        ]
        # In a notebook the module has no file, but the cell of the class has a name.
        for name in (file, *(method.__code__.co_filename for method in methods)):
            found = source_file(name, variables).class_(class_.__qualname__)
            if found is not None:
                cells = dict[str, Any]()
                for method in methods:
                    cells |= values.cells_of(method)
                    self._bindings.note_function(method)
                self._refer(unit, found, class_.__module__, cells)
                self._classes.append((unit, class_, found))
                return True
        return False

    def _write_attributes_set(self) -> None:
        """Write what was set in classes, as ``A.k = 5``, after their bodies had run.

        It comes after all else, since it is no code but state if any function sets it.
        That leads to further units perhaps.
        """
        classes = self._classes
        self._classes = []
        for unit, class_, definition in classes:
            setters = {class_.__name__, "cls", "__class__"}
            state = self._filled | definition.filled
            for path in self._state:
                owner, name = _last_names(path)
                if owner in setters:
                    state.add(name)
            bound = definition.attributes
            for name, value in attributes_set(class_, bound):
                if name not in state:
                    unit.tokens.append(f"|{name} was set=")
                    self._write(value, unit)
            names = sorted(bound.keys() - state)
            self._bindings.note_attributes(class_, names)

    def _refer(
        self, unit: _Unit, found: Found, home: str, cells: Mapping[str, Any]
    ) -> None:
        """Write a definition, and what the names in it that are not its own stand
        for.
        """
        unit.tokens.append(found.meaning)
        unit.source = found.source or None
        self._state |= found.rebound
        for name, *attributes in found.names:
            text = name
            value, place = self._module(home)[1].get(name, _MISSING), f"{home}:"
            if name in cells:
                value, place = cells[name], f"{unit.name}."
            elif name not in self._rebound(place):
                self._note_name(home, name, text)
            # Not `isinstance`, which asks the value itself.
            while issubclass(type(value), types.ModuleType) and attributes:
                if not self._is_near(value.__name__):
                    break
                place, name = f"{value.__name__}:", attributes.pop(0)
                text = f"{text}.{name}"
                if name not in self._rebound(place):
                    self._bindings.note_name(value, vars(value), name, text)
                value = vars(value).get(name, _MISSING)
            if name in self._rebound(place):
                unit.tokens.append(f"{name} is rebound while running: by name only;")
            elif value is not _MISSING:  # otherwise it is a builtin, or not there yet
                self._write_named(value, unit, place + name)

    def _write_named(self, value: Any, unit: _Unit, name: str) -> None:
        unit.tokens.append(f"|{name.rpartition(':')[2]}=")
        with suppress(Exception):
            value = self._peeled(value)
        if issubclass(type(value), types.FunctionType | type | types.ModuleType):
            self._write(value, unit)
        else:
            unit.tokens.append(f"->{self._add(name, name, value).number};")

    # ------------------------------------------------------------ modules

    def _learn(self, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            place = value.__code__.co_filename, value.__globals__
            name = values.module_of(value)
            if name not in self._modules:
                self._modules[name] = place
                module = sys.modules.get(name)
                is_its = getattr(module, "__dict__", None) is value.__globals__
                self._owners[name] = module if is_its else value

    def _module(self, name: str) -> tuple[str, dict[str, Any]]:
        if name not in self._modules:
            variables = vars(sys.modules[name]) if name in sys.modules else {}
            self._modules[name] = variables.get("__file__") or "", variables
            self._owners[name] = sys.modules.get(name)
        return self._modules[name]

    def _note_name(self, module: str, name: str, text: str) -> None:
        """Note what *name* of a module refers to, if its variables can be found again.

        Args:
            text: How the code writes it.
        """
        variables, owner = self._module(module)[1], self._owners[module]
        if owner is not None:
            self._bindings.note_name(owner, variables, name, text)

    def _names_rebound(self, place: str) -> Set[str]:
        """Return the names in ``module:`` that functions rebind."""
        module, _, inner = place.partition(":")
        return frozenset() if inner else source_file(*self._module(module)).rebound

    def _belongs(self, module: str) -> bool:
        """Return whether a module is of the package or the folder of the root."""
        package = values.top_package(module)
        if package in self._packages:
            return True
        if package in sys.stdlib_module_names or package == values.LIBRARY:
            return False
        file = os.path.abspath(self._module(module)[1].get("__file__") or os.sep)
        return file.startswith(self._folder) and not values.IN_ENVIRONMENT.search(file)

    # ------------------------------------------------------------ values

    def _peeled(self, value: Any) -> Any:
        if type(value) in values.ATOMS or (
            not self._through_tasks and values.is_ours(value)
        ):
            return value
        return values.peeled(value)

    def _write(self, value: Any, unit: _Unit) -> None:
        """Write a value into *unit*, and a link for each function and class in it."""
        if type(value) in values.ATOMS:
            unit.tokens.append(f"{constant_text(value)};")
            return
        written = len(unit.tokens)
        # A user's object may raise anything when it is asked what it is.
        with suppress(Exception):
            self._write_value(self._peeled(value), unit)
            return
        del unit.tokens[written:]
        unit.tokens.append(
            f"{type(value).__qualname__}: by type only, it raised an error;"
        )
        self._note_unseen(type(value), unit)

    def _note_unseen(self, kind: type, unit: _Unit) -> None:
        """Note that the content of a value of this type is not in the digest."""
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        self._unseen[f"`{unit.name.rpartition(':')[2]}` ({name})"] = None

    def _write_value(self, value: Any, unit: _Unit) -> None:
        if id(value) in self._open:
            unit.tokens.append("^")
        elif (to := self._unit_of(value)) is not None:
            unit.tokens.append(f"->{to.number};")
        else:
            self._open.add(id(value))
            try:
                self._write_content(value, unit)
            finally:
                self._open.remove(id(value))

    def _write_content(self, value: Any, unit: _Unit) -> None:
        kind = type(value)
        self._is_fixed &= isinstance(value, values.FIXED)
        if isinstance(value, types.ModuleType | type | types.FunctionType):
            unit.tokens.append(f"{values.outside_name(value)};")
            if isinstance(value, type) and not is_importable(value):
                self._note_unseen(value, unit)
            self._write_wrapped(value, unit)
            return
        self._write(kind, unit)
        content = values.content_of(value)
        if values.is_ours(value) and callable(value):
            self.tasks.append(value)
            steps = values.steps_of(value) if self._through_tasks else []
            if value is unit.value:
                unit.source = ""  # whoever calls it shows its name
            self._write([str(getattr(value, "name", "")), *steps], unit)
        elif content is not None and not self._is_outside_method(value):
            unit.tokens.append(f"{len(content)}(")
            for item in content:
                self._write(item, unit)
            unit.tokens.append(")")
        elif (known := getattr(kind, "__flowpregel_digest__", None)) is not None:
            unit.tokens.append(f"{known(value)};")
        elif values.has_no_content(value) and not dataclasses.is_dataclass(kind):
            unit.tokens.append(f"{values.outside_name(kind)}: by type only;")
        else:
            self._write_object(value, unit)

    def _write_wrapped(self, value: Any, unit: _Unit) -> None:
        """Write the functions that a wrapper from elsewhere calls."""
        if isinstance(value, types.FunctionType):
            self._bindings.note_function(value)
        for inner in values.wrapped_by(value):
            self._write(inner, unit)

    def _is_outside_method(self, value: Any) -> bool:
        """Return whether *value* is a bound method that is a function of a module
        elsewhere.
        """
        if not isinstance(value, types.MethodType) or not values.is_known_by_name(
            value
        ):
            return False
        return not self._is_near(type(value.__self__).__module__)

    def _write_object(self, value: Any, unit: _Unit) -> None:
        """Write what pickle would keep of *value*; note it as unseen if that is
        nothing.
        """
        kind = type(value)
        if values.is_record(value) and (
            self._is_near(kind.__module__) or dataclasses.is_dataclass(value)
        ):
            state = object.__getstate__(value)
            self._write(self._without_own_state(value, state), unit)
            return
        is_named = isinstance(value, values.NAMED) and not values.is_bound(value)
        if is_named or isinstance(value, types.MethodType):
            unit.tokens.append(f"{values.outside_name(value)};")
            return
        parts = self._parts_of(value)
        if parts is None:
            size = f", {len(value)} items" if isinstance(value, Sized) else ""
            unit.tokens.append(f"{values.outside_name(kind)}{size}: by type only;")
            self._note_unseen(kind, unit)
        elif isinstance(parts, str):
            unit.tokens.append(f"{parts};")
        else:
            remaining = self._parts_without_own_state(value, parts)
            self._write_parts(remaining, unit)

    def _parts_without_own_state(
        self,
        value: Any,
        parts: Any,
    ) -> Any:
        """Return the parts that make an object, without its own state."""
        if id(value) not in self._own_state:
            return parts
        states = [self._without_own_state(value, part) for part in parts[2:]]
        return (*parts[:2], *states)

    def _without_own_state(self, value: Any, state: Any) -> Any:
        """Return the *state* of an object without what a call of it sets, if it is the
        root's.
        """
        names = self._own_state.get(id(value))
        if names is None or not isinstance(state, dict | tuple):
            return state
        if isinstance(state, tuple):  # with slots
            return tuple(self._without_own_state(value, part) for part in state)
        return {name: state[name] for name in state if name not in names}

    def _parts_of(self, value: Any) -> Any:
        """Return what pickle would make of *value*; None if its content cannot be
        looked into.
        """
        if values.changes_when_used(value) or values.is_too_large(value):
            return None
        # Some objects make new ones, without end, whenever they are looked into.
        self._reductions += 1 if len(self._open) < _DEEPEST else _MOST_REDUCTIONS
        if self._reductions > _MOST_REDUCTIONS:
            return None
        with suppress(Exception):
            return values.reduced(value)
        return None

    def _write_parts(self, parts: tuple[Any, ...], unit: _Unit) -> None:
        """Write how pickle would make an object, and what that is given."""
        maker, given, *rest = parts
        unit.tokens.append(f"{len(parts)}<")
        self._write(maker, unit)
        self._write(given, unit)
        for part in rest:
            is_iterator = hasattr(type(part), "__next__")
            self._write([*part] if is_iterator else part, unit)
        unit.tokens.append(">")

    def _write_code(self, code: types.CodeType, unit: _Unit) -> set[str]:
        """Write bytecode, and return the names in it."""
        unit.tokens.append(f"{code.co_code.hex()} {code.co_varnames} {code.co_names}")
        names = {*code.co_names, *code.co_freevars}
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self._write_code(constant, unit)
            else:
                self._write(constant, unit)
        return names
