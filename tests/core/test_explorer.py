"""Every interleaving of small systems keeps every promise. See ``explorer`` for what is checked."""

from __future__ import annotations

import pytest
from explorer import Explorer, System
from systems import SYSTEMS


@pytest.mark.parametrize("system", SYSTEMS, ids=[system.name for system in SYSTEMS])
def test_every_interleaving_keeps_every_promise(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    report = Explorer(system).run()
    with capsys.disabled():
        print(f"\n  {report}", end="")
    assert report.commits > 0, "no checkpoint ever committed: the search shows nothing"
    assert report.finished > 0, "no run ever ended: the search shows nothing"
    assert (report.restores > 0) == (system.crashes > 0)
    assert report.complete == (system.depth_max is None)
    assert report.complete or report.depth == system.depth_max
