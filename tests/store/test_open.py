"""From a URL to a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import InvalidUseError
from tidegate.store.durable import DurableFileStore
from tidegate.store.open import absolute_url, check_writable, open_store


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}", "file:{}", "FILE:{}"])
def test_a_path_and_its_file_url_are_the_same_directory(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(tmp_path / "a b"))
    store.put("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"
    assert open_store(store.url).get("x") == b"1"


def test_a_path_object_will_do(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path), DurableFileStore)


def test_an_absolute_url_does_not_depend_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        absolute_url("a/../b")
        == absolute_url(f"file://{tmp_path}/b")
        == absolute_url(f"file:{tmp_path}/b")
        == str(tmp_path / "b")
    )
    assert absolute_url("s3://bucket/a/../b") == "s3://bucket/a/../b"
    assert absolute_url("memory://x") == "memory://x"


def test_memory_is_shared_by_name_and_fresh_without_one() -> None:
    open_store("memory://test-open/a").put("x", b"1")
    assert open_store("memory://test-open/a").get("x") == b"1"
    assert list(open_store("memory://test-open/b").list("")) == []
    open_store("memory://").put("x", b"1")
    assert list(open_store("memory://").list("")) == []


@pytest.mark.parametrize("url", ["", "/", "ftp://host/x", "://x", "file://host/x", "s3://", "http://host/x", "az://", "a\0b"])
def test_a_url_that_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidUseError):
        open_store(url)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(InvalidUseError):
        open_store("s3://bucket", options={"no_such_option": "1"})


def test_a_path_that_is_no_directory_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidUseError, match=r"the store cannot be used: .*url=file://"):
        check_writable(open_store(tmp_path / "file" / "store"))


def test_a_read_only_directory_cannot_be_used() -> None:
    with pytest.raises(InvalidUseError, match="the store cannot be used"):
        check_writable(open_store("/proc/tidegate"))


@pytest.mark.parametrize("path", ["/proc/store", "/proc/self/store", "/sys/store", "/dev/null", "/dev/store", "/proc"])
def test_a_directory_of_the_kernel_is_refused_in_one_clear_sentence(path: str) -> None:
    with pytest.raises(InvalidUseError, match=f"not files on a disk, choose another directory path={path}$"):
        open_store(path)


def test_shared_memory_and_what_a_link_leads_to_are_directories_like_others(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("/dev/shm/store")
    store = open_store("/proc/self/cwd/store")
    check_writable(store)
    store.put("object", b"bytes")
    assert (tmp_path / "store" / "object").is_file()


@pytest.mark.parametrize("path", ["file", "file/store"])
def test_a_file_where_a_directory_should_be_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidUseError, match=r"the store cannot be used: .*not a directory.* url=file://"):
        check_writable(open_store(tmp_path / path))


def test_a_file_system_that_makes_no_directories_is_refused(tmp_path: Path, monkeypatch) -> None:
    def makes_none(folder: Path) -> None:
        raise FileNotFoundError(2, "no such file or directory")

    monkeypatch.setattr(Path, "mkdir", makes_none)
    with pytest.raises(InvalidUseError, match="choose a directory on a disk"):
        check_writable(open_store(tmp_path / "store"))
