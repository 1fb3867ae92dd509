"""Text for people, JSON for programs, and bars on terminals only."""

from __future__ import annotations

import io
import json

import pytest

from tidegate.cli.console import Console, rate, shown, sized, table_lines
from tidegate.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_text_and_json_exclude_each_other() -> None:
    people, programs = io.StringIO(), io.StringIO()
    for output in (Console(False, people), Console(True, programs)):
        output.say("hello")
        output.table([{"n": 1}])
        output.document({"n": 1})
    assert people.getvalue() == "hello\nn\n1\n"
    assert json.loads(programs.getvalue()) == {"n": 1}
    assert programs.getvalue().count("\n") == 1


def test_json_says_no_nan() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        Console(True, io.StringIO()).document({"n": float("nan")})


def test_numbers_stand_right_and_words_left() -> None:
    rows = [{"name": "a", "row_count": 5}, {"name": "long", "row_count": 12_000}]
    assert table_lines(rows, ["name", "row_count"]) == [
        "name  row count",
        "a             5",
        "long     12,000",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (True, "yes"), (False, "no"), (1234, "1,234"), (0.5, "0.50"), ("x", "x")]
)
def test_values_are_shown_as_people_read_them(value: object, text: str) -> None:
    assert shown(value) == text


def test_sizes_and_rates_have_units() -> None:
    assert [sized(n) for n in (12, 2048, 5 << 20, 3 << 30, 2 << 40)] == [
        "12 B",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "2.0 TiB",
    ]
    assert [rate(n) for n in (12, 2_500, 3_100_000)] == ["12 rows/s", "2 k rows/s", "3.10 M rows/s"]


def test_a_terminal_gets_a_bar_that_overwrites_itself_and_goes_away() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("reading", 200, stream=stream, clock=clock) as progress:
        progress.update(50, "ok")
        clock.now_s = 0.05
        progress.update(60)  # too soon
        clock.now_s = 0.2
        progress.update(200)
    first, second, last = stream.getvalue().split("\r\x1b[K")[1:]
    assert first == "reading  [######                  ]  25%  ok"
    assert second == f"reading  [{'#' * 24}] 100%"
    assert last == ""
    assert "\n" not in stream.getvalue()


def test_elsewhere_a_line_comes_every_few_seconds_and_no_control_characters() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("reading", 200, stream=stream, clock=clock) as progress:
        for second in range(13):
            clock.now_s = float(second)
            progress.update(second * 10)
    lines = stream.getvalue().splitlines()
    assert [line.rpartition("] ")[2].strip() for line in lines] == ["25%", "50%"]
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_work_of_unknown_length_shows_a_count() -> None:
    stream = Terminal()
    Progress("reading", stream=stream, clock=Clock()).update(12_345)
    assert stream.getvalue().endswith("reading  12,345")


def test_more_than_everything_is_everything() -> None:
    stream = Terminal()
    Progress("reading", 10, stream=stream, clock=Clock()).update(15)
    assert stream.getvalue().endswith("100%")


def test_the_beginning_of_a_long_step_is_shown_at_once() -> None:
    stream = io.StringIO()
    Progress("bench", 4, stream=stream, clock=Clock()).show(1, "warming up")
    assert stream.getvalue() == f"bench  [{'#' * 6:<24}]  25%  warming up\n"


def test_an_event_stays_on_the_screen_below_no_bar() -> None:
    stream = Terminal()
    progress = Progress("reading", 10, stream=stream, clock=Clock())
    progress.update(5)
    progress.event("killed")
    assert stream.getvalue().endswith("\r\x1b[Kkilled\n")
