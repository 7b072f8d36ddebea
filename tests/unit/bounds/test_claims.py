"""Claims of protection, checked on the real classes of Flower, NVIDIA FLARE and Opacus."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from softleak import io as tensor_files
from softleak.bounds.claims import Caution, Contradiction, check_claim
from softleak.bounds.mechanisms import Mechanism, PrivacyClaim
from softleak.cli.app import app
from softleak.core.errors import OptionError

DELTA = 1e-5


@pytest.fixture(autouse=True)
def _seeded():
    """Frameworks draw from the global generators."""
    np.random.seed(3)
    torch.manual_seed(3)


@pytest.fixture(params=["flwr.client.mod", "flwr.clientapp.mod"])
def mods(request):
    """Flower's own mods, of the older interface and of the newer one."""
    return pytest.importorskip(request.param)


def noise_without_clip(message, context, call_next):
    """A mod as users write them: Flower's own noise, and no clipping."""
    from flwr.app import ArrayRecord
    from flwr.supercore.differential_privacy import add_gaussian_noise_inplace

    reply = call_next(message, context)
    ((key, record),) = reply.content.array_records.items()
    arrays = record.to_numpy_ndarrays()
    add_gaussian_noise_inplace(arrays, 5.0)
    reply.content[key] = ArrayRecord(
        dict(zip(record, (ArrayRecord([a])["0"] for a in arrays), strict=True))
    )
    return reply


def head_left_out(message, context, call_next):
    """A mod that sends the head as it is, around mods that protect everything."""
    inner = message.content.array_records
    reply = call_next(message, context)
    ((key, record),) = reply.content.array_records.items()
    first = next(iter(inner.values()))
    for name in record:
        if name.startswith("head"):
            record[name] = first[name]
    reply.content[key] = record
    return reply


def test_the_right_configuration_of_flower_holds(mods):
    found = check_claim(mods.LocalDpMod(1.0, 1.0, 1.0, DELTA))
    size = math.sqrt(2 * math.log(1.25 / DELTA))
    assert found.holds
    assert found.cautions == (Caution.PREDICTABLE,)
    low, high = found.noise.weakest
    assert low < size < high
    assert found.epsilon == pytest.approx(0.751, abs=1e-3)  # the classical noise is more than asked
    assert found.replaced == pytest.approx(1.61, abs=0.01)


def test_a_sensitivity_that_is_too_small(mods):
    found = check_claim(mods.LocalDpMod(1.0, 1e-4, 1.0, DELTA))
    assert found.contradictions == (Contradiction.SENSITIVITY, Contradiction.EPSILON)
    assert found.epsilon > 1e6


def test_the_classical_noise_beyond_its_validity(mods):
    found = check_claim(mods.LocalDpMod(1.0, 1.0, 100.0, DELTA))
    assert found.contradictions == (Contradiction.EPSILON,)


def test_clipping_alone(mods):
    for mod in (mods.fixedclipping_mod, mods.adaptiveclipping_mod):
        found = check_claim(mod, PrivacyClaim(clip=0.7))
        assert found.holds
        assert found.cautions == (Caution.CLIPPED_ALONE,)
        assert found.length == pytest.approx((0.7, 0.7), rel=1e-5)


def test_noise_that_is_missing(mods):
    found = check_claim(mods.fixedclipping_mod, PrivacyClaim(1.0, 1.0, 4.8, 1.0, DELTA))
    assert found.contradictions == (Contradiction.ABSENT, Contradiction.EPSILON)
    assert found.epsilon == math.inf


def test_mods_in_the_wrong_order(mods):
    local = mods.LocalDpMod(1.0, 1.0, 1.0, DELTA)
    wrong = check_claim([mods.fixedclipping_mod, local])
    assert wrong.contradictions == (Contradiction.ORDER,)
    assert check_claim([local, mods.fixedclipping_mod]).holds


