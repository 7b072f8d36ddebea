from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from softleak.core.errors import DataError, ModelError
from softleak.defenses import LaplaceNoise
from softleak.matching import LBFGS, Adam, GaussNewton
from softleak.paper import models
from softleak.paper.networks import CIFAR10, CIFAR100, FLOWERS17, IMAGENET, NETWORKS, Network, Shelf
from softleak.paper.reproduction import EXPERIMENTS, Laboratory
from softleak.paper.sweep import Piece
from softleak.paper.tables import NoiseCell

SHELF = Shelf()


def measured(cell, numbers, repeat=0):
    return list(cell.measured_together(cell.attacked(SHELF), numbers, repeat))


def test_a_sample_does_not_depend_on_the_others():
    cell = EXPERIMENTS["table2"].cell("lenet, mixed")
    laboratory = Laboratory(SHELF, {("table2", cell.name): cell})
    alone = laboratory(Piece("table2", "lenet, mixed", 0, (3,)))
    among = laboratory(Piece("table2", "lenet, mixed", 0, (2, 3)))
    again = laboratory(Piece("table2", "lenet, mixed", 1, (3,)))
    assert alone[0] == among[1]
    assert again[0].measures != alone[0].measures


def test_labels_are_recovered_from_the_head_and_from_the_whole_share():
    (found,) = measured(EXPERIMENTS["table2"].cell("lenet, smoothed"), [0])
    assert found["head_exact"]
    assert found["whole_exact"]
    assert found["head_L1"] < 1e-5
    assert found["whole_status"] == "UNIQUE"


def test_one_hot_labels_have_idlg_beside_them():
    cell = replace(EXPERIMENTS["table1"].cells[2], subject="lenet")
    assert cell.name == "lenet, one-hot"
    assert all(found["idlg_exact"] and found["head_exact"] for found in measured(cell, [0, 1]))
    sent = pickle.loads(pickle.dumps(cell))  # as to a worker
    assert measured(sent, [0]) == measured(cell, [0])


def test_an_input_comes_back_from_a_fully_connected_network():
    (found,) = measured(EXPERIMENTS["fcn"].cell("fcn4 on cifar10, mixed"), [0])
    assert found["PSNR"] > 100
    assert found["LPIPS"] < 1e-3
    assert found["determined"]


def test_noise_costs_what_it_must():
    (found,) = measured(NoiseCell("lenet", "Laplace", LaplaceNoise, 1e-4), [0])
    for way in ("head", "whole", "one_row"):
        assert found[f"{way}_close"]
        assert found[f"{way}_class"]
    assert found["one_row_gap"] < found["head_L1"] + 1e-3  # one noisy row is mended


def test_matching_comes_nearer_with_every_step():
    cell = EXPERIMENTS["table3"].cell("smoothed, lenet trained, Cosine α=1 β=0, ours")
    (short,), (longer,) = (
        measured(replace(cell, optimiser=Adam(steps=steps)), [29]) for steps in (2, 30)
    )
    assert longer["status"] == "EXHAUSTED"
    assert longer["evaluations"] == 30
    assert longer["misfit"] < short["misfit"]
    assert longer["L1"] < 1e-5


def test_a_polish_that_proves_nothing_leaves_what_was_matched():
    table3 = EXPERIMENTS["table3"]
    cell = table3.cell("smoothed, lenet, L2 α=1 β=0, polished")
    short = replace(cell, optimiser=LBFGS(steps=2))
    in_vain = replace(short, polish=GaussNewton(seconds=0.0))
    alone = replace(short, polish=None)
    (polished,), (matched,) = measured(in_vain, [0]), measured(alone, [0])
    assert polished["status"] != "PROVED"
    assert polished["PSNR"] == pytest.approx(matched["PSNR"])


def test_weights_travel_with_the_shelf_and_are_not_done_without(tmp_path):
    network = Network(models.lenet, weights="lenet.safetensors")
    with pytest.raises(ModelError, match="the weights lenet"):
        network.build(SHELF)
    own = models.trained_lenet().state_dict()
    save_file(own, tmp_path / "lenet.safetensors")
    shelf = Shelf(weights=tmp_path)
    shelf.tensors(network.weights)
    (tmp_path / "lenet.safetensors").unlink()  # as on another machine
    there = network.build(pickle.loads(pickle.dumps(shelf))).state_dict()
    assert all(torch.equal(there[name], tensor) for name, tensor in own.items())


def test_samples_of_a_repetition_cover_every_class_and_every_pair():
    from softleak.paper.networks import AttackedNetwork
    from softleak.paper.tables import MIXED_PROTOCOL, SMOOTHED_PROTOCOL

    target = AttackedNetwork.of(NETWORKS["lenet"], SHELF, evidence=False)
    classes = [int(s.y.argmax()) for s in SMOOTHED_PROTOCOL.drawn(target, range(30), 0)]
    assert classes == [label for label in range(10) for _ in range(3)]
    pairs = {
        tuple(s.y.nonzero()[:, 0].tolist()) for s in MIXED_PROTOCOL.drawn(target, range(45), 0)
    }
    assert len(pairs) == 45


@pytest.mark.parametrize("source", [CIFAR100, FLOWERS17, IMAGENET], ids=lambda source: source.file)
def test_no_pack_stands_in_for_another(source):
    with pytest.raises(DataError, match=rf"{source.file} is in no folder given.*--data"):
        Shelf().images(source)
    assert len(Shelf().images(CIFAR10)) == 200
