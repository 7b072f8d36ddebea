from __future__ import annotations

import json
import math

import torch

from softleak.audit import Audit, Refusal
from softleak.audit.leaks import Leak
from softleak.audit.sweeps import Point, Rate, Response, WhatIf
from softleak.present.machine import as_data, finite, numbers, write_json


def test_what_json_cannot_say_becomes_null():
    data = {"a": math.nan, "b": [math.inf, 1.0, (2.0, -math.inf)], "c": {"d": "inf"}}
    assert finite(data) == {"a": None, "b": [None, 1.0, [2.0, None]], "c": {"d": "inf"}}


def test_a_vector_becomes_a_list():
    assert numbers(torch.tensor([1.0, 0.5])) == [1.0, 0.5]
    assert numbers(None) is None


def test_an_audit_of_nothing_is_written_whole(tmp_path):
    rates = {Leak.LABEL: Rate(1, 4)}
    response = Response("noise", "", (Point(0.1, rates),), {Leak.CLASS: math.inf})
    audit = Audit((), (Refusal("bad.pt", "truncated"),), what_if=WhatIf((response,), 1, 2))
    write_json(tmp_path / "audit.json", audit)
    read = json.loads((tmp_path / "audit.json").read_text())
    assert read == as_data(audit)
    assert read["refused"] == [{"name": "bad.pt", "reason": "truncated"}]
    assert read["counts"] == {leak.value: 0 for leak in Leak}
    (defence,) = read["what_if"]["defences"]
    assert defence["points"] == [{"setting": 0.1, "label": [1, 4], "labels_unclaimed": 0}]
    assert defence["did_not_succeed_from"] == {"class": None}
    assert defence["setting"] is None
