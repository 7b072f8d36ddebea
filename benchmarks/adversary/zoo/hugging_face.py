"""Image classifiers of Hugging Face, tiny and with random weights: nothing is downloaded."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from benchmarks.adversary.stranger import Stranger
from softleak.core.errors import MissingExtra

GROUP = "Hugging Face"
LADDER: Mapping[str, object] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
STEM: Mapping[str, object] = {**LADDER, "embedding_size": 8}
TOKENS: Mapping[str, object] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
WINDOWS: Mapping[str, object] = {
    "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
    "window_size": 4,
}  # fmt: skip
TOWERS: Mapping[str, object] = {
    "vision_config": {**TOKENS, "projection_dim": 16},
    "text_config": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
        "intermediate_size": 16, "vocab_size": 50, "projection_dim": 16,
    },
}  # fmt: skip


class Logits(nn.Module):
    """A model of transformers that takes and returns tensors, as softleak expects."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x).logits
        return logits


@dataclass(frozen=True)
class Recipe:
    """A family of transformers, the settings that make it tiny, and the size of its images."""

    family: str
    settings: Mapping[str, object]
    size: int = 32
    classes: int = 10
    suffix: str = "ForImageClassification"

    def build(self) -> nn.Module:
        library = _transformers()
        config = getattr(library, f"{self.family}Config")(num_labels=self.classes, **self.settings)
        return Logits(getattr(library, f"{self.family}{self.suffix}")(config))


def _transformers() -> Any:  # noqa: ANN401  (the library is looked up by names)
    try:
        library = importlib.import_module("transformers")
    except ImportError as error:
        raise MissingExtra(
            "the models of Hugging Face need transformers: pip install 'softleak[hf]'"
        ) from error
    library.logging.set_verbosity_error()
    return library


ATTENTION = (
    Recipe("ViT", TOKENS),
    Recipe("DeiT", TOKENS),
    Recipe("DeiT", TOKENS, suffix="ForImageClassificationWithTeacher"),
    Recipe("Swin", WINDOWS),
    Recipe("Swinv2", WINDOWS),
    Recipe("DonutSwin", WINDOWS, classes=5),
    Recipe("Beit", TOKENS),
    Recipe("Data2VecVision", TOKENS, classes=100),
    Recipe("ViTMSN", TOKENS),
    Recipe("IJepa", TOKENS, classes=6),
    Recipe("Dinov2", {k: v for k, v in TOKENS.items() if k != "intermediate_size"}),
    Recipe("Dinov2WithRegisters", {k: v for k, v in TOKENS.items() if k != "intermediate_size"}),
    Recipe("CLIP", TOWERS),
    Recipe("Siglip", TOWERS, classes=4),
    Recipe("Hiera", {
        "image_size": [32, 32], "patch_size": [7, 7], "patch_stride": [4, 4],
        "patch_padding": [3, 3], "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2],
        "query_stride": [2, 2], "masked_unit_size": [4, 4], "num_query_pool": 1,
        "embed_dim_multiplier": 2.0,
    }),
    Recipe("Pvt", {
        **LADDER, "image_size": 32, "num_attention_heads": [1, 1, 1, 2],
        "sequence_reduction_ratios": [4, 2, 1, 1],
    }),
    Recipe("PvtV2", {
        **LADDER, "image_size": 32, "num_attention_heads": [1, 1, 1, 2],
        "sr_ratios": [4, 2, 1, 1], "mlp_ratios": [2, 2, 2, 2],
    }),
    Recipe("Segformer", {
        **LADDER, "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 32,
    }),
    Recipe("Levit", {
        "image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2],
        "depths": [1, 1, 1], "key_dim": [8, 8, 8],
    }, size=64),
    Recipe("SwiftFormer", {
        "image_size": 64, "embed_dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
    }, size=64),
)  # fmt: skip
CONVOLUTIONS = (
    Recipe("ConvNext", LADDER),
    Recipe("ConvNextV2", LADDER),
    Recipe("ResNet", {**STEM, "layer_type": "basic"}),
    Recipe("RegNet", {**STEM, "groups_width": 8}),
    Recipe("Bit", {**STEM, "num_groups": 4}),
    Recipe("MobileNetV1", {"depth_multiplier": 0.1, "min_depth": 8}),
    Recipe("MobileNetV2", {"depth_multiplier": 0.1, "min_depth": 8}),
    Recipe("MobileViT", {
        "image_size": 32, "hidden_sizes": [16, 24, 32], "num_attention_heads": 2,
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
    }),
    Recipe("MobileViTV2", {"image_size": 64, "width_multiplier": 0.1}, size=64),
    Recipe("EfficientNet", {
        "image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320,
    }),
    Recipe("PoolFormer", LADDER),
    Recipe("FocalNet", {
        "image_size": 32, "patch_size": 4, "embed_dim": 16, "hidden_sizes": [16, 32],
        "depths": [1, 1], "focal_levels": [1, 1], "focal_windows": [3, 3],
    }),
    Recipe("HGNetV2", {
        **STEM, "stem_channels": [3, 8, 8], "stage_in_channels": [8, 16, 24, 32],
        "stage_mid_channels": [8, 8, 8, 8], "stage_out_channels": [16, 24, 32, 32],
        "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [1, 1, 1, 1],
    }),
    Recipe("TextNet", {
        "image_size": [32, 32], "stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 24, 32],
    }),
)  # fmt: skip
TRAINED = (Recipe("ViT", TOKENS), Recipe("ResNet", {**STEM, "layer_type": "basic"}))


def _name(recipe: Recipe) -> str:
    teacher = " with teacher" if recipe.suffix.endswith("Teacher") else ""
    return f"{recipe.family}{teacher}"


def _stranger(recipe: Recipe, trained: int = 0) -> Stranger:
    shape = (3, recipe.size, recipe.size)
    name = _name(recipe) + (", trained" if trained else "")
    return Stranger(name, GROUP, partial(Recipe.build, recipe), shape, trained)


HUGGING_FACE = (
    *(_stranger(recipe) for recipe in (*ATTENTION, *CONVOLUTIONS)),
    *(_stranger(recipe, trained=40) for recipe in TRAINED),
)
