"""Parameters: values that a user's functions read and that may change while the job runs, on all nodes between the same two rows.

A parameter inside a function is a name: on a node it reads what the call was bound to when its batch was submitted. So copies
of it, which pickling makes, are all the same parameter. Values are data: Arrow or JSON, never pickled.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pyarrow as pa

from tidegate.errors import CorruptDataError, InvalidUseError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_BATCH, _JSON, _TABLE = b"B", b"J", b"T"
_DEPTH_MAX = 8
_ITEMS_MAX = 1_000

_bound: ContextVar[Mapping[str, object] | None] = ContextVar("tidegate_parameters", default=None)


class Parameter:
    """A named value that ``job.set_parameter`` changes. ``value`` reads it, inside ``map_batches`` and ``process`` functions."""

    __slots__ = ("_encoded", "name")

    def __init__(self, name: str, initial: object) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidUseError(
                f"a parameter's name has 1 to 64 letters, digits, dots, dashes and underscores, no digit first name={name!r}"
            )
        self.name = name
        self._encoded = encode_value(initial)

    @property
    def value(self) -> Any:
        """The value for this call: the same for all rows of a batch. Don't change it in place."""
        values = _bound.get()
        if values is None:
            raise InvalidUseError(
                "a parameter is read inside a function of map_batches or process, in the thread that runs it: read it there and "
                f"pass the value on name={self.name}"
            )
        if self.name not in values:
            raise InvalidUseError(
                f"the pipeline did not find this parameter in the function: give parameters=[...] where the function is given "
                f"name={self.name} known={', '.join(sorted(values)) or 'none'}"
            )
        return values[self.name]

    @property
    def initial(self) -> Any:
        """The value at the start of a job that has no checkpoint."""
        return decode_value(self._encoded)

    def encode(self, value: object) -> bytes:
        """The bytes of a new value, which must be like the initial one: a table of the same columns, or plain data."""
        data = encode_value(value)
        was, now = _shape(self._encoded), _shape(data)
        if was != now:
            raise InvalidUseError(f"the value must be like the initial one name={self.name} initial={was} given={now}")
        return data

    def __repr__(self) -> str:
        return f"Parameter({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parameter) and (self.name, self._encoded) == (other.name, other._encoded)

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (self.name, self._encoded))


def _rebuilt(name: str, encoded: bytes) -> Parameter:
    parameter = Parameter.__new__(Parameter)
    parameter.name, parameter._encoded = name, encoded
    return parameter


def bound(values: Mapping[str, object], function: Callable[..., Any], *arguments: object) -> Any:
    """Call the function; what it reads of parameters is in ``values``."""
    token = _bound.set(values)
    try:
        return function(*arguments)
    finally:
        _bound.reset(token)


# -- values as bytes ---------------------------------------------------------------------------------------------------


def encode_value(value: object) -> bytes:
    """A table or batch as an Arrow IPC stream, anything else as JSON."""
    if isinstance(value, pa.Table):
        return _TABLE + _stream(value.schema, value.to_batches())
    if isinstance(value, pa.RecordBatch):
        return _BATCH + _stream(value.schema, [value])
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True)
        if json.loads(text) != value:
            raise ValueError("it would come back as something else")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidUseError(
            f"a parameter is a pyarrow Table, a RecordBatch, or plain data as in JSON: {error} type={type(value).__name__}"
        ) from error
    return _JSON + text.encode()


def decode_value(data: bytes) -> Any:
    """The value in these bytes; anything that ``encode_value`` does not make is corrupt."""
    form, body = data[:1], data[1:]
    try:
        if form == _JSON:
            return json.loads(body)
        if form in (_TABLE, _BATCH):
            table = pa.ipc.open_stream(body).read_all()
            table.validate(full=True)
            return table if form == _TABLE else table.combine_chunks().to_batches()[0]
    except (pa.ArrowException, ValueError, OSError, IndexError, RecursionError) as error:
        raise CorruptDataError(f"not the value of a parameter: {error}") from error
    raise CorruptDataError(f"not the value of a parameter form={form!r}")


def _stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _shape(data: bytes) -> str:
    if data[:1] == _JSON:
        return "plain data"
    kind = "table" if data[:1] == _TABLE else "batch"
    return f"{kind} of {', '.join(f'{field.name} {field.type}' for field in pa.ipc.open_stream(data[1:]).schema)}"


# -- the parameters of a function --------------------------------------------------------------------------------------


def parameters_of(function: object, declared: Iterable[Parameter] = ()) -> tuple[Parameter, ...]:
    """Those declared and those that the function reaches: through closures, globals, defaults and attributes. By name."""
    given = list(declared)
    if strange := [each for each in given if not isinstance(each, Parameter)]:
        raise InvalidUseError(f"parameters are tidegate.Parameter objects parameters={strange!r:.200}")
    return united([*given, *_reached(function, set(), 0)])


def united(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """Each once, by name. Two of a name must be the same."""
    found: dict[str, Parameter] = {}
    for each in parameters:
        if found.setdefault(each.name, each) != each:
            raise InvalidUseError(f"two parameters have one name and different initial values name={each.name}")
    return tuple(found[name] for name in sorted(found))


def _reached(thing: object, seen: set[int], depth: int) -> Iterator[Parameter]:
    if isinstance(thing, Parameter):
        yield thing
    elif id(thing) not in seen and depth < _DEPTH_MAX:
        seen.add(id(thing))
        for part in _parts(thing):
            yield from _reached(part, seen, depth + 1)


def _parts(thing: object) -> Iterable[object]:
    match thing:
        case FunctionType():
            return (*_cells(thing), *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), *_globals(thing))
        case MethodType():
            return (thing.__func__, thing.__self__)
        case functools.partial():
            return (thing.func, *thing.args, *thing.keywords.values())
        case dict():
            return list(thing.values())[:_ITEMS_MAX]
        case list() | tuple() | set() | frozenset():
            return list(thing)[:_ITEMS_MAX]
        case ModuleType() | type() | str() | bytes() | int() | float() | None:
            return ()
        case _:
            return _attributes(thing)


def _attributes(thing: object) -> Iterable[object]:
    """Of an object: its own, and the methods of its class."""
    try:
        own = tuple(vars(thing).values())
    except TypeError:  # it has none of its own
        own = ()
    methods = [each for each in vars(type(thing)).values() if isinstance(each, FunctionType)]
    return (*own, *methods) if own or callable(thing) else ()


def _cells(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _globals(function: FunctionType) -> Iterator[object]:
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names
