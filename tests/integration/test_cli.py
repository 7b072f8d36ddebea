from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import softleak
from softleak.audit import Truth
from softleak.cli import app
from softleak.paper import data, models

MODEL = ["--model", "softleak.paper.models:trained_lenet"]


def run(*arguments: str | object, **kwargs):
    texts = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, texts, env={"COLUMNS": "200"}, **kwargs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, trained, draw):
    """Three shares with their truth, and a file that is none."""
    made = tmp_path_factory.mktemp("audit")
    (made / "shares").mkdir()
    (made / "truth").mkdir()
    kinds = {"hard": data.Hard(), "mixed": data.Mixup(), "any": data.Dirichlet()}
    for name, kind in kinds.items():
        (sample,) = draw(kind, 1)
        softleak.capture(trained, sample.x, sample.y).save(made / "shares" / f"{name}.safetensors")
        Truth(sample.y, sample.x).save(made / "truth" / f"{name}.npz")
    (made / "shares" / "broken.pt").write_bytes(b"not a share")
    return made


def test_audit_of_the_embedded_images(tmp_path):
    done = run("audit", "--each", "1", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "All 4 updates give away their exact label" in done.output
    report = json.loads((tmp_path / "audit.json").read_text())
    assert [r["name"] for r in report["reports"]][-1] == "arbitrary 1"
    for one in report["reports"]:
        assert one["leaks"] == ["label", "class", "feature", "input", "composition"]
        assert one["score"]["label_error"] < 1e-3
        assert one["score"]["psnr"] >= 60
        assert abs(one["score"]["psnr"] - one["input"]["psnr_predicted"]) < 6
    assert (tmp_path / "index.html").stat().st_size > 10_000


def test_a_folder_is_worked_through_and_the_bad_file_named(tmp_path, folder):
    done = run(
        "audit", *MODEL, "--share", folder / "shares", "--truth", folder / "truth",
        "--labels-only", "--json", "--out", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 4, done.output
    report = json.loads(done.stdout)
    proved = {"label": 3, "class": 3, "feature": 3, "composition": 3}
    assert report["counts"] == {**proved, "input": 0}
    assert report["not_attacked"] == {**dict.fromkeys(proved, 0), "input": 3}
    assert [r["name"] for r in report["refused"]] == ["broken.pt"]
    assert "not a readable" in report["refused"][0]["reason"]
    assert max(r["score"]["label_error"] for r in report["reports"]) < 1e-3
    assert all(len(r["sha256"]) == 64 for r in report["reports"])
    assert report == json.loads((tmp_path / "audit.json").read_text())


@pytest.mark.parametrize(
    ("leak", "code"),
    [("label", 3), ("class", 3), ("feature", 3), ("composition", 3), ("input", 2)],
)
def test_fail_on_sets_the_exit_code(tmp_path, folder, leak, code):
    share = folder / "shares" / "any.safetensors"
    done = run(
        "audit", *MODEL, "--share", share, "--labels-only", "--fail-on", leak, "--out", tmp_path
    )
    assert done.exit_code == code, done.output


def test_two_checkpoints_and_a_learning_rate(tmp_path, trained, draw):
    (sample,) = draw(data.Smoothing(), 1)
    share = softleak.capture(trained, sample.x, sample.y)
    before = {name: p.detach().double() for name, p in trained.named_parameters()}
    torch.save({f"module.{n}": p for n, p in before.items()}, tmp_path / "before.pt")
    torch.save(
        {f"module.{n}": p - 0.1 * share[n].double() for n, p in before.items()},
        tmp_path / "after.pt",
    )
    Truth(sample.y).save(tmp_path / "truth.pt")
    done = run(
        "audit", *MODEL, "--before", tmp_path / "before.pt", "--after", tmp_path / "after.pt",
        "--lr", "0.1", "--truth", tmp_path / "truth.pt", "--labels-only", "--json",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (report,) = json.loads(done.stdout)["reports"]
    assert report["label"]["proved"] == "UNIQUE"
    assert report["score"]["label_error"] < 1e-3


def test_two_checkpoints_of_a_client_that_trained_its_head(tmp_path, draw):
    (sample,) = draw(data.Smoothing(), 1)
    model = models.trained_lenet()
    for parameter in model.features.parameters():
        parameter.requires_grad_(False)
    client = softleak.Client(lr=0.01, steps=3)
    share = client.share(model, sample.x, sample.y)
    before = {name: p.detach() for name, p in model.named_parameters()}
    after = {n: (p.double() - share[n]).float() if n in share else p for n, p in before.items()}
    torch.save(before, tmp_path / "before.pt")
    torch.save(after, tmp_path / "after.pt")
    Truth(sample.y).save(tmp_path / "truth.pt")
    done = run(
        "audit", *MODEL, "--before", tmp_path / "before.pt", "--after", tmp_path / "after.pt",
        "--client", str(client), "--truth", tmp_path / "truth.pt", "--json",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (report,) = json.loads(done.stdout)["reports"]
    assert report["score"]["label_error"] < 1e-3
    assert "Not attempted" in report["input"]["message"]


MISTAKES = [
    ([*MODEL, "--share", "x.pt", "--client", "lr=0.1"], "say --kind delta"),
    ([*MODEL, "--share", "x.pt", "--kind", "delta", "--client", "lr=1", "--lr", "1"], "leave out"),
    (["--model", "lenet"], "which update"),
    (["--train-mode"], "which update"),
    (["--normalise", "0.5/0.5"], "which update"),
    (["--share", "missing.pt"], "which model"),
    ([*MODEL, "--share", "missing.pt"], "found none"),
    ([*MODEL, "--share", "missing.pt", "--lr", "0.1"], "say --kind delta"),
    ([*MODEL, "--share", "missing.pt", "--before", "a.pt"], "not both"),
    ([*MODEL, "--before", "a.pt", "--after", "b.pt", "--kind", "delta"], "hold weights anyway"),
    ([*MODEL, "--share", "x.pt", "--kind", "weights"], "give the weights before it by --weights"),
    ([*MODEL, "--share", "x.pt", "--weights", "w.pt", "--random-weights"], "contradicts"),
    ([*MODEL, "--share", "x.pt", "--labels-only", "--fail-on", "input"], "attacks no input"),
    ([*MODEL, "--share", "x.pt", "--head", "features.0"], "no nn.Linear named 'features.0'"),
    (["--model", "lenet", "--share", "x.pt"], "comes with random weights"),
    (["--samples", "4"], "which update"),
    ([*MODEL, "--before", "a.pt"], "belong together"),
    (["--model", "nonsense", "--share", "x.pt"], "expected lenet"),
    (["--model", "nowhere:factory", "--share", "x.pt"], "could not import"),
    (["--model", "math:pi", "--share", "x.pt"], "could not make a model"),
    (["--model", "nets/own.py:build", "--share", "x.pt"], "write nets.own:build"),
    ([*MODEL, "--share", "x.pt", "--input-shape", "big"], "3,32,32"),
    ([*MODEL, "--share", "x.pt", "--normalise", "0.5"], "mean/std"),
    ([*MODEL, "--share", "x.pt", "--classes", "none.txt"], "class names"),
    ([*MODEL, "--share", "x.pt", "--classes", "7"], "7 class names for 10"),
    ([*MODEL, "--share", "x.pt", "--classes", "0"], "2 to 1,000,000 classes, got 0"),
    ([*MODEL, "--share", "x.pt", "--classes", "12345678"], "classes, got 12345678"),
    (["--lr", "0"], "which update"),
    ([*MODEL, "--share", "x.pt", "--lr", "0"], "say --kind delta"),
    ([*MODEL, "--share", "x.pt", "--kind", "delta", "--lr", "0"], "found none"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_mistakes_are_one_clear_line(tmp_path, options, words):
    done = run("audit", *options, "--out", tmp_path)
    assert done.exit_code == 2
    assert words in done.output
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """A network that takes images of any size, and shares of two sizes that say which."""
    made = tmp_path_factory.mktemp("sizes")
    torch.manual_seed(0)
    model = models.resnet20().eval()
    torch.save(model.state_dict(), made / "weights.pt")
    (made / "shares").mkdir()
    label = torch.distributions.Dirichlet(torch.ones(10)).sample()
    for size in (48, 64):
        share = softleak.capture(model, torch.randn(3, size, size), label)
        share.save(made / "shares" / f"{size}.pt")
    return made


def audit_sizes(sizes, share, out, *options):
    model = ("--model", "resnet20", "--weights", sizes / "weights.pt")
    return run("audit", *model, "--share", share, "--labels-only", "--out", out, *options)


def test_a_share_says_the_shape_of_its_input(tmp_path, sizes):
    share = sizes / "shares" / "64.pt"
    done = audit_sizes(sizes, share, tmp_path, "--fail-on", "label")
    assert done.exit_code == 3, done.output
    done = audit_sizes(sizes, share, tmp_path, "--input-shape", "3,48,48")
    assert done.exit_code == 2
    assert "give --input-shape 3,64,64" in done.output


def test_shares_of_another_shape_are_refused(tmp_path, sizes):
    done = audit_sizes(sizes, sizes / "shares", tmp_path, "--json")
    assert done.exit_code == 4, done.output
    report = json.loads(done.stdout)
    assert [r["label"]["proved"] for r in report["reports"]] == ["UNIQUE"]
    assert [r["name"] for r in report["refused"]] == ["64.pt"]


def test_a_shape_the_model_does_not_take_is_the_shares_fault(tmp_path, trained, draw):
    (sample,) = draw(data.Hard(), 1)
    share = softleak.capture(trained, sample.x, sample.y)
    softleak.GradientShare(share.gradients, (7, 5)).save(tmp_path / "odd.pt")
    done = run("audit", *MODEL, "--share", tmp_path / "odd.pt", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "of an input of shape (7, 5)" in done.output


class Summing(nn.Module):
    """Takes inputs that no layer of it tells the shape of."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 10)
        with torch.no_grad():
            self.head.weight.copy_(torch.linspace(-1, 1, 60).sin().view(10, 6))
            self.head.bias.zero_()

    def forward(self, x):
        return self.head(x.reshape(len(x), 2, 6).sum(1))


@pytest.mark.parametrize(("leak", "code"), [("input", 5), ("feature", 3)])
def test_what_could_not_be_attacked_is_no_success(tmp_path, leak, code):
    share = softleak.capture(Summing(), torch.rand(12), 3)
    softleak.GradientShare(share.gradients).save(tmp_path / "share.pt")
    done = run(
        "audit", "--model", f"{__name__}:Summing", "--share", tmp_path / "share.pt", "--head",
        "head", "--fail-on", leak, "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == code, done.output
    assert "Input: not attacked (the shape of an input is not known" in done.output


def test_what_gave_nothing_away_is_not_defended(tmp_path, trained):
    zero = {name: torch.zeros_like(p) for name, p in trained.named_parameters()}
    softleak.GradientShare(zero, (3, 32, 32)).save(tmp_path / "zero.pt")
    done = run("audit", *MODEL, "--share", tmp_path / "zero.pt", "--what-if", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "nothing to try defences against" in done.output.replace("\n", " ")
    assert json.loads((tmp_path / "audit.json").read_text())["what_if"] is None


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    done = run("audit", "--each", "1", "--labels-only", "--out", tmp_path / "taken")
    assert done.exit_code == 2
    assert "expected a folder for --out, found a file" in " ".join(done.output.split())


def test_version_models_and_doctor():
    assert run("--version").output.strip() == f"softleak {softleak.__version__}"
    doctor = run("doctor")
    assert doctor.exit_code == 0
    assert torch.__version__ in doctor.output
    assert "extra metrics" in doctor.output


def test_models_are_listed_with_what_can_be_done():
    done = run("models")
    assert done.exit_code == 0
    (lenet,) = (line for line in done.output.splitlines() if " lenet " in line)
    assert "15,816" in lenet
    assert "classifier" in lenet
    assert "exact inversion" in lenet


def test_help_names_the_exit_codes_and_every_option():
    text = run("audit", "--help").output
    for word in ("--share", "--before", "--fail-on", "--truth", "Exit codes", "label|class"):
        assert word in text
    assert "--install-completion" in run("--help").output
