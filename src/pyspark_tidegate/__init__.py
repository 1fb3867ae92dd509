"""Makes ``spark.read.format("tidegate")`` work without registration: Spark scans modules named like this one."""

from contextlib import suppress

# Spark may scan with another Python, one that finds tidegate by PYTHONPATH and lacks what it needs. It has no use for the format
# then, and without the name Spark passes this module over; an error here would be printed by every session.
with suppress(ModuleNotFoundError):
    from tidegate.spark.datasource import TidegateDataSource as DefaultSource

__all__ = ["DefaultSource"]
