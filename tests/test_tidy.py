"""The house rules, as tests: imports point inwards, the core is pure, files and functions stay small."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tidegate"

# What each package may import besides itself. Packages that are missing here may be imported by nobody below them.
BASE = {"ids", "errors", "values"}
ENGINE = BASE | {"clock", "core", "state", "plan", "operators", "planner", "store", "wire"}
ALLOWED = {
    "ids": {"errors"},
    "errors": set(),
    "values": set(),
    "clock": set(),
    "supervise": {"errors"},
    "core": BASE,
    "state": BASE | {"core"},
    "plan": BASE | {"core", "state"},
    "operators": BASE | {"core", "state", "plan"},
    "planner": BASE | {"core", "state", "plan", "operators"},
    "store": BASE | {"core"},
    "wire": BASE | {"core", "supervise"},
    "runtime": ENGINE | {"supervise"},
    "connectors": ENGINE - {"clock", "wire", "operators", "planner"} | {"runtime"},
    "spark": ENGINE | {"runtime", "connectors", "supervise"},
    "api": ENGINE - {"clock", "wire"} | {"runtime", "connectors", "spark"},
}
IMPURE = {
    "asyncio", "datetime", "io", "multiprocessing", "os", "pathlib", "queue", "random", "secrets", "select",
    "selectors", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time",
    "grpc", "numpy", "obstore", "pandas", "pyarrow", "pyspark",
}  # fmt: skip
PURE_EXCEPTIONS = {("duration.py", "datetime")}  # a timedelta is a value, not a clock


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if "_gen" not in path.parts)


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_inwards(path: Path) -> None:
    package = package_of(path)
    if package not in ALLOWED:
        return
    inner = {name.split(".")[1] for name in imports(path) if name.startswith("tidegate.")}
    outward = inner - ALLOWED[package] - {package}
    assert not outward, f"{path.relative_to(ROOT)} imports {sorted(outward)}"


@pytest.mark.parametrize("path", sorted((SOURCE / "core").rglob("*.py")), ids=lambda path: path.name)
def test_the_core_is_pure(path: Path) -> None:
    impure = {name.split(".")[0] for name in imports(path)} & IMPURE
    impure = {name for name in impure if (path.name, name) not in PURE_EXCEPTIONS}
    assert not impure, f"core/{path.name} imports {sorted(impure)}"


def test_only_the_spark_package_and_the_command_line_import_pyspark() -> None:
    allowed = {"spark", "cli", "testing"}
    users = {package_of(path) for path in modules() if any(n.split(".")[0] == "pyspark" for n in imports(path))}
    assert users <= allowed


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    limit = 400 if package_of(path) == "core" else 500
    assert text.count("\n") <= limit, f"{path.relative_to(ROOT)} has {text.count(chr(10))} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 70, f"{path.relative_to(ROOT)}:{node.name} has {length} lines"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_stored_or_received_is_unpickled(path: Path) -> None:
    assert not {"pickle", "marshal", "shelve", "dill"} & {name.split(".")[0] for name in imports(path)}


def threads_made(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a thread is made by hand: of ``InheritableThread`` only one whose work is not guarded."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        target = next((ast.unparse(k.value) for k in node.keywords if k.arg == "target"), "")
        bare = name in {"Thread", "start_new_thread"} or ast.unparse(node.func) == "threading.Timer"
        if bare or (name == "InheritableThread" and not target.startswith("guarded(")):
            yield node.lineno, name


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_thread_is_supervised(path: Path) -> None:
    if path.name != "supervise.py":
        assert list(threads_made(ast.parse(path.read_text()))) == [], "start it with tidegate.supervise"


def test_the_rule_about_threads_sees_one() -> None:
    bare = "threading.Thread(target=f).start(); InheritableThread(target=f); InheritableThread(target=guarded(n, f, d))"
    assert sorted(name for _, name in threads_made(ast.parse(bare))) == ["InheritableThread", "Thread"]


def test_test_files_have_names_of_their_own() -> None:
    """Pytest imports them by name alone: two of one name can't be collected together."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


