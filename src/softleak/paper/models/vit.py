"""Build a small vision transformer (class token, pre-norm) with a bias-free head.

State-dict keys are those of torchvision's VisionTransformer.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from softleak.paper.models.networks import divisible, positive, probability

_MLP_RATIO = 4
_LAYER_NORM_EPS = 1e-6


class SelfAttention(nn.Module):
    """Multi-head self-attention written out in matrix products.

    Image reconstruction differentiates a gradient once more, and the fused attention kernels of
    PyTorch have no second derivative.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        self._heads = heads
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (N, T, width) of tokens (N, T, width)."""
        n, tokens, width = x.shape
        qkv = functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        qkv = qkv.reshape(n, tokens, 3, self._heads, width // self._heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (width // self._heads) ** 0.5).softmax(dim=-1)
        out: Tensor = self.out_proj((weights @ v).transpose(1, 2).reshape(n, tokens, width))
        return out


class EncoderBlock(nn.Module):
    """Compute x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=_LAYER_NORM_EPS)
        self.self_attention = SelfAttention(width, heads)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(width, eps=_LAYER_NORM_EPS)
        self.mlp = nn.Sequential(
            nn.Linear(width, _MLP_RATIO * width), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(_MLP_RATIO * width, width), nn.Dropout(dropout),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (N, T, width) of tokens (N, T, width)."""
        x = x + self.dropout(self.self_attention(self.ln_1(x)))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Encoder(nn.Module):
    """The position embedding, the blocks and the last norm."""

    def __init__(self, tokens: int, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width).normal_(std=0.02))
        self.layers = nn.Sequential(
            OrderedDict(
                (f"encoder_layer_{i}", EncoderBlock(width, heads, dropout)) for i in range(depth)
            )
        )
        self.ln = nn.LayerNorm(width, eps=_LAYER_NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (N, T, width) of tokens (N, T, width)."""
        out: Tensor = self.ln(self.layers(x + self.pos_embedding))
        return out


class ViT(nn.Module):
    """Patches, a class token, an encoder, and the head `heads.head` on the class token."""

    def __init__(self, classes: int, patch: int, width: int, encoder: Encoder) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.conv_proj = nn.Conv2d(3, width, patch, stride=patch)
        self.encoder = encoder
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes, bias=False)))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, 3, image, image)."""
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1)
        logits: Tensor = self.heads(self.encoder(tokens)[:, 0])
        return logits


def vit(
    classes: int = 10, image: int = 32, patch: int = 4, width: int = 96, depth: int = 4,
    heads: int = 4, dropout: float = 0.0,
) -> ViT:  # fmt: skip
    """Build a vision transformer for square images.

    ``image`` and ``patch`` are pixels per side, the first a multiple of the second; ``width``, the
    entries of a token, is a multiple of ``heads``, the attention heads per block.
    """
    positive(classes=classes, depth=depth)
    divisible("image", image, "patch", patch)
    divisible("width", width, "heads", heads)
    probability("dropout", dropout)
    tokens = (image // patch) ** 2 + 1
    return ViT(classes, patch, width, Encoder(tokens, width, depth, heads, dropout))
