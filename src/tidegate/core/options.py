"""Options that do not exist: one sentence with the name that was given, the nearest that there is, and all of them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tidegate.errors import InvalidUseError

P = ParamSpec("P")
T = TypeVar("T")

_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def option_names(function: Callable[..., object]) -> list[str]:
    """What may be given to it by name."""
    found = inspect.signature(function).parameters.values()
    return [each.name for each in found if each.kind in _NAMED and each.name != "self"]


def check_options(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first name that is not known."""
    there = list(dict.fromkeys(known))
    for name in given:
        if name not in there:
            close = difflib.get_close_matches(name, there, n=1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            raise InvalidUseError(f"{where}: there is no option {name!r}{hint} options={', '.join(there)}")


def strict_options(function: Callable[P, T]) -> Callable[P, T]:
    """The same function; Python's own error for an unknown option names neither the others nor us."""
    known = option_names(function)
    where = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*values: P.args, **options: P.kwargs) -> T:
        check_options(where, options, known)
        return function(*values, **options)

    return checked


def strict_fields(kind: type[T]) -> type[T]:
    """The same class; it goes above ``@dataclass``, whose constructor it checks."""
    made: Any = kind
    made.__init__ = strict_options(made.__init__)
    return kind
