"""An extension of griffe that reads this package as it is written.

* The section `Example` gets the plural name under which griffe renders code.
* Each of several arguments that share one description (`args, kwargs: ...`) gets a line
  of its own.
* `aget = async_form(get)` is an async method with the parameters of `get`.
* `LMDBSaver = LMDBSaverAdapter` is that class under its public name.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import (
    Alias,
    Attribute,
    Class,
    Docstring,
    Extension,
    Function,
    Module,
    Object,
)

_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
_SHARED = re.compile(r"^( *)([*\w]+(?:, [*\w]+)+): (.+(?:\n\1 +.+)*)", re.MULTILINE)
_SECTION = re.compile(r"^( *)Args:\n((?:\1 +.*\n?|\n)+)", re.MULTILINE)
_ASYNC_FORM = re.compile(r"_?(?:async_form|off_loop)\((\w+)\)")


def _separate(arguments: re.Match[str]) -> str:
    indent, names, description = arguments.groups()
    return "\n".join(f"{indent}{name}: {description}" for name in names.split(", "))


def google_style(text: str) -> str:
    """Return a docstring with the section names and arguments that griffe expects."""
    text = _SECTION.sub(lambda found: _SHARED.sub(_separate, found[0]), text)
    return _EXAMPLE.sub(r"\1Examples:", text)


def async_method(name: str, method: Function) -> Function:
    """Return the async form of a method, as `async_form` makes it."""
    text = f"`{method.name}`, without blocking the event loop."
    form = Function(name, parameters=method.parameters, returns=method.returns)
    form.docstring = Docstring(text, parent=form)
    form.labels.add("async")
    form.lineno, form.endlineno = method.lineno, method.endlineno
    return form


class PlainPackage(Extension):
    """Converts docstrings, async forms and second names of classes."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Convert the docstring of *obj*."""
        if obj.docstring is not None:
            obj.docstring.value = google_style(obj.docstring.value)

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Replace the attributes of *cls* that are async forms of its methods."""
        for name, member in list(cls.members.items()):
            if not isinstance(member, Attribute):
                continue
            found = _ASYNC_FORM.fullmatch(str(member.value))
            if found and isinstance(method := cls.members.get(found[1]), Function):
                cls.set_member(name, async_method(name, method))

    def on_module_members(self, *, mod: Module, **_: Any) -> None:
        """Replace the variables of *mod* that are second names of its classes."""
        for name, member in list(mod.members.items()):
            if not isinstance(member, Attribute):
                continue
            target = mod.members.get(str(member.value))
            if isinstance(target, Class):
                mod.members[name] = Alias(name, target, parent=mod)
