"""Checkpoints of a job in one process: snapshots, changelog, write-ahead log."""
