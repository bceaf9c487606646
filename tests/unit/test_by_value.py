"""Pickling by value: what cloudpickle alone would refuse."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from functools import partial, update_wrapper
from typing import Any

from flowpregel._pickling.by_value import by_value_pickler, dumps_with


def annotate_function(namespace: dict[str, Any]) -> Any:
    """Return a function like those that Python 3.14 makes of annotations: it refers to
    the namespace of the class.
    """

    def __annotate__(form: int) -> dict[str, Any]:
        return {"names": namespace}

    return __annotate__


def test_a_wrapper_around_a_method_of_an_abstract_class_is_sent() -> None:
    """`update_wrapper` of Python 3.14 copies ``__annotate__`` into the wrapper, and it
    refers to the class's ``_abc_impl``, which cannot be pickled.
    """

    class Shape(ABC):
        @abstractmethod
        def area(self) -> int: ...

        def doubled(self) -> int:
            return 2 * self.area()

    class Square(Shape):
        def area(self) -> int:
            return 4

    wrapper: Any = update_wrapper(partial(Shape.doubled), Shape.doubled)
    wrapper.__annotate__ = annotate_function(dict(vars(Shape)))

    copied = pickle.loads(dumps_with(by_value_pickler(), wrapper))

    assert 8 == copied(Square())
    assert "doubled" == copied.__name__
    assert copied.__annotate__ is None
