"""Pickles that another process can load.

Python's own pickler, which is written in C, is used if it can pickle the value exactly.
Some objects have no name by which the other process can find them (objects of
``__main__``, lambdas, local classes). Values that contain such objects are pickled by
value, with cloudpickle. If a value cannot be pickled, the error names the path to the
part at fault.
"""

from __future__ import annotations

import pickle
import sys
from abc import ABCMeta
from collections.abc import Iterable
from contextvars import ContextVar
from functools import cache, partial
from pkgutil import resolve_name
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any, Final, TypedDict, is_typeddict
from weakref import WeakSet

from flowpregel._code.classes import class_of_main
from flowpregel._pickling.buffers import stays_inside
from flowpregel._pickling.by_value import PROTOCOL, by_value_pickler, dumps_with
from flowpregel._pickling.culprits import (
    class_name,
    culprit_in,
    foreign_classes,
    why_refused,
)
from flowpregel._pickling.process_bound import ProcessBound, reference_to
from flowpregel._pickling.recreated_fields import reduced_without_fields
from flowpregel._pickling.sent_modules import (
    SENT_MODULES,
    is_sent_by_value,
    reduced_module,
)
from flowpregel.carried import default_of, variable_at, variable_place
from flowpregel.errors import TaskSerializationError

SHARE_FROM: Final = 128 << 10
"""The size, in bytes, from which a buffer is sent through shared memory. For smaller
buffers, the link to the worker (a socket) is faster.
"""
AS_A_WHOLE: Final = "it cannot be pickled as a whole"


def dumps(value: Any, large: list[memoryview] | None = None) -> bytes:
    """Return *value* as a pickle that restores it exactly.

    Args:
        value: The value to pickle.
        large: A list that receives the large buffers, which are then left out of the
            pickle, or None to keep all buffers in the pickle.

    Raises:
        Exception: A part of *value* cannot be pickled.
    """

    stays = partial(stays_inside, large, SHARE_FROM)
    cloudpickle = sys.modules.get("cloudpickle")
    is_registered = cloudpickle and cloudpickle.list_registry_pickle_by_value()
    # If some modules are sent by value, Python's own pickler is not tried, because it
    # would write the functions of these modules by name.
    if not (SENT_MODULES.get() or is_registered):
        # `suppress` is not used, because it would take longer than pickling a small
        # value.
        try:
            data = pickle.dumps(value, PROTOCOL, buffer_callback=stays)
            if b"__main__" not in data:
                return data
        except Exception:  # noqa: BLE001 - of __reduce__; by value it may work
            pass
    if large is not None:
        large.clear()
    pickler = _by_value_pickler()
    return dumps_with(pickler, value, buffer_callback=stays)


@cache
def _by_value_pickler() -> Any:
    class ByValue(by_value_pickler()):  # type: ignore[misc]
        """A pickler of cloudpickle that still pickles some objects by name: decorated
        functions and, in a worker, classes that came from the coordinator.
        """

        def reducer_override(self, obj: Any) -> Any:
            recipe = _reference_for(obj)
            if recipe is not None:
                return recipe
            reduced = super().reducer_override(obj)
            return _with_its_layout(obj, reduced) if isinstance(obj, type) else reduced

        def reduced_by_cloudpickle(self, obj: Any) -> Any:
            """Return cloudpickle's reduction of *obj* by value, if its module is sent
            by value.
            """
            if not _is_sent_despite_name(obj):
                return super().reduced_by_cloudpickle(obj)
            if isinstance(obj, ModuleType):
                return reduced_module(obj)
            if isinstance(obj, type):
                return _part_of_cloudpickle("_dynamic_class_reduce")(obj)
            return self._dynamic_function_reduce(obj)

    return ByValue


def _is_sent_despite_name(obj: Any) -> bool:
    """Return whether *obj* is a module, or a function or class of a module, that must
    be sent by value, although cloudpickle might send its name.
    """
    module_name = ""
    if isinstance(obj, ModuleType):
        module_name = obj.__name__
    elif isinstance(obj, FunctionType | type):
        module_name = obj.__module__ or ""
    return module_name != "__main__" and is_sent_by_value(module_name)


def _reference_for(obj: Any) -> tuple[Any, ...] | None:
    """Return a reduction with which the other process finds *obj* by name, or None if
    *obj* must be pickled by value.
    """
    if isinstance(obj, FunctionType):
        wrapper = wrapper_of(obj)
        if wrapper is not None:
            return unwrapped, wrapper
        return None
    if isinstance(obj, ProcessBound) and not _in_worker:
        return reference_to(obj)
    if isinstance(obj, ContextVar):
        location = variable_place(obj)
        if location is not None:
            return variable_at, (location, *default_of(obj))
        return None
    if _in_worker and isinstance(obj, type):
        known = _known_there(obj)
        if known is not None:
            return class_sent, known
    return reduced_without_fields(obj)


def _with_its_layout(kind: type, reduced: Any) -> Any:
    """Return cloudpickle's reduction of the class *kind*, with the parts that
    cloudpickle leaves out.

    cloudpickle leaves out ``__slots__``. The rebuilt class would have a ``__dict__``
    instead, and its instances could not be sent back. And before Python 3.12, a
    TypedDict that extends others has only `dict` among its bases.
    """
    if isinstance(reduced, tuple) and reduced[0] is class_of_main:
        recipe = _with_its_layout(kind, (*reduced[1], *reduced[2:]))
        return (class_of_main, recipe[:2], *recipe[2:])
    if not isinstance(reduced, tuple) or reduced[0].__name__ != "_make_skeleton_class":
        return reduced
    make, (meta, name, bases, namespace, *more), *rest = reduced
    if is_typeddict(kind) and bases == (dict,):
        bases = (TypedDict,)
    slots = vars(kind).get("__slots__")
    # ``__slots__`` is added only for classes without a metaclass of their own. A
    # metaclass, such as that of a `NamedTuple`, makes the slots itself, and may refuse
    # others.
    makes_none = type(kind) in (type, ABCMeta) and not issubclass(kind, tuple)
    if makes_none and isinstance(slots, str | tuple | list | dict):
        namespace = {**namespace, "__slots__": slots}
    state, items, pairs, _ = rest
    return (
        make,
        (meta, name, bases, namespace, *more),
        state,
        items,
        pairs,
        class_filled,
    )


