"""An aggregate that tidegate does not have: the distance between the smallest and the largest value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.aggregates import AggregateCall
from tidegate.errors import InvalidUseError
from tidegate.state.functions import AggregateFunction, register


def _result_type(where: str, kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_integer(kind):
        raise InvalidUseError(f"{where} needs whole numbers type={kind}")
    return pa.int64()


def _finish(parts: list[pa.Array]) -> pa.Array:
    return pc.subtract(parts[1], parts[0])


SPREAD = register(AggregateFunction("spread", _result_type, (("lo", "min"), ("hi", "max")), _finish))  # type: ignore[arg-type]


def spread(column: str) -> AggregateCall:
    return AggregateCall(SPREAD, column)
