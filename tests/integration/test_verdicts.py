"""No false all-clear: what the audit says of updates as people hold them, by command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softleak as sl
from tests.integration.audits import SHAPE, SMALL, Small, audited, only, run, stepped

LABEL = torch.tensor([0.05, 0.05, 0.05, 0.65, 0.1, 0.05, 0.05], dtype=torch.double)
LABELS = ("--labels-only", *SHAPE)
SINGLE = ("label", "class", "feature", "input")


class Case:
    """A network, the gradient of one sample, and files of both."""

    def __init__(self, folder: Path) -> None:
        self.model, self.folder = Small().eval(), folder
        self.x = torch.rand(2, 6, 6)
        self.share = sl.capture(self.model, self.x, LABEL)
        self.weights = self.save("weights.pt", self.model.state_dict())

    def save(self, name: str, tensors: dict[str, Tensor]) -> Path:
        torch.save(tensors, self.folder / name)
        return self.folder / name

    def step(self, lr: float) -> Path:
        return self.save("after.pt", stepped(self.model, dict(self.share), lr))

    def batch(self, labels: list[int], steps: int = 1, lr: float = 0.1, **options: float) -> Path:
        """The weights after steps of SGD on the mean loss of a batch."""
        model, x = Small().double(), torch.rand(len(labels), 2, 6, 6).double()
        model.load_state_dict(self.model.state_dict())
        sgd = torch.optim.SGD(model.parameters(), lr, **options)
        for _ in range(steps):
            sgd.zero_grad()
            F.cross_entropy(model(x), torch.tensor(labels)).backward()
            sgd.step()
        return self.save("batch.pt", model.state_dict())

    def audited(self, *options: object, code: int = 0) -> dict:
        return audited(self.folder / "out", "--model", SMALL, *options, code=code)


@pytest.fixture
def case(tmp_path) -> Case:
    return Case(tmp_path)


def test_two_checkpoints_are_audited_against_the_first(case):
    update = ("--before", case.weights, "--after", case.step(0.1), "--lr", 0.1, *LABELS)
    report = only(case.audited(*update, "--fail-on", "label", code=3))
    assert report["label"]["proved"] == "UNIQUE"
    assert report["label"]["label"] == pytest.approx(LABEL.tolist(), abs=1e-3)


def test_without_a_learning_rate_the_scale_is_unknown_and_more_is_not(case):
    report = only(case.audited("--before", case.weights, "--after", case.step(0.1), *LABELS))
    assert {"feature", "class"} & set(report["leaks"])
    assert "unknown positive factor" in report["assumptions"][1]
    assert report["label"]["class_index"] in (3, None)


def test_weights_beside_the_first_checkpoint_must_agree(case):
    update = ("--before", case.weights, "--after", case.step(0.1), "--lr", 0.1, *LABELS)
    case.audited(*update, "--weights", case.weights)
    other = case.save("other.pt", Small().state_dict())
    done = run("--model", SMALL, *update, "--weights", other, "--out", case.folder / "out")
    assert done.exit_code == 2
    assert "hold different weights" in done.output


def test_random_weights_are_refused_or_named(case):
    case.share.save(case.folder / "share.pt")
    update = ("--model", SMALL, "--share", case.folder / "share.pt", *LABELS)
    done = run(*update, "--out", case.folder / "out")
    assert done.exit_code == 2
    assert "comes with random weights" in done.output
    answer = audited(case.folder / "out", *update, "--random-weights")
    assert "weights were drawn at random" in answer["verdict"]
    assert "drawn at random" in (case.folder / "out" / "index.html").read_text()


@pytest.mark.parametrize("kind", ["delta", "weights"])
def test_a_declared_kind_is_read_as_such(case, kind):
    after = torch.load(case.step(0.1))
    held = {n: t - case.model.state_dict()[n] for n, t in after.items()}
    sent = case.save("sent.pt", held if kind == "delta" else after)
    update = ("--weights", case.weights, "--share", sent, "--kind", kind, *LABELS)
    report = only(case.audited(*update, "--lr", 0.1))
    assert report["label"]["proved"] == "UNIQUE"
    assert report["label"]["class_index"] == 3
    report = only(case.audited(*update))
    assert "unknown positive factor" in report["assumptions"][1]


@pytest.mark.parametrize("step", [0.0, 0.1])
def test_weights_given_as_a_gradient_are_recognised(case, step):
    sent = case.step(step)
    done = run(
        "--model", SMALL, "--weights", case.weights, "--share", sent, *LABELS,
        "--out", case.folder / "out",
    )  # fmt: skip
    assert done.exit_code == 2
    assert "equals the model's own weights" in " ".join(done.output.split())


def test_the_head_and_the_precision_can_be_said(case):
    case.share.save(case.folder / "share.pt")
    update = ("--weights", case.weights, "--share", case.folder / "share.pt", *LABELS)
    exact = only(case.audited(*update, "--head", "head"))["label"]
    assert exact["proved"] == "UNIQUE"
    coarse = only(case.audited(*update, "--precision", "bfloat16"))["label"]
    assert coarse["error"] is None or coarse["error"] > 100 * exact["error"]


@pytest.mark.parametrize(("labels", "steps"), [([1, 4], 1), ([0, 2, 2, 5] * 4, 1), ([1, 4], 5)])
def test_batches_and_local_steps_give_their_classes_away(case, labels, steps):
    update = ("--before", case.weights, "--after", case.batch(labels, steps), "--lr", 0.1)
    answer = case.audited(*update, *SHAPE, "--fail-on", "composition", code=3)
    report = only(answer)
    assert report["composition"]["present"]
    assert set(report["composition"]["present"]) <= set(labels)
    assert report["composition"]["samples"] >= 2
    assert report["states"]["composition"] == "leaked"
    told = {report["states"][kind] for kind in SINGLE if kind != "input"}
    assert told == {"attacked without success"}  # several samples can look like one
    assert report["samples"]["proved"] == 0
    assert report["states"]["input"] == "not attacked"
    assert "which classes are in it" in answer["verdict"]


def test_every_sample_of_an_update_is_proved_if_their_number_is_said(case):
    update = ("--before", case.weights, "--after", case.batch([1, 4]), "--lr", 0.1, *SHAPE)
    said = ("--samples", 2, "--match-seconds", 0)  # inputs: tests/unit/auditing/test_samples.py
    answer = case.audited(*update, *said, "--fail-on", "label", code=3)
    found = only(answer)["samples"]
    assert found["proved"] == 2
    labels = torch.tensor([one["label"] for one in found["each"]]).double()
    assert {int(index) for index in labels.argmax(1)} == {1, 4}
    assert float(labels.amax(1).min()) > 1 - 1e-3
    assert (
        "the exact labels and the features before the last layer of both samples"
        in answer["verdict"]
    )


@pytest.mark.parametrize("leak", SINGLE)
def test_what_was_asked_and_could_not_be_attacked_has_its_own_exit_code(case, leak):
    labels = list(range(7)) * 2  # as many samples as classes: none is told from another
    update = ("--before", case.weights, "--after", case.batch(labels), "--lr", 0.1, *SHAPE)
    case.audited(*update, "--fail-on", leak, code=5)
    case.audited(*update, "--fail-on", leak, "--fail-on", "composition", code=3)
    case.audited(*update, code=0)


def test_the_page_of_a_batch_is_grey_where_nothing_was_attacked(case):
    labels = list(range(7)) * 2  # as many samples as classes: none is told from another
    update = ("--before", case.weights, "--after", case.batch(labels), "--lr", 0.1, *SHAPE)
    case.audited(*update)
    page = (case.folder / "out" / "index.html").read_text()
    tiles = re.findall(r'class="tile (tile-\w+)"', page)
    assert tiles == [*["tile-untried"] * 4, "tile-leak"]
    assert "tile-quiet" not in tiles


def test_labels_only_is_grey_for_the_input(case):
    case.share.save(case.folder / "share.pt")
    answer = case.audited("--weights", case.weights, "--share", case.folder / "share.pt", *LABELS)
    assert only(answer)["states"]["input"] == "not attacked"
    page = (case.folder / "out" / "index.html").read_text()
    assert re.findall(r'class="tile (tile-\w+)"', page)[3] == "tile-untried"


def test_samples_are_not_counted_if_nobody_says_how_many_there_are(case):
    update = ("--before", case.weights, "--after", case.batch([0, 2, 5]), "--lr", 0.1, *LABELS)
    found = only(case.audited(*update))["composition"]
    assert found["present"]
    assert found["counts"] is None


def test_counts_hold_the_truth_between_their_bounds(case):
    labels = [0] * 5 + [2] * 9 + [5] * 2
    update = ("--before", case.weights, "--after", case.batch(labels), "--lr", 0.1, *LABELS)
    counts = only(case.audited(*update, "--samples", 16))["composition"]["counts"]
    truth = [labels.count(c) for c in range(7)]
    assert sum(counts["estimated"]) == 16
    for low, true, high in zip(counts["low"], truth, counts["high"], strict=True):
        assert low <= true <= high
    assert max(abs(n - t) for n, t in zip(counts["estimated"], truth, strict=True)) <= 2


@pytest.mark.parametrize(("steps", "samples"), [(60, 16), (1, 2)])
def test_counts_are_not_claimed_of_what_is_not_one_step_on_so_many(case, steps, samples):
    labels = [0] * 5 + [2] * 9 + [5] * 2
    after = case.batch(labels, steps, lr=0.5)
    update = ("--before", case.weights, "--after", after, "--lr", 0.5, *SHAPE)
    found = only(case.audited(*update, "--samples", samples))["composition"]
    assert found["present"]
    assert found["counts"] is None
    assert "not counted" in found["message"]


def test_classes_are_not_counted_if_the_scale_is_unknown(case):
    update = ("--before", case.weights, "--after", case.batch([1, 4]), *SHAPE)
    found = only(case.audited(*update, "--samples", 2))["composition"]
    assert found["counts"] is None
    assert "the scale of the update is unknown" in found["message"]


def test_a_batch_of_unsaid_kind_names_both_readings(case):
    after = torch.load(case.batch([1, 4]))
    delta = {n: t - case.model.state_dict()[n] for n, t in after.items()}
    update = ("--weights", case.weights, "--share", case.save("delta.pt", delta), *SHAPE)
    found = only(case.audited(*update))["composition"]
    assert set(found["otherwise"]) <= {1, 4}
    assert "say --kind" in found["message"]
    found = only(case.audited(*update, "--kind", "delta"))["composition"]
    assert set(found["present"]) <= {1, 4}
    assert not found["otherwise"]


def test_a_step_of_adam_is_called_a_sign_pattern_and_still_proves_the_class(case):
    model = Small()
    model.load_state_dict(case.model.state_dict())
    adam = torch.optim.Adam(model.parameters(), 1e-3)
    F.cross_entropy(model(case.x[None]), torch.tensor([5])).backward()
    adam.step()
    update = ("--before", case.weights, "--after", case.save("adam.pt", model.state_dict()))
    report = only(case.audited(*update, *LABELS, "--fail-on", "composition", code=3))
    assert "sign pattern" in report["notes"][0]
    assert "Adam" in report["notes"][0]
    assert report["composition"]["present"] == [5]
    assert report["label"]["proved"] != "UNIQUE"


class Dropping(Small):
    """With dropout, which the client had switched on."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.first(x)).flatten(1)
        return self.head(self.drop(torch.sigmoid(self.hidden(self.drop(x)))))

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.4)


def test_dropout_without_train_mode_is_said(case):
    model = Dropping().train()
    sl.capture(model, case.x, LABEL).save(case.folder / "share.pt")
    weights = case.save("dropping.pt", model.state_dict())
    update = ("--weights", weights, "--share", case.folder / "share.pt", *LABELS)
    report = only(audited(case.folder / "out", "--model", f"{__name__}:Dropping", *update, code=5))
    assert report["label"]["proved"] != "UNIQUE"
    assert "dropout" in report["notes"][0]
    assert "--train-mode" in report["notes"][0]


def test_weight_decay_of_a_batch_is_said_and_hides_no_class(case):
    after = case.batch([1, 4], weight_decay=0.05)
    update = ("--before", case.weights, "--after", after, "--lr", 0.1, *LABELS)
    report = only(case.audited(*update, "--fail-on", "composition", code=3))
    assert report["composition"]["present"] == [1, 4]
    assert any("weight decay of 0.05" in note for note in report["notes"])
