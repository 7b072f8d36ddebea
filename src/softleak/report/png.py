"""This module puts pictures into a page: PNG as a data URI, by the standard library alone."""

from __future__ import annotations

import base64
import struct
import zlib

from torch import Tensor

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPE = {1: 0, 3: 2}  # PNG's colour type by number of channels


def is_picture(pixels: Tensor) -> bool:
    """Return whether a tensor can be shown: (1 or 3, H, W)."""
    return pixels.ndim == 3 and pixels.shape[0] in COLOUR_TYPE


def picture(pixels: Tensor | None) -> str | None:
    """Return pixels as a data URI, or None if there are none that can be shown."""
    return data_uri(pixels) if pixels is not None and is_picture(pixels) else None


def data_uri(pixels: Tensor) -> str:
    """Return pixels (C, H, W) in [0, 1], clamped, as a PNG of eight bits per channel."""
    channels, height, width = pixels.shape
    bytes_ = pixels.nan_to_num(0.0).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0)
    rows = bytes_.contiguous().cpu().numpy().reshape(height, width * channels)
    filtered = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPE[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered, 9)), (b"IEND", b""))
    png = PNG_SIGNATURE + b"".join(_chunk(kind, content) for kind, content in chunks)
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
