"""Freed memory is used again. Every case has a process of its own, because the setting is the process's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidegate.runtime.memory import CHOSEN_BY_USER

ROUNDS = 100
PAGES_PER_ROUND = 4 * 480_000 // os.sysconf("SC_PAGESIZE")

COUNT_FAULTS = f"""
import resource, threading
import numpy as np
from tidegate.runtime.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def compute(found):
    numbers = np.arange(60_000)
    for rounds in (5, {ROUNDS}):
        before = faults()
        for _ in range(rounds):
            a = numbers // 7
            b = numbers % 7
            c = a + b
            d = c * 2
            del a, b, c, d
    found.append(faults() - before)

told = keep_freed_memory()
found = []
thread = threading.Thread(target=compute, args=(found,))  # as a node does: threads have heaps of their own
thread.start()
thread.join()
print(told, *found)
"""

pytestmark = pytest.mark.skipif(
    not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="only glibc can be told"
)


def page_faults(**more: str) -> tuple[str, int]:
    environment = {name: value for name, value in os.environ.items() if name not in CHOSEN_BY_USER} | more
    command = [sys.executable, "-c", COUNT_FAULTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    told, faults = done.stdout.split()
    return told, int(faults)


def test_arrays_of_a_thread_use_the_same_memory_again() -> None:
    told, faults = page_faults()
    assert told == "True"
    assert faults < PAGES_PER_ROUND


@pytest.mark.parametrize("name", CHOSEN_BY_USER)
def test_what_the_user_chose_stays(name: str) -> None:
    value = "glibc.malloc.trim_threshold=131072" if name == "GLIBC_TUNABLES" else "131072"
    told, _ = page_faults(**{name: value})
    assert told == "False"
