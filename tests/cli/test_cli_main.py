"""The command as a whole: its verbs, its errors and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.cli import explain
from tidegate.cli.main import VERBS, main, parser
from tidegate.errors import JobFailedError

ROOT = Path(__file__).resolve().parents[2]
NAMES = [module.__name__.rpartition(".")[2] for module in VERBS]


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    printed = capsys.readouterr().out
    assert exit_.value.code == 0
    assert NAMES == [
        "demo", "run", "coordinator", "explain", "jobs", "status", "checkpoint", "savepoint", "cancel", "stop", "drain", "signal",
        "checkpoints", "show", "state", "verify", "gc", "doctor", "bench",
    ]  # fmt: skip
    for name in NAMES:
        assert re.search(rf"^    {name}\b", printed, re.M), name


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_is_documented_with_all_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    text = (ROOT / "docs" / "cli.md").read_text()
    section = re.search(rf"^## tidegate {name}\b.*?(?=^## |\Z)", text, re.M | re.S)
    assert section, f"docs/cli.md has no section for {name}"
    missing = {option for option in options if f"`{option}" not in section.group() and option != "--json"}
    assert not missing, f"docs/cli.md does not explain {sorted(missing)} of {name}"


def test_the_documentation_knows_no_verb_that_does_not_exist() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert re.findall(r"^## tidegate (\w+)", text, re.M) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_takes_json(name: str) -> None:
    required = {
        "run": ["f"],
        "coordinator": ["s", "--job", "j"],
        "jobs": ["s"],
        "status": ["s"],
        "checkpoint": ["s", "j"],
        "savepoint": ["s", "j", "p"],
        "cancel": ["s", "j", "1"],
        "stop": ["s", "j"],
        "drain": ["s", "j"],
        "signal": ["s", "j", "k"],
        "explain": ["f"],
        "checkpoints": ["s"],
        "show": ["s", "1"],
        "state": ["s", "o"],
        "verify": ["s"],
        "gc": ["s", "--retain", "1"],
        "bench": ["pipeline"],
    }
    assert parser().parse_args([name, *required.get(name, []), "--json"]).json is True


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["run"],
        ["show", "store"],
        ["show", "store", "x"],
        ["bench", "nothing"],
        ["demo", "--rows"],
    ],
)
def test_a_wrong_command_line_exits_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["explain", "no.py"], "no such file"),
        (["run", "no.py"], "no such file"),
        (["checkpoints", "no-store"], "no such directory"),
        (["show", "no-store", "1"], "no such directory"),
        (["checkpoints", "ftp://host/x"], "no store of this kind"),
        (["checkpoints", "memory://x"], "memory store"),
        (["demo", "--rows", "0"], "--rows is a positive number"),
        (["bench", "pipeline", "--rows", "0"], "--rows is at least 1"),
        (["bench", "pipeline", "--pairs", "-1"], "--pairs is at least 0"),
        (["bench", "pipeline", "--workload", "w9"], "no such workload"),
    ],
)
def test_a_users_error_is_one_sentence_and_exit_code_2(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tidegate: ")
    assert sentence in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--interval", "soon"], "interval"),
        (["--interval", "0s"], "interval"),
        (["--master", "nowhere"], "Spark master"),
        (["--master", "spark://127.0.0.1:1"], "no Spark master answers"),
    ],
)
def test_run_refuses_wrong_options_before_it_starts_spark(
    options: list[str], sentence: str, pipeline_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(pipeline_file), *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--parallelism", "0"], "parallelism is a whole number"),
        (["--interval", "1s"], "checkpoints need a store: give --store"),
        (["--interval", "1s", "--store", "/proc/nowhere"], "the store cannot be used"),
        (["--interval", "1s", "--store", "ftp://host/x"], "no store of this kind"),
    ],
)
def test_run_asks_for_no_session_that_it_could_not_use(
    options: list[str],
    sentence: str,
    pipeline_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.spark.session.local_session", lambda *_: pytest.fail("Spark was started"))
    assert main(["run", str(pipeline_file), *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_failed_job_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pipeline_file: Path
) -> None:
    def fail(*_: object) -> int:
        raise JobFailedError("node 0: ZeroDivisionError")

    monkeypatch.setattr(explain, "execute", fail)
    assert main(["explain", str(pipeline_file)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch, pipeline_file: Path) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(explain, "execute", interrupt)
    assert main(["explain", str(pipeline_file)]) == 130


def test_a_reader_that_goes_away_is_no_error(pipeline_file: Path) -> None:
    command = f"{sys.executable} -m tidegate.cli.main explain {pipeline_file} | true"
    answer = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from tidegate.cli.main import parser; parser(); "
        "print([m for m in ('pyspark', 'pyarrow', 'numpy', 'grpc', 'obstore') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_explain_prints_the_plan_of_the_pipeline(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(pipeline_file)]) == 0
    assert "PhysicalBarrier" in capsys.readouterr().out


def test_explain_takes_the_name_of_another_pipeline(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{pipeline_file}:other"]) == 0
    assert "all" in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--json"], ["--json", "--format", "mermaid"], ["--format", "json"]])
def test_explain_prints_json(options: list[str], pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(pipeline_file), *options]) == 0
    assert json.loads(capsys.readouterr().out)


def test_explain_draws_mermaid(pipeline_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(pipeline_file), "--format", "mermaid"]) == 0
    assert capsys.readouterr().out.startswith(("graph", "flowchart"))


def test_a_python_that_lacks_what_tidegate_needs_passes_its_format_over() -> None:
    program = "import sys; sys.modules['pyarrow'] = None; import pyspark_tidegate as p; print(hasattr(p, 'DefaultSource'))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "False\n"), answer.stderr
