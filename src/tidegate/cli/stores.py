"""Which jobs a verb on a store is about."""

from __future__ import annotations

from tidegate.errors import InvalidUseError
from tidegate.runtime.inspect import existing_store, jobs_in, shown
from tidegate.store.interface import Store


def jobs_of(url: str, job: str | None) -> tuple[Store, list[str]]:
    """The store and its jobs, or the one that was asked for. Nothing there is an error."""
    if url.startswith("memory:"):
        raise InvalidUseError(f"a memory store ends with its process: nothing can be read from outside store={url}")
    store = existing_store(url)
    names = jobs_in(store)
    chosen = names if job is None else [name for name in names if name == job]
    if not chosen:
        wanted = "" if job is None else f" of job {job}"
        raise InvalidUseError(f"nothing{wanted} is stored there: check the store's address store={shown(url)}")
    return store, chosen
