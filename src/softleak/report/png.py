"""Pictures inside a page: PNG as a data URI, by the standard library alone."""

from __future__ import annotations

import base64
import struct
import zlib

from torch import Tensor

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR = {1: 0, 3: 2}  # PNG's colour type by number of channels


def is_picture(pixels: Tensor) -> bool:
    """Whether a tensor can be shown: (1 or 3, H, W)."""
    return pixels.ndim == 3 and pixels.shape[0] in COLOUR


def data_uri(pixels: Tensor) -> str:
    """Pixels (C, H, W) in [0, 1], clamped, as eight bits a channel."""
    channels, height, width = pixels.shape
    bytes_ = pixels.nan_to_num(0.0).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0)
    rows = bytes_.contiguous().cpu().numpy().reshape(height, width * channels)
    filtered = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered, 9)), (b"IEND", b""))
    png = SIGNATURE + b"".join(_chunk(kind, content) for kind, content in chunks)
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
