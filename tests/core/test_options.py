"""An option that does not exist is refused by name, with the nearest one and the list."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from tidegate.core.checkpoint.config import CheckpointConfig
from tidegate.core.options import check_options, option_names, strict_fields, strict_options
from tidegate.errors import InvalidUseError


@strict_options
def paint(wall: str, *, colour: str = "white", coats: int = 1) -> str:
    """Paints."""
    return f"{wall} {colour} {coats}"


@strict_fields
@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    height: int
    width: int = 2


def options(**named: Any) -> dict[str, Any]:
    """Options that a type checker would refuse before we can."""
    return named


def test_an_unknown_option_is_named_with_the_nearest_and_all_others() -> None:
    with pytest.raises(InvalidUseError) as caught:
        paint("north", **options(color="red"))
    assert str(caught.value) == "paint: there is no option 'color', did you mean 'colour'? options=wall, colour, coats"


def test_without_a_near_one_only_the_list_is_told() -> None:
    with pytest.raises(InvalidUseError, match=r"^x: there is no option 'zebra' options=a, b$"):
        check_options("x", ["a", "zebra"], ["a", "b", "a"])


def test_what_is_known_passes_and_the_function_looks_as_before() -> None:
    assert paint("north", colour="red", coats=2) == "north red 2"
    assert (paint.__name__, paint.__doc__) == ("paint", "Paints.")
    assert list(inspect.signature(paint).parameters) == option_names(paint) == ["wall", "colour", "coats"]


def test_a_value_that_is_missing_is_left_to_python() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'height'"):
        Settings(**options(width=1))


def test_a_class_is_the_same_but_for_unknown_fields() -> None:
    settings = Settings(1, width=3)
    assert dataclasses.replace(settings, width=2) == Settings(1)
    assert list(inspect.signature(Settings).parameters) == ["height", "width"]
    with pytest.raises(InvalidUseError, match=r"^Settings: there is no option 'hight', did you mean 'height'\?"):
        Settings(**options(hight=1))


def test_the_settings_of_checkpoints_are_such_a_class() -> None:
    with pytest.raises(InvalidUseError, match=r"CheckpointConfig: .*'intervall', did you mean 'interval'\? options=interval,"):
        CheckpointConfig(**options(intervall="1s"))
    config = CheckpointConfig(interval="1s")
    assert pickle.loads(pickle.dumps(config)) == config
