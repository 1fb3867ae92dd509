"""Makes ``spark.read.format("tidegate")`` work without registration: Spark scans modules named like this one."""

from tidegate.spark.datasource import TidegateDataSource as DefaultSource

__all__ = ["DefaultSource"]
