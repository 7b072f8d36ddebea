from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
from softleak.cli.app import keep_freed_memory
kept = {} and keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(16):
    bytearray(2**25)
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool) -> tuple[bool, int]:
    """Whether memory is kept, and the pages that the kernel cleared for 16 times 32 MB."""
    run = subprocess.run(
        [sys.executable, "-c", FAULTS.format(keep)], check=True, capture_output=True, text=True
    )
    kept, count = run.stdout.split()
    return bool(int(kept)), int(count)


def test_freed_memory_is_used_again_without_asking_the_kernel():
    kept, count = faults(keep=True)
    if not kept:
        pytest.xfail("only glibc can be told to keep memory")
    assert count < faults(keep=False)[1] / 2
