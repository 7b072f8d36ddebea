"""No all-clear on an update that is not what was assumed of it: each was once green, exit 0.

Every test makes an update whose truth is known with torch alone, audits it by the command line, and
compares what is claimed with the truth.
"""

from __future__ import annotations

import copy
import json
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import softleak as sl
from softleak.audit import Options, Truth, sweeps
from softleak.core.fit import Bearing, Topic
from softleak.present.words import feature_words
from tests.integration import strangers as s
from tests.integration.audits import run
from tests.integration.strangers import Files, Found

CONTRADICTED = "not attacked: the update contradicts what was stated"
LEAKS = ("label", "class", "input", "composition")
FAIL_ON_ANY = [word for leak in LEAKS for word in ("--fail-on", leak)]
FINE = 60.0  # dB: an input that was computed
WITHIN = 3.0  # dB: what a prediction may be too high
LABEL = torch.tensor([3])


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-3)


def honest(found: Found, classes: set[int]) -> None:
    """Check that an answer about an update that contradicts what was assumed claims too little.

    Nothing is green, nothing that is claimed is wrong, and the exit code is no all-clear.
    """
    assert found.code in (0, 2, 3, 5), found.output
    if found.code == 2:
        return
    assert found.named <= classes
    assert found.audit["severity"] != "none found"
    assert not found.green & {"label", "class", "feature"}
    assert found.code != 0 or found.leaks
    assert not found.report["fit"]["holds"] or "label" in found.leaks
    if "input" in found.leaks:
        assert found.psnr >= 20
        predicted = found.report["input"]["psnr_predicted"]
        assert predicted is None or predicted <= max(found.psnr + WITHIN, FINE)


# 1. Other losses.
@pytest.mark.parametrize("factory", [s.tagger, s.tagging_cnn], ids=["records", "images"])
@pytest.mark.parametrize("kind", [(), ("--kind", "gradient")], ids=["not said", "gradient"])
def test_several_tags_are_in_the_signs_of_the_bias(tmp_path, factory, kind):
    files, y = Files(tmp_path, factory), s.tags(1)
    found = files.share(s.gradient(files.model, files.x, y, s.bce), *kind, *FAIL_ON_ANY)
    assert found.named == set(y[0].nonzero()[:, 0].tolist())
    assert found.code == 3
    assert found.explained["loss"] == "bce"
    assert found.report["label"]["noise"] == 0
    honest(found, set(y[0].nonzero()[:, 0].tolist()))


@pytest.mark.parametrize("factory", [s.classifier, s.cnn], ids=["records", "images"])
@pytest.mark.parametrize("y", [F.one_hot(LABEL, 10), torch.linspace(-2, 2, 10)[None]], ids=str)
def test_a_squared_error_is_named_and_is_no_noise(tmp_path, factory, y):
    files = Files(tmp_path, factory)
    found = files.share(s.gradient(files.model, files.x, y, s.mse))
    one_hot = y.max() == 1
    assert found.explained["loss"] == ("mse" if one_hot else "another loss")
    assert found.report["label"]["noise"] == 0
    assert found.report["label"]["proved"] == ("UNIQUE" if one_hot else "NOTHING")
    honest(found, {3} if one_hot else set())


@pytest.mark.parametrize("factory", [s.classifier, s.cnn], ids=["records", "images"])
@pytest.mark.parametrize("kind", [(), ("--kind", "gradient")], ids=["not said", "gradient"])
@pytest.mark.parametrize("loss", [s.hinge, s.focal, s.at_temperature(0.5)],
                         ids=["hinge", "focal", "temperature"])  # fmt: skip
def test_other_losses_of_a_class_are_never_green(tmp_path, factory, kind, loss):
    files = Files(tmp_path, factory)
    found = files.share(s.gradient(files.model, files.x, LABEL, loss), *kind, "--fail-on", "label")
    assert found.named == {3}
    assert found.code in (3, 5)
    honest(found, {3})