def test_a_clip_that_is_not_applied():
    pytest.importorskip("flwr")
    found = check_claim(noise_without_clip, PrivacyClaim(1.0, 1.0, 5.0, 1.0, DELTA))
    assert found.contradictions == (Contradiction.UNCLIPPED, Contradiction.EPSILON)
    assert found.length[0] > 50
    assert found.epsilon == math.inf


def test_noise_on_some_layers_only():
    mods = pytest.importorskip("flwr.clientapp.mod")
    found = check_claim([head_left_out, mods.LocalDpMod(1.0, 1.0, 1.0, DELTA)])
    assert found.contradictions == (Contradiction.UNEVEN, Contradiction.EPSILON)
    assert {n for n, (_, high) in found.noise.tensors.items() if high < 1} == {
        "head.weight", "head.bias"
    }  # fmt: skip


def opacus_optimiser(secure=False, multiplier=1.0, clip=1.0):
    opacus = pytest.importorskip("opacus")
    model = opacus.GradSampleModule(nn.Linear(50, 30))
    return opacus.optimizers.DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), noise_multiplier=multiplier,
        max_grad_norm=clip, expected_batch_size=8, secure_mode=secure,
        generator=torch.Generator().manual_seed(1) if secure else None,
    )  # fmt: skip


def test_opacus_without_secure_mode_is_named_and_with_it_is_not():
    plain = check_claim(opacus_optimiser(), PrivacyClaim(epsilon=4.5, delta=DELTA))
    assert plain.holds
    assert plain.cautions == (Caution.PREDICTABLE,)
    assert plain.epsilon == pytest.approx(4.377, abs=1e-3)
    secure = check_claim(opacus_optimiser(secure=True), PrivacyClaim(epsilon=4.5, delta=DELTA))
    assert secure.holds
    assert not secure.cautions


def test_opacus_with_another_clip_or_no_noise():
    looser = check_claim(opacus_optimiser(clip=30.0, multiplier=0.1), PrivacyClaim(clip=1.0))
    assert Contradiction.UNCLIPPED in looser.contradictions
    silent = check_claim(opacus_optimiser(multiplier=0.0), PrivacyClaim(noise=1.0))
    assert silent.contradictions == (Contradiction.ABSENT,)


def test_the_engine_of_opacus_says_how_often_a_sample_is_used():
    opacus = pytest.importorskip("opacus")
    engine = opacus.PrivacyEngine()
    model = nn.Linear(50, 30)
    data = torch.utils.data.TensorDataset(torch.zeros(40, 50), torch.zeros(40))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimiser, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    for x, _ in list(loader)[:3]:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)).backward()
        optimiser.step()
    found = check_claim([engine, optimiser], PrivacyClaim(delta=DELTA))
    assert found.claim.rate == pytest.approx(0.1)
    assert found.claim.rounds == 3
    assert found.epsilon == pytest.approx(engine.get_epsilon(DELTA), abs=0.1)
    assert engine.accountant.history[-1][2] == 3  # the check spends nothing


def test_the_sparse_vector_filter_spends_more_than_its_epsilon():
    filters = pytest.importorskip("nvflare.app_common.filters.svt_privacy")
    own = filters.SVTPrivacy()
    found = check_claim(own)
    assert found.contradictions == (Contradiction.EPSILON,)
    assert found.epsilon > 100  # a tenth of ε for choosing, and 0.1 for every entry that is sent
    assert Caution.NOT_GAUSSIAN in found.cautions
    assert Caution.PARTLY_SENT in found.cautions
    assert own.get_privacy_spent() == 0
    declared = check_claim(filters.SVTPrivacy(epsilon_release=0.1), PrivacyClaim(epsilon=0.2))
    assert declared.holds


def test_filters_that_draw_nothing():
    filters = pytest.importorskip("nvflare.app_common.filters.percentile_privacy")
    assert check_claim([filters.PercentilePrivacy()]).cautions[0] is Caution.CLIPPED_ALONE
    found = check_claim([filters.PercentilePrivacy()], PrivacyClaim(epsilon=1.0, delta=DELTA))
    assert Contradiction.ABSENT in found.contradictions


