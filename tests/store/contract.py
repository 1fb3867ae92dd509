"""What every store must do. A test module subclasses ``StoreContract`` and gives it a ``store`` fixture."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.store.interface import Store
from tidegate.store.open import check_writable

BAD_PATHS = ["", "/", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a\\b", "a\nb", "a/.tmp-1", "x" * 901]


class StoreContract:
    """The contract, one sentence per test."""

    def test_what_is_put_can_be_read(self, store: Store) -> None:
        store.put("a/b.bin", b"hello")
        assert store.get("a/b.bin") == b"hello"

    def test_put_overwrites(self, store: Store) -> None:
        store.put("a", b"one, the longer one")
        store.put("a", b"two")
        assert store.get("a") == b"two"

    def test_put_takes_many_pieces(self, store: Store) -> None:
        pieces = [b"%d," % number for number in range(3_000)]
        store.put("a/b", *pieces, b"", memoryview(b"end"), pa.py_buffer(b"."))
        assert store.get("a/b") == b"".join(pieces) + b"end."

    def test_put_takes_memoryviews_and_nothing_at_all(self, store: Store) -> None:
        store.put("view", memoryview(bytearray(b"hello"))[1:3])
        store.put("empty", b"")
        assert (store.get("view"), store.get("empty")) == (b"el", b"")

    def test_large_objects_survive(self, store: Store) -> None:
        data = bytes(range(256)) * (20 << 12)
        store.put("large", data)
        assert store.get("large") == data
        assert store.get_range("large", 17 << 20, 300) == data[17 << 20 :][:300]

    def test_create_writes_once(self, store: Store) -> None:
        assert store.create("log/0.json", b"first") is True
        assert store.create("log/0.json", b"second") is False
        assert store.get("log/0.json") == b"first"

    def test_create_does_not_replace_what_was_put(self, store: Store) -> None:
        store.put("a", b"put")
        assert store.create("a", b"created") is False
        assert store.get("a") == b"put"

    def test_a_deleted_name_can_be_created_again(self, store: Store) -> None:
        store.create("a", b"1")
        store.delete(["a"])
        assert store.create("a", b"2") is True

    def test_of_many_creators_exactly_one_wins(self, store: Store) -> None:
        start = threading.Barrier(8)

        def race(number: int) -> bool:
            start.wait(20)
            return store.create("slot", b"%d" % number)

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(race, range(8)))
        assert won.count(True) == 1
        assert store.get("slot") == b"%d" % won.index(True)

    def test_a_missing_object_is_file_not_found(self, store: Store) -> None:
        store.put("a/b", b"x")
        for path in ("missing", "a/missing", "a"):
            with pytest.raises(FileNotFoundError):
                store.get(path)
            for length in (0, 1):
                with pytest.raises(FileNotFoundError):
                    store.get_range(path, 0, length)

    def test_a_range_is_exactly_those_bytes(self, store: Store) -> None:
        store.put("a", b"0123456789")
        assert store.get_range("a", 0, 10) == b"0123456789"
        assert store.get_range("a", 3, 4) == b"3456"
        assert store.get_range("a", 3, 0) == b""

    @pytest.mark.parametrize(("start", "length"), [(8, 3), (10, 1), (50, 1)])
    def test_a_range_beyond_the_end_is_corrupt(self, store: Store, start: int, length: int) -> None:
        store.put("a", b"0123456789")
        with pytest.raises(CorruptDataError) as caught:
            store.get_range("a", start, length)
        assert caught.value.path == "a"

    @pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
    def test_a_negative_range_is_refused(self, store: Store, start: int, length: int) -> None:
        with pytest.raises(InvalidUseError):
            store.get_range("a", start, length)

    def test_list_goes_by_complete_path_parts(self, store: Store) -> None:
        for path in ("log/0.json", "log/1.json", "log/deep/2.json", "logs/3.json", "other"):
            store.put(path, path.encode())
        found = {info.path: info.size_bytes for info in store.list("log")}
        assert found == {"log/0.json": 10, "log/1.json": 10, "log/deep/2.json": 15}
        assert {info.path for info in store.list("log/")} == set(found)
        assert len(list(store.list(""))) == 5
        assert list(store.list("nothing")) == []
        assert list(store.list("lo")) == []

    def test_a_fresh_store_is_empty(self, store: Store) -> None:
        assert list(store.list("")) == []

    def test_many_objects_are_listed_and_deleted(self, store: Store) -> None:
        paths = [f"many/{number:04d}" for number in range(60)]
        for path in paths:
            store.create(path, b"x")
        assert sorted(info.path for info in store.list("many")) == paths
        store.delete(paths[:50])
        assert sorted(info.path for info in store.list("many")) == paths[50:]

    def test_deleting_what_is_gone_does_not_matter(self, store: Store) -> None:
        store.put("a", b"x")
        store.put("b", b"x")
        store.delete(["missing", "a", "deep/missing", "b"])
        store.delete(["a"])
        store.delete([])
        assert list(store.list("")) == []

    @pytest.mark.parametrize("path", BAD_PATHS)
    def test_a_path_that_is_none_is_refused_everywhere(self, store: Store, path: str) -> None:
        for call in (
            lambda: store.put(path, b""),
            lambda: store.create(path, b""),
            lambda: store.get(path),
            lambda: store.get_range(path, 0, 1),
            lambda: store.delete([path]),
        ):
            with pytest.raises(InvalidUseError):
                call()

    def test_unusual_but_legal_paths_work(self, store: Store) -> None:
        for path in ("spaced name/a b", "ünï/cödé", "a=b/c&d", "dots..in/na.me", "per%20cent", "plus+#x"):
            store.put(path, path.encode())
            assert store.get(path) == path.encode()
            assert path in {info.path for info in store.list("")}

    def test_the_store_can_carry_a_job(self, store: Store) -> None:
        check_writable(store)
        assert list(store.list("")) == []

    def test_the_url_says_where_it_is(self, store: Store) -> None:
        assert "://" in store.url and "@" not in store.url and "?" not in store.url