@pytest.mark.parametrize("temperature", [2.0, 4.0])
@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_a_temperature_is_no_proof_of_a_label(tmp_path, temperature, gain):
    files = Files(tmp_path, s.classifier, gain=gain)
    loss = s.at_temperature(temperature)
    found = files.share(s.gradient(files.model, files.x, LABEL, loss), "--kind", "gradient")
    label = found.report["label"]
    if label["proved"] == "UNIQUE":
        off = (torch.tensor(label["label"]) - F.one_hot(LABEL, 10)[0]).abs().sum()
        assert float(off) <= label["error"]
    assert found.named <= {3}


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_a_temperature_that_nothing_can_tell_is_what_the_feature_rests_on(temperature):
    torch.manual_seed(0)
    head = torch.nn.Sequential(torch.nn.Linear(s.WIDTH, 10, bias=False))
    x = torch.rand(1, s.WIDTH)
    sent = s.gradient(head, x, LABEL, s.at_temperature(temperature))
    plain = s.gradient(head, x / temperature, LABEL)  # of another feature, under the plain loss:
    torch.testing.assert_close(sent["0.weight"], plain["0.weight"], rtol=1e-5, atol=1e-8)
    asked = Options(views=False, seconds=0.0)
    report = sl.audit(head, sl.GradientShare(sent, (s.WIDTH,), scale="known"), options=asked)
    assert report.label.proved == "UNIQUE"  # which is the same under both
    assert report.label.class_index == 3
    assert report.feature.up_to_length
    assert "if the loss has no temperature" in feature_words(report)
    assert report.fit[Topic.LOSS].bearing is Bearing.OPEN
    stated = sl.audit(head, sl.GradientShare(plain, (s.WIDTH,)), options=asked, loss="ce")
    assert not stated.feature.up_to_length


# 2. Inputs that one division recovers.
@pytest.mark.parametrize("loss", ["bce", "mse", "hinge", "focal"])
@pytest.mark.parametrize("kind", [(), ("--kind", "gradient")], ids=["not said", "gradient"])
def test_one_division_gives_the_input_under_every_loss(tmp_path, loss, kind):
    files = Files(tmp_path, s.tagger)
    y = {"bce": s.tags(2), "mse": torch.linspace(-1, 1, s.TAGS)[None]}.get(loss, LABEL)
    sent = s.gradient(files.model, files.x, y, getattr(s, loss))
    found = files.share(sent, *kind, "--fail-on", "input")
    assert found.states["input"] == "leaked"
    assert found.psnr >= FINE
    assert found.code == 3


@pytest.mark.parametrize("lr", [("--lr", 0.1), ()], ids=["rate", "no rate"])
def test_one_division_gives_the_input_of_two_checkpoints(tmp_path, lr):
    files = Files(tmp_path, s.smooth)
    target = torch.linspace(-1, 1, s.CLASSES)[None]
    after = s.trained(files.model, [(files.x, target)], sgd, s.mse)
    found = files.after(after, *lr, "--fail-on", "input")
    assert found.states["input"] == "leaked"
    assert found.psnr >= 40  # float32 weights after a step of a tenth
    assert found.code == 3


# 3. Pruned, top-k and quantised updates.
CODECS = {
    "pruned": lambda sent: s.pruned(sent, 0.1),
    "top-k": lambda sent: s.top_k(sent, 0.05),
    "int8": s.int8,
    "int8 at random": lambda sent: s.int8(sent, torch.Generator().manual_seed(0)),
}
CODED = {"pruned": "pruned", "top-k": "pruned", "int8": "grid", "int8 at random": "grid"}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("factory", [s.classifier, s.bare, s.cnn], ids=["bias", "bare", "images"])
def test_what_compression_leaves_names_the_class(tmp_path, codec, factory):
    files = Files(tmp_path, factory)
    sent = CODECS[codec](s.gradient(files.model, files.x, LABEL))
    *_, head = [n for n in sent if n.endswith("weight")]
    rows = sent.get(head.replace("weight", "bias"), sent[head].sum(1))
    assert rows.argmin() == 3  # what is left still says so:
    assert int((rows < 0).sum()) == 1
    found = files.share(sent, *FAIL_ON_ANY)
    assert found.named == {3}
    assert "class" in found.leaks
    assert found.code == 3
    assert found.contradicted["compression"] == CODED[codec]
    assert found.report["label"]["noise"] == 0 or codec.startswith("int8")
    honest(found, {3})


