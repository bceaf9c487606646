"""A workflow's own parameters: what its input is made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowpregel._core.commands import Command, injections_of
from flowpregel._core.records import Arguments
from flowpregel._text import did_you_mean
from flowpregel.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class FlowParameters:
    """The parameters of a workflow but those that the run fills in.

    If there is one, its value is the workflow's input; if there are several, the input
    is a dict of their values by name.

    Args:
        name: The name of the workflow, for messages.
        signature: Its own parameters.
        options: The names of the options of a run, which are given among its arguments.
    """

    name: str
    signature: inspect.Signature
    options: tuple[str, ...] = ()

    @property
    def is_one(self) -> bool:
        """Whether there is one, whose bare value is the input."""
        kinds = [each.kind for each in self.signature.parameters.values()]
        return len(kinds) == 1 and kinds[0] is not inspect.Parameter.VAR_KEYWORD

    def signature_with(self, options: Mapping[str, Any]) -> inspect.Signature:
        """Return the signature with *options*, by name with their defaults, as keywords
        too.
        """
        own = self.signature.parameters
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in options.items()
            if name not in own
        ]
        parameters = sorted([*own.values(), *added], key=lambda each: each.kind)
        return self.signature.replace(parameters=parameters)

    def input_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the input that a call with these arguments stands for.

        Raises:
            TypeError: The workflow cannot be called like that.
            ConfigurationError: It takes any number of arguments by position.
        """
        for each in self.signature.parameters.values():
            if each.kind is each.VAR_POSITIONAL:
                raise ConfigurationError(
                    f"workflow {self.name!r} takes *{each.name}: to run it by its "
                    "signature, give it a parameter for a list"
                )
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}{self._hint(kwargs)}") from None
        bound.apply_defaults()
        given = dict(bound.arguments)
        value = next(iter(given.values()))
        return value if self.is_one and not _means_more(value) else given

    def _hint(self, kwargs: Mapping[str, Any]) -> str:
        """Return what may be given, for the message that one of *kwargs* may not."""
        text = f"; it takes {self.signature}"
        if self.options:
            names = (
                "id='...'" if name == "id" else f"{name}=" for name in self.options
            )
            text += f", and a run of it takes {', '.join(names)} too"
        known = [*self.signature.parameters, *self.options]
        unknown = next((name for name in kwargs if name not in known), "")
        return text + did_you_mean(unknown, known)

    def arguments_of(self, given: Any) -> Any:
        """Return what the body is called with for an input: its arguments, or a bare
        value.
        """
        parameters = self.signature.parameters
        if not self._is_by_name(given):
            first = next(iter(parameters.values()), None)
            is_named = first is not None and first.kind is first.KEYWORD_ONLY
            return Arguments((), {first.name: given}) if first and is_named else given
        args, kwargs = [], {}
        for name, value in given.items():
            match parameters[name].kind:
                case inspect.Parameter.POSITIONAL_ONLY:
                    args.append(value)
                case inspect.Parameter.VAR_KEYWORD:
                    kwargs.update(value)
                case _:
                    kwargs[name] = value
        return Arguments(tuple(args), kwargs)

    def _is_by_name(self, given: Any) -> bool:
        """Return whether *given* is a dict of the values of the parameters."""
        if not isinstance(given, dict) or not given:
            return False
        parameters = self.signature.parameters
        if self.is_one:
            return given.keys() == parameters.keys() and all(
                map(_means_more, given.values())
            )
        required = {
            name
            for name, each in parameters.items()
            if each.default is each.empty and each.kind is not each.VAR_KEYWORD
        }
        return required <= given.keys() <= parameters.keys()


def _means_more(value: Any) -> bool:
    """Return whether *value* as an input does not stand for itself: to a run it is a
    command.
    """
    return value is None or isinstance(value, Command)


def parameters_of(func: Callable[..., Any], name: str) -> FlowParameters:
    """Return the parameters of *func* that its caller gives; of what has no signature,
    one.
    """
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):
        only = inspect.Parameter("input", inspect.Parameter.POSITIONAL_ONLY)
        return FlowParameters(name, inspect.Signature([only]))
    injected = {each.name for each in injections_of(func, takes_input=True)}
    own = [each for key, each in signature.parameters.items() if key not in injected]
    return FlowParameters(name, signature.replace(parameters=own))
