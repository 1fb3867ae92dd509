"""Checkpointed state as Arrow tables."""

from __future__ import annotations

import os

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.ids import Epoch


def read_state(store: str | os.PathLike[str], operator: str, epoch: int | None = None, job: str | None = None) -> pa.Table:
    """The state of an operator in a checkpoint: window, keys, and what was aggregated or kept for them.

    Without ``epoch`` it is the checkpoint that the next start would begin from; ``job`` is needed when several
    jobs of the store have such an operator.
    Windows that are closed are no longer state. A sliding window's state is kept by pane, the stretch that its windows share.
    """
    from tidegate.runtime import inspect

    if not isinstance(operator, str) or not operator:
        raise InvalidUseError(f"read_state needs the name of an operator operator={operator!r}")
    if epoch is not None and (not isinstance(epoch, int) or isinstance(epoch, bool)):
        raise InvalidUseError(f"an epoch is a number epoch={epoch!r}")
    wanted = None if epoch is None else Epoch(epoch)
    return inspect.read_state(inspect.find(os.fspath(store), job=job, epoch=wanted, operator=operator), operator)
