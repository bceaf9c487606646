"""Pickling by value, with the code itself and not a name: for lambdas, closures, and
classes in functions.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any, Final

from flowpregel._annotations import annotation_sources
from flowpregel._code.classes import class_of_main, is_importable

PROTOCOL: Final = 5
"""The pickle protocol of all pickles, stored ones included."""
_PYTHON: Final = sys.hexversion >> 16
"""The version of Python whose bytecode this process runs, such as 0x30b for 3.11."""


@cache
def by_value_pickler() -> Any:
    """Return a pickler class that also pickles lambdas, closures and classes in
    functions, which `pickle` itself cannot.
    """
    import cloudpickle  # noqa: PLC0415 - 30 ms, and seldom needed

    class WithoutVariables(cloudpickle.Pickler):  # type: ignore[misc]
        """A pickler of cloudpickle that leaves out the variables of the function in
        which a pydantic class is defined.

        Such a class refers to these variables to resolve its annotations. One of them
        may be a lock, or another object that cannot be pickled.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, CodeType):
                # Since version 3.1.3, cloudpickle leaves out the file name of the code,
                # so it is added here, each time as a new str object. Pickle writes an
                # object that it has already written as a reference, so with a shared
                # object the bytes would depend on the other parts of the value.
                return code_of_file, (
                    "".join(obj.co_filename),
                    *self.dispatch_table[CodeType](obj),
                    _PYTHON,
                )
            if _is_annotate_function(obj):
                # None is pickled in place of the function that computes annotations.
                # The annotations are not lost, because cloudpickle pickles their
                # evaluated form.
                return type(None), ()
            _refuse_open_file(obj)
            reduced = self.reduced_by_cloudpickle(obj)
            if (
                isinstance(obj, type)
                and isinstance(reduced, tuple)
                and len(reduced) > 2
            ):
                reduced[2][0].pop("__pydantic_parent_namespace__", None)
                if is_importable(obj):
                    # The class is marked as one of the main program. The process that
                    # unpickles it cannot import it, but must compute the same digests
                    # as if it could.
                    reduced = (class_of_main, reduced[:2], *reduced[2:])
            return reduced

        def reduced_by_cloudpickle(self, obj: Any) -> Any:
            """Return cloudpickle's own reduction of *obj*: a function that rebuilds it,
            and the arguments of this function.
            """
            try:
                return super().reducer_override(obj)
            except NameError:
                return _reduced_with_sources(super().reducer_override, obj)

    return WithoutVariables


def _reduced_with_sources(reduce: Callable[[Any], Any], function: Any) -> Any:
    """Return cloudpickle's reduction of a function, with the annotations as source
    text.

    cloudpickle reads the annotations. Python 3.14 evaluates them only then, which
    raises a `NameError` if a name in them is undefined.
    """
    annotate = getattr(function, "__annotate__", None)
    if annotate is None:
        # The function has no annotations that are evaluated late, so the `NameError`
        # has another reason. The call is repeated to raise it again.
        return reduce(function)
    function.__annotations__ = annotation_sources(function)
    try:
        return reduce(function)
    finally:
        function.__annotate__ = annotate


def _is_annotate_function(obj: Any) -> bool:
    """Return whether *obj* is a function through which Python 3.14 stores annotations.

    `functools.update_wrapper` copies this function into the dict of a wrapper that is
    an object, such as a partial. If the annotations are those of a method, the function
    refers to the namespace of the class. The namespace of an abstract class cannot be
    pickled.
    """
    return isinstance(obj, FunctionType) and obj.__name__ == "__annotate__"


def _refuse_open_file(obj: Any) -> None:
    """Raise an error if *obj* is an open text file other than stdout and stderr.

    cloudpickle would read the file, and pickle a `StringIO` in place of it.
    """
    if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
        raise TypeError("cannot pickle an open file: pass its path")


class BytecodeVersionError(Exception):
    """The error that a pickled function was compiled by another version of Python.

    Args:
        python: The version that compiled the function, in the form of `_PYTHON`.
    """

    def __init__(self, python: int) -> None:
        super().__init__(python)
        self.python = python

    def __str__(self) -> str:
        compiled_by = _python_text(self.python)
        return (
            f"holds a function or class that was compiled by Python {compiled_by}, "
            f"and Python {_python_text(_PYTHON)} cannot run its bytecode"
        )


def _python_text(python: int) -> str:
    return f"{python >> 8}.{python & 0xFF}"


def code_of_file(
    file: str,
    make: Callable[..., CodeType],
    arguments: tuple[Any, ...],
    python: int = _PYTHON,
) -> CodeType:
    """Rebuild a pickled code object, and return it with its file name.

    cloudpickle leaves the file name out of its own pickle of the code, and does not
    check the version: Python crashes when it runs the bytecode of another version.

    Args:
        file: The file name.
        make: cloudpickle's function that rebuilds the code object.
        arguments: The arguments of *make*.
        python: The version that compiled the code, in the form of `_PYTHON`. Pickles of
            the first releases have none.

    Raises:
        BytecodeVersionError: The code was compiled by another version of Python.
    """
    if python != _PYTHON:
        raise BytecodeVersionError(python)
    return make(*arguments).replace(co_filename=file)


def dumps_with(pickler: Any, value: Any, **options: Any) -> bytes:
    """Return the pickle of *value* that the class *pickler* makes.

    Args:
        pickler: A class with the interface of `pickle.Pickler`.
        value: The value to pickle.
        options: Keyword arguments for the class, in addition to the file.

    Raises:
        Exception: A part of *value* cannot be pickled.
    """
    file = io.BytesIO()
    pickler(file, PROTOCOL, **options).dump(value)
    return file.getvalue()
