"""Is an output exact? Spark SQL computes it again in batch from the same files, every row is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.spark.session import Session

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """What an output says it is: ``query`` over the view ``events`` returns the same rows.

    ``keys`` identify a row, ``equal`` columns must be equal, ``close`` ones are float sums.
    """

    name: str
    output: Path
    keys: Sequence[str]
    equal: Sequence[str]
    close: Sequence[str]
    query: str


@dataclass(frozen=True, slots=True)
class Proof:
    """What the comparison found."""

    name: str
    rows: int
    rows_expected: int
    wrong: int

    @property
    def exact(self) -> bool:
        """No row is missing, doubled, foreign or different."""
        return self.wrong == 0 and self.rows == self.rows_expected


def prove(spark: Session, data: Path, claims: Sequence[ExpectedOutput]) -> list[Proof]:
    """Compare every claim's output with Spark SQL's answer. Blocks."""
    spark.read.parquet(str(data)).createOrReplaceTempView("events")
    return [_prove(spark, claim) for claim in claims]


def _prove(spark: Session, claim: ExpectedOutput) -> Proof:
    if not any(claim.output.glob("[!_.]*.parquet")):
        expected = spark.sql(f"SELECT count(*) FROM ({claim.query})").collect()[0][0]
        return Proof(claim.name, 0, expected, expected)
    spark.read.parquet(str(claim.output)).createOrReplaceTempView("output")
    rows, expected, wrong = spark.sql(comparison(claim)).collect()[0]
    return Proof(claim.name, rows or 0, expected or 0, wrong or 0)


def comparison(claim: ExpectedOutput) -> str:
    """One pass over both: rows with the same keys meet in a group, where each side must have exactly one."""
    keys = ", ".join(claim.keys)
    columns = ", ".join([*claim.keys, *claim.equal, *claim.close])
    sides = ", ".join(
        f"any_value({column}) FILTER (WHERE ours = {side}) AS {column}_{side}"
        for column in [*claim.equal, *claim.close]
        for side in (0, 1)
    )
    # A null is a difference too: comparing with it is neither true nor false.
    same = ["query_rows = 1", "output_rows = 1", *(f"{c}_0 IS NOT DISTINCT FROM {c}_1" for c in claim.equal)]
    same += [f"coalesce(abs({c}_0 - {c}_1) <= {TOLERANCE} * abs({c}_0), false)" for c in claim.close]
    return f"""
        SELECT sum(output_rows), sum(query_rows), count_if(NOT ({" AND ".join(same)})) FROM (
            SELECT {keys}, sum(1 - ours) AS query_rows, sum(ours) AS output_rows, {sides} FROM (
                SELECT 0 AS ours, {columns} FROM ({claim.query})
                UNION ALL SELECT 1 AS ours, {columns} FROM output)
            GROUP BY {keys})"""