@pytest.mark.parametrize("codec", ["int8", "int8 at random"])
def test_eight_bits_leave_the_input_of_a_first_layer(tmp_path, codec):
    files = Files(tmp_path, s.classifier)
    sent = CODECS[codec](s.gradient(files.model, files.x, LABEL))
    found = files.share(sent, "--fail-on", "input")
    assert found.states["input"] == "leaked"
    assert found.psnr >= 40
    assert found.states["class"] == "leaked"  # an image never leaks beside a class that is a guess


def test_pruning_is_not_recommended_where_its_largest_entry_is_the_class(tmp_path, monkeypatch):
    only = [make for make in sweeps.SWEEPS if make(1.0).name == "Pruning"]
    monkeypatch.setattr(sweeps, "SWEEPS", only)
    files = Files(tmp_path, s.classifier)
    sent = s.gradient(files.model, files.x, LABEL)
    asked = ("--what-if", "--defences", "common", "--seeds", 1, "--labels-only")
    (prune,) = files.share(sent, *asked).audit["what_if"]["defences"]
    for leak, kept in prune["did_not_succeed_from"].items():
        left = (
            s.pruned(sent, kept)["2.bias"] if leak in ("class", "composition") else sent["2.bias"]
        )
        negative = set((left < 0).nonzero()[:, 0].tolist())
        assert negative != {3} or leak not in ("class", "composition"), (leak, kept)


# 4. Before and after swapped.
@pytest.mark.parametrize("factory", [s.classifier, s.bare, s.cnn], ids=["bias", "bare", "images"])
@pytest.mark.parametrize("lr", [("--lr", 0.1), ()], ids=["rate", "no rate"])
@pytest.mark.parametrize("loss", [s.cross_entropy, s.smoothing(0.1)], ids=["one-hot", "smoothed"])
def test_swapped_checkpoints_are_named_and_prove_no_class(tmp_path, factory, lr, loss):
    files = Files(tmp_path, factory)
    after = files.save("after.pt", s.trained(files.model, [(files.x, LABEL)], sgd, loss))
    found = files.audited("--before", after, "--after", files.weights, *lr)
    assert found.code in (2, 5)
    honest(found, {3})
    assert found.code == 2 or {"sign", "weights"} & found.contradicted.keys()
    if factory is not s.bare:  # whose evidence holds at the right weights alone
        assert found.code == 2 or found.contradicted["sign"] == "swapped"


def test_swapped_checkpoints_of_a_batch_prove_no_class(tmp_path):
    files, y = Files(tmp_path, s.classifier), torch.tensor([3, 5] * 6)
    state = s.trained(files.model, [(torch.rand(12, s.WIDTH), y)], sgd)
    after = files.save("after.pt", state)
    found = files.audited("--before", after, "--after", files.weights, "--lr", 0.1)
    assert found.code in (2, 5)
    honest(found, {3, 5})
    assert found.code == 2 or found.contradicted["sign"] == "swapped"


# 5. Declared noise that is not there.
@pytest.mark.parametrize("factory", [s.classifier, s.bare, s.cnn], ids=["bias", "bare", "images"])
@pytest.mark.parametrize("noise", [10, 0.1])
@pytest.mark.parametrize("asked", [(), ("--fail-on", "label")], ids=["plain", "label"])
def test_noise_that_is_not_there_is_an_error_of_the_declaration(tmp_path, factory, noise, asked):
    files = Files(tmp_path, factory)
    sent = s.gradient(files.model, files.x, LABEL)
    found = files.share(sent, "--noise", noise, *asked)
    assert found.code in ((2, 3, 5) if asked else (0, 2, 5))
    honest(found, {3})
    assert found.code == 2 or "noise" in found.contradicted


