"""Run the numerical tests again as other machines would round: no test may rest on this one's.

python -m tools.machines

Torch adds and exponentiates in another order with other instructions, and with another number of
threads. Two threads are tried together with no vector instructions at all; where this machine has
more than AVX2, AVX2 is tried too.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch

PYTEST = ("-m", "pytest", "-n", "auto", "--dist", "worksteal", "-m", "numerical and not slow")
# Two threads for every process are more than there are cores: they wait without spinning.
THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}


def others(capability: str) -> list[dict[str, str]]:
    """The environments that make a machine of this capability round as others do."""
    plain = {"ATEN_CPU_CAPABILITY": "default", **THREADS}
    return [plain, AVX2] if capability.startswith("AVX512") else [plain]


def main() -> None:
    """Stop at the first environment in which a test fails."""
    own = torch.backends.cpu.get_cpu_capability()
    for environment in others(own):
        said = " ".join(f"{name}={value}" for name, value in environment.items())
        print(f"the numerical tests once more, on a CPU with {own}: {said}", flush=True)
        command = [sys.executable, *PYTEST]
        kept = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # what the first run compiled
        done = subprocess.run(command, env={**kept, **environment}, check=False)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
