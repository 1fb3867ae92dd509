"""How much a checkpoint keeps in the store, and when it is worth writing all of its state again.

Checkpoints are incremental: a manifest names runs in objects of earlier ones, and an object stays as long as one run of it is
used. Compaction writes every run once more, so that the objects before can go. It is never a reason to abort.
"""

from __future__ import annotations

from tidegate.core.checkpoint.manifest import CheckpointManifest, byte_ranges

UNUSED_PART_MIN = 4
"""At least one in so many bytes must be unused: else a state that is larger than the limit would be written over and over."""


def stored_bytes(manifest: CheckpointManifest) -> int:
    """What the objects that it names take, used or not."""
    return sum(entry.size_bytes for entry in manifest.objects)


def used_bytes(manifest: CheckpointManifest) -> int:
    """What it reads of them. A run that several entries name counts once."""
    return sum(length for _, _, length in set(byte_ranges((*manifest.operators, *manifest.sources), manifest.inflight)))


def is_outgrown(manifest: CheckpointManifest | None, limit_bytes: int) -> bool:
    """It takes more than the limit, and enough of that for nothing: the next one is written compacted."""
    if manifest is None or (stored := stored_bytes(manifest)) <= limit_bytes:
        return False
    return UNUSED_PART_MIN * (stored - used_bytes(manifest)) >= stored
