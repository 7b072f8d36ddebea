"""Compare the time and the memory of one Gauss–Newton step with those of a naive one, in one run.

    python -m benchmarks.gauss_newton_speed [--kind "residual 8, SiLU"] [--size 16] [--repeats 3]

The naive step is the textbook one: every column of the Jacobian by ``jvp`` of the gradient under
``vmap`` in chunks of 96, the whole normal matrix as one product, and a general solver. Both compute
in float32 on one thread, at the same image. Times are processor seconds, the median of all repeats.
The memory is the largest that the process had after the product's own steps, which run first.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.func import jvp, vmap

import softleak as sl
from benchmarks.smooth_networks import KINDS, build, images
from softleak.core.subject import Subject
from softleak.matching import GaussNewton
from softleak.matching.gauss_newton.descent import NormalEquations
from softleak.matching.gauss_newton.equations import BatchEquations, BatchKnowledge

NAIVE_CHUNK = 96
STEP_DAMPING = 1e-3


def naive_step(equations: BatchEquations, rows: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return the damped step (n,) as a textbook computes it."""
    n, weight, r = len(z), equations.weight.float(), equations.residual(z)
    found = []
    for begin in range(0, n, NAIVE_CHUNK):
        tangents = torch.eye(n)[begin : begin + NAIVE_CHUNK]
        found.append(vmap(lambda v: jvp(rows, (z.float(),), (v,))[1])(tangents) * weight)
    jacobian = torch.cat(found)
    matrix = (jacobian @ jacobian.T).double()
    slope = (jacobian @ r.float()).double()
    damped = matrix + STEP_DAMPING * torch.diag(matrix.diagonal())
    step: Tensor = torch.linalg.solve(damped, slope)
    return step


def timed(run: Callable[[], object], repeats: int) -> float:
    """Return the median processor time of a call, after one that warms up."""
    run()
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        taken.append(time.process_time() - began)
    return median(taken)


def main() -> None:
    """Time both ways and print the figures."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", default="residual 8, SiLU", choices=list(KINDS))
    parser.add_argument("--size", type=int, default=16, help="side of the image")
    parser.add_argument("--repeats", type=int, default=3, help="steps that are timed")
    given = parser.parse_args()
    model = build(given.kind, given.size)
    x, y = images(1, given.size, 3)
    share = sl.capture(model, x[0], y[0])
    subject = Subject.of(model, tuple(x.shape[1:]))
    own = GaussNewton().model(subject, tuple(share), tuple(x.shape))
    equations = BatchKnowledge(y.double()).equations(own.exact, share, torch.float32)
    z = own.exact.pack(0.9 * x.double(), y.double())
    products = own.products(torch.float32)

    held: list[Tensor] = []

    def ours() -> object:
        r = equations.residual(z)
        jacobian, r = products.reduced(z, r, equations.weight, held[0] if held else None)
        held[:] = [jacobian]
        return NormalEquations.of(jacobian, r).step(STEP_DAMPING)

    quick = timed(ours, given.repeats)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{given.kind}, {given.size}×{given.size}: {len(z)} unknowns, {len(equations.weight)} rows"
    )
    print(f"softleak: {quick:.2f} s per step, {memory:.2f} GiB at most")
    slow = timed(lambda: naive_step(equations, own.quick.rows, z), given.repeats)
    print(f"naive: {slow:.2f} s per step, {slow / quick:.1f} times as long")


if __name__ == "__main__":
    main()
