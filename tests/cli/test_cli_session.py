"""The session's checks: what is missing is said in seconds, in words."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tidegate.errors import InvalidUseError
from tidegate.spark import session
from tidegate.spark.session import find_java, local_session


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere:/bin:/usr/bin" if not Path("/usr/bin/java").exists() else "/nowhere")
    monkeypatch.setattr(session, "CHECKOUT", tmp_path / "checkout")
    return tmp_path


def on_path(monkeypatch: pytest.MonkeyPatch, java: Path) -> None:
    monkeypatch.setenv("PATH", f"{java.parent}:/bin")


def test_a_machine_without_java_is_told_what_to_do(machine: Path) -> None:
    with pytest.raises(InvalidUseError, match=r"needs Java 17 or newer \(none found\).*JAVA_HOME"):
        local_session()


def test_a_java_that_is_too_old_is_named(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(machine / "old", "11.0.2").parent.parent))
    with pytest.raises(InvalidUseError, match="old/bin/java is version 11"):
        find_java()


def test_a_java_home_without_java_is_named(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine / "empty"))
    with pytest.raises(InvalidUseError, match="empty/bin/java does not run"):
        find_java()


def test_java_home_comes_first_then_path_then_the_checkout(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = fake_java(machine / "checkout" / ".java", "21.0.1")
    assert find_java() == shim
    path = fake_java(machine / "path", "17.0.1")
    monkeypatch.setattr("shutil.which", lambda name: str(path))
    assert find_java() == path
    home = fake_java(machine / "home", "25")
    monkeypatch.setenv("JAVA_HOME", str(home.parent.parent))
    assert find_java() == home


def test_spark_is_pointed_at_the_java_that_was_found(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = fake_java(machine / "checkout" / ".java", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(machine / "broken"))
    session._use_java(find_java())
    assert Path(os.environ["JAVA_HOME"]) == shim.parent.parent


@pytest.mark.parametrize("master", ["", "local(3)", "localhost", "local[x]", "http://host"])
def test_a_master_that_is_none_is_refused(master: str) -> None:
    with pytest.raises(InvalidUseError, match="a Spark master looks like"):
        local_session(master)


def test_a_master_that_does_not_answer_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidUseError, match="no Spark master answers there"):
            local_session(master)


def test_one_master_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        session._check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")


def test_shuffles_are_as_wide_as_the_session() -> None:
    assert [session._partitions(master) for master in ("local[3]", "local[12,2]")] == ["3", "12"]


def test_what_the_jvm_prints_goes_to_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with session._stderr_to(tmp_path / "log"):
        os.write(2, b"noise\n")
    os.write(2, b"news\n")
    assert (tmp_path / "log").read_text() == "noise\n"
    assert capfd.readouterr().err == "news\n"