GENERATOR = torch.Generator().manual_seed(5)


def drawn(size, like):
    return size * torch.randn(like.shape, generator=GENERATOR)


@pytest.mark.parametrize(
    ("send", "expected"),
    [
        (lambda s: {n: t + drawn(1e-2, t) for n, t in s.items()}, ()),
        (lambda s: {n: t + drawn(4e-3, t) for n, t in s.items()}, (Contradiction.SMALLER,)),
        (lambda s: {n: t + drawn(1e-2 * (1 + t.norm()), t) for n, t in s.items()},
         (Contradiction.DEPENDENT,)),
        (lambda s: {n: t + 1e-2 * torch.sign(drawn(1, t)) for n, t in s.items()},
         (Contradiction.SHAPE,)),
        (lambda s: {n: t + 1e-2 * torch.linspace(-1, 1, t.numel()).view_as(t)
                    for n, t in s.items()}, (Contradiction.ABSENT,)),
    ],
    ids=["right", "smaller", "by the step", "signs", "always the same"],
)  # fmt: skip
def test_mechanisms_of_ones_own(send, expected):
    assert check_claim(Mechanism(send), PrivacyClaim(noise=1e-2)).contradictions == expected


def update(noise, clip=1.0, size=3.0):
    own = {n: drawn(1, torch.empty(s)) for n, s in {"a": (40, 50), "b": (40,)}.items()}
    whole = math.sqrt(sum(float(t.square().sum()) for t in own.values()))
    own = {n: size / whole * t for n, t in own.items()}
    sent = {n: min(1, clip / size) * t + drawn(noise, t) for n, t in own.items()}
    return own, sent


def test_an_update_alone_bounds_its_noise_from_above():
    own, sent = update(0.05)
    claim = PrivacyClaim(1.0, 1.0, 0.05)
    alone = check_claim(sent, claim)
    assert alone.holds
    assert alone.cautions == (Caution.BOUNDED_ABOVE,)
    assert check_claim(sent, PrivacyClaim(noise=0.2)).contradictions == (Contradiction.SMALLER,)
    known = check_claim(sent, claim, undefended=own)
    assert known.holds
    assert not known.cautions
    low, high = known.noise.tensors["a"]
    assert low < 0.05 < high < 1.1 * low * 1.1


def test_an_update_that_was_not_clipped_or_has_no_noise():
    own, sent = update(0.05, clip=3.0)
    assert Contradiction.UNCLIPPED in check_claim(sent, PrivacyClaim(1.0, 1.0, 0.05)).contradictions
    bare = check_claim(own, PrivacyClaim(noise=0.05), undefended=own)
    assert bare.contradictions == (Contradiction.ABSENT,)


def test_the_command_ends_with_three_where_a_claim_is_contradicted(tmp_path):
    own, sent = update(0.05)
    for name, tensors in (("own", own), ("sent", sent)):
        tensor_files.save(tmp_path / f"{name}.safetensors", tensor_files.Content(tensors))
    files = [
        "--share", str(tmp_path / "sent.safetensors"),
        "--undefended", str(tmp_path / "own.safetensors"),
    ]  # fmt: skip
    run = CliRunner().invoke
    right = run(app, ["claim", *files, "--said", "clip=1,noise=0.05", "--json"])
    assert right.exit_code == 0, right.output
    assert json.loads(right.stdout)["holds"] is True
    wrong = run(app, ["claim", *files, "--said", "clip=1,noise=0.5"])
    assert wrong.exit_code == 3
    assert "less noise than is claimed" in " ".join(wrong.output.split())
    assert run(app, ["claim"]).exit_code == 2
    assert run(app, ["claim", *files, "--said", "clop=1"]).exit_code == 2


@pytest.mark.parametrize("wrong", [object(), [], [object()]])
def test_other_objects_are_refused(wrong):
    with pytest.raises(OptionError, match="expected mods of Flower"):
        check_claim(wrong)
    with pytest.raises(OptionError, match="clip above 0"):
        PrivacyClaim(clip=0.0)