@pytest.mark.parametrize("factory", [s.classifier, s.cnn], ids=["records", "images"])
def test_noise_that_is_there_is_not_contradicted(tmp_path, factory):
    files = Files(tmp_path, factory)
    sent = s.with_noise(s.gradient(files.model, files.x, LABEL), 0.01)
    found = files.share(sent, "--noise", 0.01, "--labels-only")
    assert found.report["fit"]["holds"]
    assert found.hypothesis("noise")["state"] == "holds"


# 6. Other weights, and dropout.
def of_another_round(files: Files) -> torch.nn.Module:
    batches = [(torch.rand(8, *files.shape), torch.arange(8))] * 10
    own = copy.deepcopy(files.model)
    own.load_state_dict(s.trained(own, batches, sgd))
    return own


@pytest.mark.parametrize("factory", [s.classifier, s.bare, s.smooth, s.cnn],
                         ids=["bias", "bare", "tanh", "images"])  # fmt: skip
@pytest.mark.parametrize("which", ["seed", "round"])
@pytest.mark.parametrize("kind", [(), ("--kind", "gradient")], ids=["not said", "gradient"])
def test_weights_of_another_seed_or_round_are_named(tmp_path, factory, which, kind):
    files = Files(tmp_path, factory)
    own = s.made(factory, seed=5) if which == "seed" else of_another_round(files)
    found = files.share(s.gradient(own, files.x, LABEL), *kind, "--fail-on", "label")
    assert found.code == (3 if "label" in found.leaks else 5)
    assert found.contradicted["weights"] == "other weights"
    assert found.states["label"] in (CONTRADICTED, "leaked")
    assert found.states["class"] in (CONTRADICTED, "leaked")
    honest(found, {3})


def test_a_factory_of_a_fixed_seed_is_no_word_for_the_weights(tmp_path):
    files = Files(tmp_path, s.of_a_fixed_seed)
    own = s.made(s.classifier, seed=5)
    sent = s.gradient(own, files.x, LABEL)
    found = files.share(sent, "--fail-on", "label", weights=False)
    assert found.code == (3 if "label" in found.leaks else 5)
    assert found.contradicted["weights"] == "other weights"
    honest(found, {3})


@pytest.mark.parametrize("kind", [(), ("--kind", "gradient")], ids=["not said", "gradient"])
@pytest.mark.parametrize("seed", [0, 1])
def test_dropout_without_train_mode_is_another_mode(tmp_path, kind, seed):
    files = Files(tmp_path, s.dropping)
    torch.manual_seed(seed)
    sent = s.gradient(copy.deepcopy(files.model).train(), files.x, LABEL)
    found = files.share(sent, *kind, "--fail-on", "label")
    assert found.code == (3 if "label" in found.leaks else 5)
    assert {"mode", "weights"} & found.contradicted.keys()
    assert found.states["label"] in (CONTRADICTED, "leaked")
    honest(found, {3})


# 7. AdamW over several steps.
ADAMW = ("--client", "optimiser=adamw,lr=0.001,steps=5,weight_decay=0.01")


@pytest.mark.parametrize("factory", [s.classifier, s.cnn], ids=["records", "images"])
@pytest.mark.parametrize("said", [("--lr", 1e-3), ADAMW], ids=["rate", "client"])
@pytest.mark.parametrize("optimiser", [adamw, lambda p: torch.optim.Adam(p, 1e-3)],
                         ids=["AdamW", "Adam"])  # fmt: skip
@pytest.mark.parametrize("order", [[3, 7, 3, 7, 3], [3] * 8], ids=["in turn", "one class"])
def test_raised_biases_are_the_classes_of_adam(tmp_path, factory, said, optimiser, order):
    files = Files(tmp_path, factory)
    batches = [(torch.rand(1, *files.shape), torch.tensor([label])) for label in order]
    after, before = s.trained(files.model, batches, optimiser), files.model.state_dict()
    *_, bias = [n for n in after if n.endswith("bias")]
    raised = set((after[bias] > before[bias]).nonzero()[:, 0].tolist())
    assert raised
    assert raised <= set(order)
    found = files.after(after, *said, "--fail-on", "composition")
    assert found.code == 3
    assert found.named == raised
    assert found.report["label"]["noise"] == 0
    assert not found.green & {"label", "class", "feature", "input"}


