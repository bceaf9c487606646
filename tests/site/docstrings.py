"""An extension of griffe that reads this package as it is written.

* The section `Example` gets the plural name under which griffe renders code.
* Each of several arguments that share one description (`args, kwargs: ...`) gets a line
  of its own.
* Overloads that differ only in types are one signature, which has the defaults.
* A method with the decorator `@async_form(get)` has the parameters of `get`.
* `LMDBSaver = LMDBSaverAdapter` is that class under its public name.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import (
    Alias,
    Attribute,
    Class,
    Extension,
    Function,
    Module,
    Object,
    ParameterKind,
)

_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
_SHARED = re.compile(r"^( *)([*\w]+(?:, [*\w]+)+): (.+(?:\n\1 +.+)*)", re.MULTILINE)
_SECTION = re.compile(r"^( *)Args:\n((?:\1 +.*\n?|\n)+)", re.MULTILINE)
_ASYNC_FORM = re.compile(r"async_form\((\w+)\)")


def _separate(arguments: re.Match[str]) -> str:
    indent, names, description = arguments.groups()
    return "\n".join(f"{indent}{name}: {description}" for name in names.split(", "))


def google_style(text: str) -> str:
    """Return a docstring with the section names and arguments that griffe expects."""
    text = _SECTION.sub(lambda found: _SHARED.sub(_separate, found[0]), text)
    return _EXAMPLE.sub(r"\1Examples:", text)


def synchronous(form: Function) -> str | None:
    """Return the name of the method of which *form* is the async form, or None."""
    for decorator in form.decorators:
        if found := _ASYNC_FORM.fullmatch(str(decorator.value)):
            return found[1]
    return None


class PlainPackage(Extension):
    """Converts docstrings, async forms, overloads and second names of classes."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Convert the docstring of *obj*."""
        if obj.docstring is not None:
            obj.docstring.value = google_style(obj.docstring.value)

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Drop the overloads of *func* that have its parameters."""
        overloads = func.overloads or []
        # The keywords of a TypedDict are among the parameters of *func* already.
        names = {parameter.name for parameter in func.parameters}
        if overloads and all(
            parameter.name in names or parameter.kind is ParameterKind.var_keyword
            for overload in overloads
            for parameter in overload.parameters
        ):
            func.parameters[0].annotation = overloads[-1].parameters[0].annotation
            func.returns = overloads[-1].returns
            func.overloads = None

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Give the async forms among the methods of *cls* their parameters."""
        for form in cls.members.values():
            if not isinstance(form, Function):
                continue
            method = cls.members.get(synchronous(form) or "")
            if isinstance(method, Function):
                form.parameters = method.parameters
                form.returns = method.returns

    def on_module_members(self, *, mod: Module, **_: Any) -> None:
        """Replace the variables of *mod* that are second names of its classes."""
        for name, member in list(mod.members.items()):
            if not isinstance(member, Attribute):
                continue
            target = mod.members.get(str(member.value))
            if isinstance(target, Class):
                mod.members[name] = Alias(name, target, parent=mod)
