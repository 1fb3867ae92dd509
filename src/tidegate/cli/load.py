"""Gets the pipeline out of a user's file, by running that file as ``python FILE`` would."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tidegate.errors import InvalidUseError, TidegateError

if TYPE_CHECKING:
    from tidegate.api.pipeline import Pipeline

DEFAULT_NAME = "pipeline"
DEFAULT_MASTER = "local[3]"
# Not a name that can be imported: so Spark ships the file's functions by value; workers need no copy of it.
MODULE_NAME = "__tidegate_pipeline__"


def load_pipeline(target: str) -> Pipeline:
    """The pipeline that ``FILE`` or ``FILE:name`` defines."""
    from tidegate.api.pipeline import Pipeline

    path, name = split_target(target)
    module = _run(path)
    if not hasattr(module, name):
        raise InvalidUseError(f"the file does not define `{name}`: assign a tg.Pipeline to it file={path}")
    found = getattr(module, name)
    if not isinstance(found, Pipeline):
        raise InvalidUseError(f"`{name}` is a {type(found).__name__}, not a tg.Pipeline file={path}")
    return found


def load_for_spark(target: str, master: str | None = None) -> Pipeline:
    """The same, where a session that the file makes (``from_dataframe`` needs one) is at this master and runs this Python."""
    from tidegate.spark.session import offered_session

    path, _ = split_target(target)
    with offered_session(master or DEFAULT_MASTER, f"tidegate {path.stem}"):
        return load_pipeline(target)


def split_target(target: str) -> tuple[Path, str]:
    """The file and the name in it; the file must be there."""
    path, name = Path(target), DEFAULT_NAME
    head, colon, tail = target.rpartition(":")
    if colon and tail.isidentifier() and not path.exists():
        path, name = Path(head), tail
    if not path.is_file():
        raise InvalidUseError(f"no such file: give the Python file that defines your pipeline file={path}")
    return path.resolve(), name


def _run(path: Path) -> ModuleType:
    module = ModuleType(MODULE_NAME)
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except TidegateError:
        raise
    except (Exception, SystemExit) as error:
        line = _line_of(error, path)
        raise InvalidUseError(f"the file failed: {type(error).__name__}: {error} file={path} line={line}") from error
    return module


def _line_of(error: BaseException, path: Path) -> int:
    """The last line of this file that the error passed through."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else 0
