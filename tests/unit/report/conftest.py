"""One small audit for the files that pipelines and lawyers read."""

from __future__ import annotations

from dataclasses import replace

import pytest

import softleak as sl
from softleak.audit import Audit, NamedShare, Options, Provenance, Refusal, audit_shares
from softleak.audit.leaks import Leak
from softleak.audit.sweeps import Point, Rate, Response, WhatIf
from softleak.core.subject import Subject
from softleak.defenses import GaussianNoise
from softleak.io.formats import tensor_digest
from softleak.paper import data, models


@pytest.fixture(scope="session")
def small_audit():
    """Labels only, of one sample, of two samples, and behind noise that hides everything."""
    model = models.trained_lenet()
    drawn = list(data.samples(data.embedded(), data.Mixup(), 2, 3, data.CIFAR10_NORM))
    one, other = (sl.capture(model, s.x, s.y) for s in drawn)
    both = sl.GradientShare({n: one[n] + other[n] for n in one}, (3, 32, 32))
    hidden = GaussianNoise(30.0, 0)(one)
    names = {"one": one, "two <b>": both, "hidden": hidden}
    shares = [NamedShare(n, s, fingerprint=tensor_digest(s)) for n, s in names.items()]
    subject = Subject.of(model, (3, 32, 32))
    reports = tuple(audit_shares(subject, shares, Options(inputs=False, views=False)))
    stopped = {leak: 0.5 for leak in (Leak.LABEL, Leak.CLASS)}
    points = tuple(
        Point(s, {leak: Rate(n, 4) for leak in stopped}) for s, n in ((0.1, 4), (1.0, 0))
    )
    what_if = WhatIf((Response("Gaussian noise", "standard deviation", points, stopped),), 4, 2)
    made = Provenance(
        "softleak audit --what-if", (("softleak", "1"),), (("w.pt", "0" * 64),),
        "2026-11-17T08:00:00+00:00", (("model weights", "1" * 64),), "A. Lead",
    )  # fmt: skip
    return Audit(
        reports, (Refusal("bad\x01.pt", "truncated"),), model="lenet", provenance=made,
        what_if=what_if,
    )  # fmt: skip


@pytest.fixture(scope="session")
def empty_audit(small_audit):
    return replace(small_audit, reports=(), what_if=None, provenance=Provenance())
