"""Files from strangers: never a traceback, never a hang, never a wrong label called UNIQUE."""

from __future__ import annotations

import warnings
from contextlib import suppress
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import softleak as sl
from softleak.audit import Options, audit
from softleak.core.errors import FileError, SoftleakError
from softleak.paper import models
from tests.properties.bad_inputs import Stock, attack, invert

FEW, MANY, INVERTED = 300, 12_000, 4


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Stock.make(tmp_path_factory.mktemp("stock"), models.trained_lenet(), 32)


@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.slow)], ids=str
)
@pytest.mark.filterwarnings("ignore")
def test_bad_files_are_refused_or_audited_and_no_wrong_label_is_unique(tmp_path, stock, seeds):
    outcomes = [attack(stock, tmp_path, seed) for seed in seeds]
    assert {"refused", "UNIQUE", "NOTHING"} <= set(outcomes)  # the generator does its work


def test_tampered_shares_do_not_break_the_inversion(tmp_path):
    torch.manual_seed(0)
    stock = Stock.make(tmp_path, models.lenet(image=16).eval(), 16)  # which is inverted in a moment
    done = filter(None, (invert(stock, seed) for seed in range(FEW)))
    assert sum(islice(done, INVERTED)) == INVERTED


VALUES = npst.arrays(
    st.sampled_from(["f2", "f4", "f8", "i1", "i8", "c8", "?", ">f4"]),
    npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
)


@settings(max_examples=100, deadline=None)
@given(arrays=st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
def test_strange_arrays_give_one_clear_error_or_a_share(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("strange") / "x.pt"
    ready = {n: torch.from_numpy(a.astype(a.dtype.newbyteorder("="))) for n, a in arrays.items()}
    torch.save(ready, path)
    with suppress(SoftleakError):
        share = sl.GradientShare.load(path)
        assert all(isinstance(g, torch.Tensor) for g in share.values())


SHAPES = {"classifier.weight": (10, 768), "features.4.bias": (12,), "features.0.bias": (12,)}
WILD = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=40, deadline=None)
@given(
    scale=st.floats(-330, 308), pattern=st.integers(0, 2**32 - 1), spike=WILD,
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    rank=st.integers(0, 3),
)  # fmt: skip
def test_any_numbers_give_a_report_or_a_clear_error(trained, scale, pattern, spike, dtype, rank):
    generator = torch.Generator().manual_seed(pattern)

    def wild(shape: tuple[int, ...]) -> torch.Tensor:
        parts = [torch.randn(shape[0], rank, generator=generator, dtype=torch.double)]
        parts += [torch.randn(rank, n, generator=generator, dtype=torch.double) for n in shape[1:]]
        g = parts[0] @ parts[1] if len(shape) == 2 else parts[0].sum(1)
        g = g * 10.0**scale
        if pattern % 3 == 0:
            g.flatten()[pattern % g.numel()] = spike
        return g.to(dtype)

    share = sl.GradientShare({name: wild(shape) for name, shape in SHAPES.items()})
    with suppress(SoftleakError):
        audit(trained, share, options=Options(inputs=False), input_shape=(3, 32, 32))


def test_a_claim_is_checked_before_memory_is_taken(tmp_path):
    """A terabyte of entries behind four bytes, and an archive that unfolds to far more."""
    torch.save({"w": torch.ones(1).expand(1 << 40)}, tmp_path / "stride.pt")
    with pytest.raises(FileError, match="does not have them"):
        sl.GradientShare.load(tmp_path / "stride.pt")
