"""A share given by file is loaded and hashed once, whatever is asked of it."""

from __future__ import annotations

from collections import Counter

import pytest

import softleak as sl
from softleak import io as tensor_files
from softleak.audit import UpdateReading
from softleak.audit import run as update_files
from softleak.cli import audit as jobs
from softleak.cli.options import Request
from softleak.core.errors import ShareError
from softleak.core.vocabulary import UpdateKind
from softleak.io import Content
from softleak.paper import data

MODEL = "softleak.paper.models:trained_lenet"


@pytest.fixture
def shares(tmp_path, trained):
    folder = tmp_path / "shares"
    folder.mkdir()
    drawn = data.samples(data.embedded(), data.Hard(), 2, 0, data.CIFAR10_NORM)
    for number, sample in enumerate(drawn):
        sl.capture(trained, sample.x, sample.y).save(folder / f"{number}.pt")
    (folder / "00_bad.pt").write_bytes(b"no file")
    return folder


@pytest.fixture
def counts(monkeypatch):
    read: Counter[tuple[str, str]] = Counter()
    load, hashed = tensor_files.load, update_files.fingerprint

    def loading(path):
        read["load", path.name] += 1
        return load(path)

    def hashing(path):
        read["hash", path.name] += 1
        return hashed(path)

    monkeypatch.setattr(tensor_files, "load", loading)
    for module in (update_files, jobs):
        monkeypatch.setattr(module, "fingerprint", hashing)
    return read


def test_each_file_of_a_folder_is_read_once(shares, counts, monkeypatch):
    monkeypatch.setattr(jobs, "what_if", lambda *_: None)
    request = Request(model=MODEL, share=shares, labels_only=True, what_if=True)
    found = jobs.run(request, lambda *_: None)
    assert len(found.reports) == 2
    assert [refusal.name for refusal in found.refused] == ["00_bad.pt"]
    expected = {("load", n): 1 for n in ("00_bad.pt", "0.pt", "1.pt")}
    assert counts == expected | {("hash", "0.pt"): 1, ("hash", "1.pt"): 1}


def test_a_single_file_is_hashed_once_and_named_in_the_provenance(shares, counts):
    request = Request(model=MODEL, share=shares / "0.pt", labels_only=True)
    found = jobs.run(request, lambda *_: None)
    assert counts == {("load", "0.pt"): 1, ("hash", "0.pt"): 1}
    assert found.provenance.inputs == (("0.pt", found.reports[0].fingerprint),)


@pytest.mark.parametrize("kind", [None, UpdateKind.WEIGHTS])
def test_weights_that_equal_those_before_the_step_are_no_update(kind, trained):
    held, reading = Content(trained.state_dict()), UpdateReading(kind, lr=0.1)
    with pytest.raises(ShareError, match="equal those before it, so there is no update to audit"):
        reading.share(held, trained) if kind else reading.between(held, held, trained)


def test_two_checkpoints_are_read_once_each(tmp_path, trained, counts):
    before = tensor_files.Content(trained.state_dict())
    sample = next(data.samples(data.embedded(), data.Hard(), 1, 0, data.CIFAR10_NORM))
    share = sl.capture(trained, sample.x, sample.y)
    after = {n: t - 0.1 * share[n] if n in share else t for n, t in before.tensors.items()}
    tensor_files.save(tmp_path / "a.pt", before)
    tensor_files.save(tmp_path / "b.pt", tensor_files.Content(after))
    request = Request(
        model=MODEL, before=tmp_path / "a.pt", after=tmp_path / "b.pt", lr=0.1, labels_only=True
    )
    jobs.run(request, lambda *_: None)
    assert counts == {(what, n): 1 for what in ("load", "hash") for n in ("a.pt", "b.pt")}
