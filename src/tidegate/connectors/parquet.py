"""Parquet in and out."""

from tidegate.connectors.parquet_directory import ParquetDirectorySource
from tidegate.connectors.parquet_sink import ParquetSink
from tidegate.connectors.parquet_source import ParquetSource

__all__ = ["ParquetDirectorySource", "ParquetSink", "ParquetSource"]
