"""The lists of the documentation that are made of code are as the code is."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def tool() -> ModuleType:
    spec = spec_from_file_location("lists", ROOT / "tools" / "lists.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("path", "name"), tool().LISTS, ids=str)
def test_the_list_is_as_the_code_is(path: str, name: str) -> None:
    assert (ROOT / path).read_text() == tool().written(path, name), f"run {sys.executable} tools/lists.py"
