"""This module gives tensors a fingerprint, where no file has one."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import torch
from torch import Tensor


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors by name: of names, shapes, number formats and bytes.

    Args:
        tensors: the tensors of a model or of an update.
    """
    digest = sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
