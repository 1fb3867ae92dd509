"""Where a leader may go from where it stands."""

from __future__ import annotations

from itertools import product

import pytest

from tidegate.core.checkpoint.mode import LEGAL_MODES, OVER, PUBLISHING, Mode, moved
from tidegate.errors import UnexpectedPhase


def test_every_mode_can_be_reached_and_those_that_are_over_cannot_be_left() -> None:
    reached = {Mode.READING}.union(*LEGAL_MODES.values())
    assert reached == set(Mode) and {mode for mode in Mode if not LEGAL_MODES[mode]} == OVER


def test_a_leader_can_be_replaced_wherever_it_stands() -> None:
    assert all(Mode.DEPOSED in LEGAL_MODES[mode] for mode in set(Mode) - OVER)


def test_nothing_is_published_before_the_takeover_is_confirmed() -> None:
    assert not PUBLISHING & {Mode.READING, Mode.TAKING_OVER, Mode.CONFIRMING}


@pytest.mark.parametrize(("here", "there"), list(product(Mode, repeat=2)))
def test_only_legal_moves_are_made(here: Mode, there: Mode) -> None:
    if there in LEGAL_MODES[here]:
        assert moved(here, there) is there
    else:
        with pytest.raises(UnexpectedPhase):
            moved(here, there)
