"""JSON to frozen dataclasses and back, strictly. It decides what well-formed is; it knows no particular
record.

A record's keys are exactly its class's fields. ``int`` means 0 to 2^64-1, ``object`` any JSON value,
``Mapping`` any JSON object. Range and consistency checks are the classes' own ``__post_init__``; whatever
they refuse in stored bytes is corrupt data.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from hashlib import sha256
from math import isfinite
from typing import Any, Literal, NewType, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import U64_LIMIT

SEAL = "sha256"
SEAL_BYTES = len(f',"{SEAL}":""}}') + 64

D = TypeVar("D")
Converter = Callable[[object, str], object]


def encode(record: object) -> bytes:
    """The JSON of a record, in field order, ASCII only. What JSON cannot say is refused."""
    try:
        return json.dumps(to_plain(record), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidUseError(f"not JSON: {error} record={type(record).__name__}") from error


def decode(kind: type[D], data: bytes, path: str) -> D:
    """The record in these bytes, or ``CorruptDataError`` naming ``path``."""
    return build(kind, parse(data, path), path)


def build(kind: type[D], plain: object, path: str) -> D:
    """The record in this parsed JSON, or ``CorruptDataError`` naming ``path``."""
    try:
        return _record(kind, plain, kind.__name__)  # type: ignore[return-value]  # _record calls ``kind``
    except InvalidUseError as error:
        raise CorruptDataError(f"{error} path={path}", path=path) from error


def parse(data: bytes, path: str) -> object:
    """The JSON value in these bytes. NaN, infinities and bad UTF-8 are refused."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"not JSON: {str(error)[:200]} path={path}", path=path) from error


def seal(body: bytes) -> bytes:
    """A JSON object with the SHA-256 of its bytes as last key."""
    return body[:-1] + f',"{SEAL}":"{sha256(body).hexdigest()}"}}'.encode()


def unsealed(data: bytes) -> bytes | None:
    """The object that was sealed; ``None`` when a single bit of it, or of its seal, is not as it was."""
    body = data[:-SEAL_BYTES] + b"}"
    return body if seal(body) == data else None


def to_plain(value: object) -> object:
    """Dataclasses become dicts and tuples lists; everything else stays."""
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number


def _record(kind: type[Any], value: object, where: str) -> object:
    plan = _plan(kind)  # type: ignore[arg-type]  # classes are hashable
    if not isinstance(value, dict) or value.keys() != plan.keys():
        raise InvalidUseError(f"{where} must have exactly the keys {', '.join(plan)}")
    return kind(**{name: convert(value[name], f"{where}.{name}") for name, convert in plan.items()})


@cache
def _plan(kind: type[Any]) -> dict[str, Converter]:
    hints = get_type_hints(kind)
    return {field.name: _converter(hints[field.name]) for field in fields(kind)}


def _converter(hint: Any) -> Converter:
    plain: dict[object, Converter] = {object: _anything, int: _number, str: _text, bool: _boolean}
    if isinstance(hint, NewType):
        return _converter(hint.__supertype__)
    if hint in plain:
        return plain[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(_record, hint)
    arguments = get_args(hint)
    makers: dict[object, Callable[[], Converter]] = {
        Literal: lambda: partial(_one_of, arguments),
        tuple: lambda: partial(_items, _converter(arguments[0])),
        types.UnionType: lambda: partial(_optional, _converter(arguments[0])),
        Union: lambda: partial(_optional, _converter(arguments[0])),  # of a NewType
        Mapping: lambda: _mapping,
    }
    return makers[get_origin(hint)]()


def _anything(value: object, where: str) -> object:
    return value


def _number(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value < U64_LIMIT:
        raise InvalidUseError(f"{where} must be a whole number from 0 to 2^64-1")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or (not value.isascii() and _has_surrogate(value)):
        raise InvalidUseError(f"{where} must be text")
    return value


def _has_surrogate(value: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in value)


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidUseError(f"{where} must be true or false")
    return value


def _one_of(choices: tuple[str, ...], value: object, where: str) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InvalidUseError(f"{where} must be one of {', '.join(choices)}")
    return value


def _items(convert: Converter, value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise InvalidUseError(f"{where} must be a list")
    return tuple(convert(item, f"{where}[{index}]") for index, item in enumerate(value))


def _optional(convert: Converter, value: object, where: str) -> object:
    return None if value is None else convert(value, where)


def _mapping(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidUseError(f"{where} must be a JSON object")
    return value
