from __future__ import annotations

import pytest
import torch

from softleak.io.weights import pretrained_weights

transformers = pytest.importorskip("transformers")


def test_the_library_prints_nothing_of_weights_that_do_not_fit(capfd):
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        image_size=8, patch_size=4, num_labels=3,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    log = transformers.utils.logging
    before = log.get_verbosity(), log.is_progress_bar_enabled()
    capfd.readouterr()
    assert pretrained_weights({"bert.stray": torch.zeros(2)}, model) is None
    assert capfd.readouterr() == ("", "")
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == before