# 8. Implied leaks.
@pytest.mark.parametrize("loss", [s.hinge, s.focal], ids=["hinge", "focal"])
def test_a_composition_of_one_class_is_a_class(tmp_path, loss):
    files = Files(tmp_path, s.cnn)
    sent = s.gradient(files.model, files.x, LABEL, loss)
    found = files.share(sent, "--kind", "gradient", "--fail-on", "class")
    assert found.report["composition"]["present"] == [3]
    assert found.states["class"] == "leaked"
    assert found.code == 3


def test_a_batch_of_one_class_gives_the_class_in_it_away(tmp_path):
    files = Files(tmp_path, s.classifier)
    y = torch.full((12,), 3)  # more than can be told apart one by one
    after = s.trained(files.model, [(torch.rand(12, s.WIDTH), y)], sgd)
    found = files.after(after, "--lr", 0.1, "--fail-on", "composition")
    assert found.report["composition"]["present"] == [3]
    assert found.states["composition"] == "leaked"
    assert "class" not in found.green  # other classes may be in it, of which nothing is raised
    assert found.code == 3


@pytest.mark.parametrize(
    "size", [16, pytest.param(8, marks=pytest.mark.slow)], ids=["sixteen", "eight"]
)
def test_counts_with_equal_bounds_are_labels(tmp_path, size):
    files = Files(tmp_path, s.classifier, gain=4.0)
    x = torch.rand(size, s.WIDTH)
    with torch.no_grad():  # where the network is wrong of every sample, counts are exact
        y = files.model(x).argmin(-1)
    after = s.trained(files.model, [(x, y)], sgd)
    stated = ("--client", "optimiser=sgd,lr=0.1,steps=1")
    found = files.after(after, *stated, "--samples", size, "--fail-on", "label")
    counts, true = found.report["composition"]["counts"], y.bincount(minlength=10).tolist()
    assert counts["low"] == counts["high"] == true
    assert found.states["label"] == "leaked"
    assert found.code == 3


def test_counts_at_a_rate_that_is_stated_alone_hold_behind_nesterov_momentum(tmp_path):
    files = Files(tmp_path, s.classifier, gain=4.0)
    x, y = torch.rand(16, s.WIDTH), torch.randint(10, (16,))
    nesterov = partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)
    found = files.after(
        s.trained(files.model, [(x, y)], nesterov),
        "--lr",
        0.1,
        "--samples",
        16,
        "--fail-on",
        "class",
    )
    counts, true = found.report["composition"]["counts"], y.bincount(minlength=10).tolist()
    each = zip(counts["low"], true, counts["high"], strict=True)
    assert all(low <= n <= high for low, n, high in each)
    assert max(counts["low"]) > 1
    assert found.code == 5 or "class" in found.leaks