PACKAGES = "core|runtime|state|operators|wire|plan|planner"
NAMED = re.findall(rf"`((?:{PACKAGES})/[\w/]+\.py)::([\w.]+)`", (ROOT / "ARCHITECTURE.md").read_text())


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda value: str(value))
def test_the_functions_that_the_architecture_follows_exist(path: str, name: str) -> None:
    owner, _, method = name.partition(".")
    found = [node for node in ast.parse((SOURCE / path).read_text()).body if getattr(node, "name", "") == owner]
    assert found, f"{path} has no {owner}"
    assert not method or method in {getattr(node, "name", "") for node in ast.walk(found[0])}, f"{owner} has no {method}"


def test_the_architecture_follows_a_batch_a_barrier_and_a_recovery() -> None:
    assert len(NAMED) > 20


# -- one name, one meaning ---------------------------------------------------------------------------------------------

SAME_NAME = {
    "crash": "the command and the testing helper kill workers the same way",
    "dataframe": "Spark DataFrames: the user's verb, the source, and Spark's side of it",
    "effects": "each machine of the core has its own: what a subtask and what the coordinator asks of its shell",
    "explain": "the command shows what the planner explains",
    "failure": "kinds of failure: of exceptions, and of what Spark says",
    "gang": "the gang: the driver's view of it, and Spark's tasks",
    "owner": "the owner of a sink: the decision, and the file that says it for directories",
    "paths": "paths of objects: which are allowed, and those of a job",
    "pipeline": "the bench is named after the suite that it runs",
    "run": "commands are named after their verbs; a run of state is the field's word",
    "session": "session windows and Spark's session are both the field's words",
    "source": "a source: its operator, and its reader on a node",
    "start": "the start of a job: the user's call, and what it does",
    "state": "reading stored state: the function, and the command",
    "unaligned": "the bench is named after the suite that it runs",
    "windows": "windows: as users write them, and their arithmetic",
}
"""Modules of one name in several packages, and why that is one meaning or none of ours to change."""
LEADERS = {"Leader"}
"""``core.checkpoint.lead`` is about to lose its class of this name."""


def defined(path: Path) -> Iterator[tuple[str, str]]:
    """Public classes and type aliases of a module. An alias of the same type is the same thing wherever it stands."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, str(path)
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias" and node.value is not None:
            yield ast.unparse(node.target), ast.unparse(node.value)
        elif isinstance(node, ast.Assign) and re.fullmatch(r"_?[A-Z][a-z]\w*", name := ast.unparse(node.targets[0])):
            yield name, ast.unparse(node.value)


def test_no_class_name_means_two_things() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for path in modules():
        for name, meaning in defined(path):
            meanings[name].add(meaning)
    double = {name: found for name, found in meanings.items() if len(found) > 1 and not name.startswith("_")}
    assert set(double) <= LEADERS, double


def test_no_module_name_means_two_things() -> None:
    counts = Counter(path.stem for path in modules() if path.stem != "__init__")
    assert {name for name, count in counts.items() if count > 1} == set(SAME_NAME)


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
TERMS = [term.strip(" *`") for row in re.findall(r"^\| ([^|]+) \|", GLOSSARY, re.M)[1:] for term in row.split(",")]


@pytest.mark.parametrize("term", [term for term in TERMS if set(term) - {"-"}])
def test_every_term_of_the_glossary_is_used(term: str) -> None:
    word = re.compile(rf"(?<![a-z]){re.escape(term.partition(' (')[0])}", re.IGNORECASE)
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md"]
    assert any(word.search(path.read_text()) for path in [*pages, *modules()])


OURS_NO_LONGER = re.compile(
    r"\b(owed|owes|mend|mends|mended|told apart|chores|of its own thread)\b|windows? (is|are|was|were) (being )?given",
    re.IGNORECASE,
)


@pytest.mark.parametrize(
    "path", [*modules(), *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_fields_words_are_used(path: Path) -> None:
    assert not OURS_NO_LONGER.search(path.read_text())
