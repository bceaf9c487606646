"""Functions that convert values and calls to text, and that make text from other
programs harmless for a terminal, a page or a drawing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any, Final

_LONGEST = 40
_MOST = 4
_PLAIN = frozenset({int, float, bool, type(None), complex})
_SIZED = frozenset({list, tuple, dict, set, frozenset, bytearray})
_LONGEST_TEXT = 100
_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")
_LONGEST_INT = 128
"""The greatest number of bits of an int that is written out, because writing a longer
int takes long.
"""


def printable(text: str) -> str:
    """Return *text* with nonprintable characters, except line ends, as Python escapes.

    Such characters could begin an escape sequence, or reverse the direction of text.

    Example:
        >>> printable("\\x1b[2J")
        '\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def in_one_line(text: str) -> str:
    """Return *text* as `printable` does, with line ends escaped too."""
    return printable(text).replace("\n", "\\n")


def described(
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    redacted: Collection[int | str] = (),
) -> str:
    """Return a call as text of bounded length. No code of the arguments' classes is
    run.

    Args:
        name: The name of the called function.
        args: The positional arguments.
        kwargs: The keyword arguments.
        redacted: The positions and names of arguments that are not shown.

    Example:
        >>> described("measure", ("a.py", list(range(100))), {"deep": True})
        "measure('a.py', <list of 100>, deep=True)"
    """
    arguments: list[tuple[int | str, Any]] = [*enumerate(args[:_MOST])]
    arguments += islice(kwargs.items(), _MOST)
    texts: list[str] = []
    for position, value in arguments:
        text = "<redacted>" if position in redacted else _shown(value)
        texts.append(text if isinstance(position, int) else f"{position}={text}")
    if len(args) > _MOST or len(kwargs) > _MOST:
        texts.append("...")
    return f"{name}({', '.join(texts)})"


def outlined(value: Any) -> str:
    """Return a value, such as a question, as text of bounded length. No code of the
    value's class is run.

    Example:
        >>> outlined({"approve?": ["a", "b"], "amount": 3})
        "{'approve?': <list of 2>, 'amount': 3}"
    """
    kind = type(value)
    if kind is str:
        text = repr(value[:_LONGEST_TEXT])
        return text if len(value) <= _LONGEST_TEXT else f"{text[:-1]}...{text[-1]}"
    if kind not in _BRACKETS:
        return _shown(value)
    if kind is dict:
        items = [*value.items()][:_MOST]
        parts = [f"{_shown(key)}: {_shown(item)}" for key, item in items]
    else:
        parts = [_shown(item) for item in value[:_MOST]]
    if len(value) > _MOST:
        parts.append("...")
    opening, closing = _BRACKETS[kind]
    return f"{opening}{', '.join(parts)}{closing}"


_BRACKETS: Mapping[type, tuple[str, str]] = {
    dict: ("{", "}"),
    list: ("[", "]"),
    tuple: ("(", ")"),
}


def no_such_option(owner: str, name: str, known: Iterable[str]) -> str:
    """Return the message that *owner* has no option *name*, with the known options and
    the closest one.

    Example:
        >>> no_such_option("a task", "timeot", ["name", "timeout"])
        "a task has no option 'timeot'; it has name, timeout. Did you mean 'timeout'?"
    """
    options = [*known]
    hint = did_you_mean(name, options)
    return f"{owner} has no option {name!r}; it has {', '.join(options)}{hint}"


def no_such_attribute(
    owner: object, kind: str, attribute: str, instead: Mapping[str, str]
) -> str:
    """Return the message that *owner* has no *attribute*, and what to write instead.

    Args:
        owner: The object without the attribute. The message has the ``name`` of the
            object, or of the object's definition.
        kind: The kind of object, such as ``"task"``.
        attribute: The name of the missing attribute.
        instead: Advice for attributes of other libraries, with ``{name}``.

    Example:
        >>> from types import SimpleNamespace
        >>> work = SimpleNamespace(name="work")
        >>> no_such_attribute(work, "task", "delay", {"delay": "write {name}(...)"})
        "task 'work' has no attribute 'delay': write work(...)"
    """
    # The name is read with `vars`, because the owner may not have got its ``name`` yet.
    # An ordinary access to the missing name would call `__getattr__`, and so this
    # function, again.
    attributes = vars(owner)
    name = attributes.get("name") or getattr(attributes.get("definition"), "name", "?")
    text = f"{kind} {name!r} has no attribute {attribute!r}"
    if attribute in instead:
        return f"{text}: {instead[attribute].format(name=name)}"
    public_names = (known for known in dir(type(owner)) if not known.startswith("_"))
    return text + did_you_mean(attribute, public_names)


def size_text(count: int) -> str:
    """Return a number of bytes for people, in decimal units.

    Args:
        count: The number of bytes.

    Example:
        >>> size_text(1), size_text(999), size_text(12_345_678)
        ('1 byte', '999 bytes', '12.3 MB')
    """
    if count < 1_000:
        return "1 byte" if count == 1 else f"{count} bytes"
    size = float(count)
    units = iter(_UNITS)
    unit = ""
    while size >= 1_000 and unit != _UNITS[-1]:
        size /= 1_000
        unit = next(units)
    return f"{size:,.1f} {unit}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the closest of the *known* names, or an empty
    string if no name is close.

    Example:
        >>> did_you_mean("timeot", ["name", "timeout"])
        ". Did you mean 'timeout'?"
    """
    from difflib import get_close_matches  # noqa: PLC0415 - for misspelled names only

    close = get_close_matches(name, [*known], n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


def _shown(value: Any) -> str:
    kind = type(value)
    if kind is int and value.bit_length() > _LONGEST_INT:
        return f"<int of {value.bit_length()} bits>"
    if kind in _PLAIN:
        return repr(value)
    if kind in (str, bytes):
        text = repr(value[:_LONGEST])
        return text if len(value) <= _LONGEST else f"{text[:-1]}...{text[-1]}"
    if kind in _SIZED:
        return f"<{kind.__name__} of {len(value)}>" if len(value) else repr(value)
    # Some classes of this library define how they are shown as text. For example, a
    # file is shown by its path.
    text_of = getattr(kind, "__flowpregel_text__", None)
    if text_of is not None:
        return str(text_of(value))
    # A user's own `__repr__` is not called, because it may take any time and may raise
    # an error.
    return f"<{kind.__qualname__}>"
