"""A store does not grow with the number of checkpoints: the real coordinator, log, trimmer and collector in fast forward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.bench.growth import CONFIG, STATE_BYTES, Driver, Sample, grow, main
from tidegate.core.log.view import Takeover
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.soundness import verify
from tidegate.store.durable import DurableFileStore
from tidegate.store.interface import Store
from tidegate.store.open import open_store

ENTRY_BYTES = 4 * 1024
OBJECTS = 2 * CONFIG.gc_retain_count + 1  # one a node, and the hint


def check_flat(samples: list[Sample], store: Store) -> None:
    takeovers = [e for e in LogStore(store, "job").read() if isinstance(e, Takeover)]
    entries = 2 * (CONFIG.base_every + 1) + CONFIG.gc_retain_count + len(takeovers) + 2
    for sample in samples:
        assert sample.log_entries <= entries and sample.log_bytes <= entries * ENTRY_BYTES, sample
        assert sample.objects <= entries + OBJECTS, sample
        assert sample.bytes <= entries * ENTRY_BYTES + OBJECTS * STATE_BYTES < 2 << 20, sample


@pytest.mark.slow
def test_twenty_thousand_checkpoints_leave_a_store_of_less_than_two_mebibytes() -> None:
    store = open_store("memory://")
    samples = list(grow(store, 20_000, every=100))
    assert len(samples) == 200
    check_flat(samples, store)
    later = samples[len(samples) // 2 :]
    assert max(s.bytes for s in later) < 1.1 * max(s.bytes for s in samples[: len(samples) // 2]), "it is flat"
    verdict = verify(store, "job")
    assert len(verdict.epochs) == CONFIG.gc_retain_count
    assert [d for d in verdict.damage if "checksum" not in d.what] == [], "the made-up objects have made-up checksums"


def test_a_directory_stays_as_small(tmp_path: Path) -> None:
    store = DurableFileStore(tmp_path, durable=False)
    samples = list(grow(store, 400, every=20, killed_every=90))
    check_flat(samples, store)
    assert sum(1 for path in tmp_path.rglob("*") if path.is_dir()) < 20


def test_a_driver_that_was_never_trimmed_is_trimmed_by_the_next() -> None:
    """Killed after each base and before its trim."""
    store = open_store("memory://")
    for number in range(8):
        driver = Driver(store, f"leader-{number}")
        driver._blocking.want_collected = lambda order: False  # type: ignore[assignment, method-assign]
        for _ in range(CONFIG.base_every):
            driver.checkpoint()
    assert len(LogStore(store, "job").slots()) > 8 * CONFIG.base_every
    driver = Driver(store, "last")
    for _ in range(2 * CONFIG.base_every):
        driver.checkpoint()
    assert len(LogStore(store, "job").slots()) < 3 * CONFIG.base_every


def test_the_curve_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(500, "memory://", str(tmp_path / "growth.svg"))
    assert "500 " in capsys.readouterr().out and "<svg" in (tmp_path / "growth.svg").read_text()