def class_filled(kind: type, state: Any) -> type:
    """Give the unpickled class *kind* the attributes in *state*, and delete its other
    attributes.

    If the class was sent by value before, cloudpickle uses the same class again. It
    would not remove attributes that a task has set, or that the program has deleted
    since.
    """
    from cloudpickle.cloudpickle import _class_setstate  # noqa: PLC0415 - loaded by now

    attributes, _ = state
    for name, value in [*vars(kind).items()]:
        is_of_language = name[:2] == "__" == name[-2:] or name == "_abc_impl"
        is_layout = isinstance(value, MemberDescriptorType | GetSetDescriptorType)
        if name not in attributes and not is_of_language and not is_layout:
            type.__delattr__(kind, name)
    filled: type = _class_setstate(kind, state)
    return filled


def wrapper_of(function: FunctionType) -> tuple[str, int] | None:
    """Return the name of the wrapper around *function* and the number of decorators in
    between, if the function's name in its module refers to a wrapper.

    In a module, the name of a function with ``@task`` refers to the task, not to the
    function itself. If the function were sent by value, the globals that it uses, such
    as caches, locks and tables, would be copied with it.

    Returns:
        The name and the number, or None if *function* is not found inside the object
        under its name.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    if is_sent_by_value(function.__module__ or ""):
        return None
    try:
        target = resolve_name(name)
    # A ValueError means that the function is local, or a lambda, so it cannot be found
    # by name.
    except (ImportError, AttributeError, ValueError):
        return None
    for depth in range(1, 8):
        target = getattr(target, "__wrapped__", None)
        if target is function:
            return name, depth
    return None


def unwrapped(name: str, depth: int) -> Any:
    """Return the function under *depth* decorators of the object with *name*."""
    target = resolve_name(name)
    for _ in range(depth):
        target = target.__wrapped__
    return target


_in_worker = False
_made_here: WeakSet[type] = WeakSet()
"""The classes that were defined in this worker, and sent by value to the
coordinator.
"""


def mark_as_worker() -> None:
    """Mark this process as a worker, in which every class that arrives by value belongs
    to the coordinator.
    """
    global _in_worker
    _in_worker = True


def _known_there(kind: type) -> tuple[str, str] | None:
    """Return the names by which the coordinator finds the class *kind*, or None if the
    class did not come from the coordinator by value.

    If the class were sent back by value, cloudpickle would find the coordinator's own
    class, and overwrite its attributes and methods with the worker's copies.
    """
    name = _part_of_cloudpickle("_DYNAMIC_CLASS_TRACKER_BY_CLASS").get(kind)
    if name is None or kind in _made_here:
        _made_here.add(kind)
        return None
    return name, f"{kind.__module__}.{kind.__qualname__}"


def class_sent(name: str, called: str) -> type:
    """Return the class that this process has sent by value under the id *name*.

    Raises:
        AttributeError: The class no longer exists.
    """
    kind: type | None = _part_of_cloudpickle("_DYNAMIC_CLASS_TRACKER_BY_ID").get(name)
    if kind is None:
        raise AttributeError(
            f"class {called} came back from a worker, but no longer exists here: "
            "define it in a module"
        )
    return kind


def _part_of_cloudpickle(name: str) -> Any:
    """Return a private function of cloudpickle, or a table in which it tracks classes
    that were sent or received by value.
    """
    from cloudpickle import cloudpickle  # noqa: PLC0415 - loaded by now

    return getattr(cloudpickle, name)


def first_unpicklable(
    task: str, parts: Iterable[tuple[str, str, Any]], error: Exception
) -> TaskSerializationError:
    """Return an error that names the first of *parts* that cannot be pickled. A part is
    a tuple: a role, a path and a value.

    If each part can be pickled by itself, the error names the last part.
    """
    role = path = ""
    for role, path, part in parts:
        if why_refused(part, dumps):
            return TaskSerializationError(
                task, f"the {role}", *find_culprit(part, path)
            )
    return TaskSerializationError(task, f"the {role}", path, str(error))


def find_culprit(value: Any, name: str) -> tuple[str, str]:
    """Return the path to the innermost part of *value* that cannot be pickled, and the
    reason.

    Args:
        value: The value that could not be pickled.
        name: The name of the value, with which the path begins.

    Example:
        >>> import threading
        >>> find_culprit({"model": [1, threading.Lock()]}, "result")[0]
        "result['model'][1]: _thread.lock"
    """
    owners: list[Any] = []
    path, part = culprit_in(value, dumps, owners)
    reason = why_refused(part, dumps) or AS_A_WHOLE
    if isinstance(part, ContextVar):
        reason += "; pass it to flowpregel.carry() where it is made, and it travels"
    # The path does not name the classes of the objects on it, so those of the user's
    # packages are added in parentheses.
    classes = foreign_classes(owners) if "<closure " in path else []
    inside = f" (in {', '.join(classes)})" if classes else ""
    return f"{name}{path}: {class_name(part)}{inside}", reason