def distilbert() -> torch.nn.Module:
    """A small DistilBERT that classifies texts into four classes."""
    transformers = pytest.importorskip("transformers")
    config = transformers.DistilBertConfig(
        vocab_size=400, dim=32, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=64,
        num_labels=4, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    return transformers.DistilBertForSequenceClassification(config)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("said", [("--lr", 1e-4), ()], ids=["rate", "no rate"])
def test_rows_of_a_table_that_moved_are_words_behind_adamw(tmp_path, steps, said):
    torch.manual_seed(0)
    model = distilbert().eval()
    ids = torch.randint(5, 400, (4, 20))
    own = copy.deepcopy(model)
    optimiser = torch.optim.AdamW(own.parameters(), 1e-4)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(own(input_ids=ids).logits, torch.arange(4)).backward()
        optimiser.step()
    torch.save(model.state_dict(), tmp_path / "before.pt")
    torch.save(own.state_dict(), tmp_path / "after.pt")
    done = run(
        "--model", f"{__name__}:distilbert", "--before", tmp_path / "before.pt", "--after",
        tmp_path / "after.pt", *said, "--match-seconds", 0, "--fail-on", "input",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 3, done.output
    (report,) = json.loads((tmp_path / "out" / "audit.json").read_text())["reports"]
    assert report["states"]["input"] == "leaked"
    assert set(report["input"]["text"]["words"]) == set(ids.flatten().tolist())


# 9. What the page and the dossier say.
def broken(files: Files, what: str) -> Found:
    """Return the audit of an update that breaks one assumption, with its dossier."""
    if what == "loss":
        y = torch.linspace(-2, 2, s.CLASSES)[None]
        return files.share(s.gradient(files.model, files.x, y, s.mse), "--dossier")
    if what == "weights":
        own = s.made(files.factory, seed=5)
        return files.share(s.gradient(own, files.x, LABEL), "--dossier")
    sent = s.gradient(files.model, files.x, LABEL)
    return files.share(CODECS["pruned"](sent), "--dossier")


@pytest.mark.parametrize("what", ["loss", "weights", "compression"])
def test_page_and_dossier_name_what_is_contradicted(tmp_path, what):
    files = Files(tmp_path, s.cnn)
    found = broken(files, what)
    dossier = json.loads((tmp_path / "out" / "dossier.json").read_text())
    tiles = re.findall(r'class="tile (tile-\w+)"', found.page)
    assert len(tiles) == 5
    assert "tile-quiet" not in tiles[:3]
    assert found.audit["severity"] != "none found"
    assert dossier["severity"]["level"] != "none found"
    assert what in found.contradicted
    named = found.contradicted[what] or what
    assert named in found.page.lower()
    assert named in json.dumps(dossier).lower()
    succeeded = {attack["aim"] for attack in dossier["attacks"] if attack["outcomes"]["succeeded"]}
    for attack in dossier["attacks"]:
        for reason in attack["reasons"]:
            # Nothing is put down to a success, or to an explanation, that there was none of.
            assert "stronger" not in reason["why"] or attack["aim"] in succeeded
            assert "explains the update as it is" not in reason["why"]
    assert "fit" in found.page.lower()


def test_nothing_is_called_found_nothing_where_something_was_not_attacked(tmp_path):
    files = Files(tmp_path, s.cnn)
    sent = s.gradient(files.model, files.x, torch.linspace(-2, 2, s.CLASSES)[None], s.mse)
    found = files.share(sent)
    assert found.states["composition"] != "attacked without success"
    assert found.audit["severity"] != "none found"


# 10. Predictions behind noise.
def behind_noise(factory, noise: float) -> list[tuple[float, float]]:
    """Return what is predicted of inputs behind noise, and what is true, in dB."""
    pairs = []
    for seed in range(10):
        model, x = s.made(factory, seed), torch.rand(s.SHAPES[factory])
        gradient = s.gradient(model, x[None], torch.tensor([seed]))
        share = sl.GradientShare(s.with_noise(gradient, noise, seed), s.SHAPES[factory])
        found = sl.audit(model, share, truth=Truth(None, x), options=Options(seconds=0.0))
        told, true = found.input.psnr_predicted, found.score.psnr
        if told is not None and true is not None and found.input.determined:
            pairs.append((round(told, 1), round(true, 1)))
    return pairs


@pytest.mark.parametrize("factory", [s.smooth, s.cnn], ids=["tanh", "images"])
@pytest.mark.parametrize("noise", [1e-2, 3e-2])
def test_predictions_behind_noise_hold_or_are_not_made(factory, noise):
    pairs = behind_noise(factory, noise)
    over = [(told, true) for told, true in pairs if told - true > WITHIN]
    assert len(over) <= 0.1 * len(pairs), f"{len(over)} of {len(pairs)} (predicted, true): {over}"


# What other clients send that trained in their own way.
MEANS = "what was found are their means"
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def as_floats(sent: s.Tensors, half: torch.dtype) -> s.Tensors:
    """Return gradients that were computed in half precision and sent as float32."""
    return {n: g.to(half).float() for n, g in sent.items()}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("seed", range(3))
def test_the_mean_of_samples_of_one_class_is_not_called_one_of_them(tmp_path, half, seed):
    files = Files(tmp_path, s.smooth, seed, gain=0.1)
    x = torch.rand(2, s.WIDTH)
    sent = as_floats(s.gradient(files.model, x, LABEL.expand(2)), HALVES[half])
    found = files.share(sent, "--kind", "gradient")
    assert found.named == {3}
    assert {"feature", "input"} & found.leaks
    assert MEANS in found.report["verdict"]
    assert MEANS not in files.share(sent, "--samples", 1).report["verdict"]
    exact = files.share(s.gradient(files.model, files.x, LABEL), "--kind", "gradient")
    assert MEANS not in exact.report["verdict"]


@pytest.mark.parametrize("factory", [s.classifier, s.smooth], ids=["ReLU", "tanh"])
def test_mixed_precision_hides_neither_feature_nor_input(tmp_path, factory):
    files = Files(tmp_path, factory)
    found = files.share(s.amp(files.model, files.x, LABEL, 1.0))
    assert {"class", "feature", "input"} <= found.leaks
    assert found.psnr >= 40


def test_mixed_precision_hides_no_class_of_a_batch(tmp_path):
    files, y = Files(tmp_path, s.smooth), torch.tensor([3, 5, 8])
    found = files.share(s.amp(files.model, torch.rand(3, s.WIDTH), y, 1.0))
    assert found.named == {3, 5, 8}
    assert "composition" in found.leaks


def step_of(files: Files, layers: str) -> s.Tensors:
    """Return the weights after a step of the layers that a name begins with."""
    after = s.trained(files.model, [(files.x, LABEL)], sgd)
    before = files.model.state_dict()
    return {n: t if n.startswith(layers) else before[n] for n, t in after.items()}


def test_a_frozen_head_is_no_attack_without_success(tmp_path):
    files = Files(tmp_path, s.smooth)
    found = files.after(step_of(files, "0"), "--lr", 0.1)
    assert found.code == 5
    assert found.contradicted["steps"] == "frozen"
    assert not found.green
    assert found.psnr >= 40


def test_layers_that_did_not_move_are_no_evidence(tmp_path):
    files = Files(tmp_path, s.smooth)
    found = files.after(step_of(files, "4"), "--lr", 0.1)
    assert {"label", "feature"} <= found.leaks
    assert found.named == {3}


def test_one_division_gives_the_feature_at_other_weights(tmp_path):
    files, own = Files(tmp_path, s.cnn), s.made(s.cnn, seed=5)
    found = files.share(s.gradient(own, files.x, LABEL))
    assert "weights" in found.contradicted
    assert found.report["feature"]["proved"]
    assert found.report["feature"]["up_to_length"]


@pytest.mark.parametrize("kept", [0.003, 0.01, 0.05])
def test_columns_that_were_cut_off_are_no_zeros_of_a_feature(tmp_path, kept):
    files = Files(tmp_path, s.smooth)
    found = files.share(s.top_k(s.gradient(files.model, files.x, LABEL), kept))
    assert not found.report["feature"]["proved"]
    honest(found, {3})


def test_a_client_that_took_fewer_steps_is_another_client(tmp_path):
    files = Files(tmp_path, s.smooth)
    after = s.trained(files.model, [(files.x, LABEL)] * 2, sgd)
    found = files.after(after, "--client", "optimiser=sgd,lr=0.1,steps=3")
    assert found.code == 5 or found.leaks
    assert not found.green


def test_signs_of_residuals_are_not_read_as_several_labels(tmp_path):
    files, y = Files(tmp_path, s.cnn), torch.tensor([[9.0] * 7 + [-9.0] * 3])
    found = files.share(s.gradient(files.model, files.x, y, F.l1_loss), "--kind", "gradient")
    assert not {"label", "class"} & found.leaks
    honest(found, set())


def test_counts_that_tell_every_label_are_said_to(tmp_path):
    files = Files(tmp_path, s.classifier, gain=4.0)
    x = torch.rand(16, s.WIDTH)
    with torch.no_grad():
        y = files.model(x).argmin(-1)
    after = s.trained(files.model, [(x, y)], sgd)
    stated = ("--client", "optimiser=sgd,lr=0.1,steps=1")
    verdict = files.after(after, *stated, "--samples", 16).report["verdict"]
    assert "how many samples of each class are in it" in verdict
    assert "of 0 of" not in verdict
