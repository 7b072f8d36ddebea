"""This module decodes compressed images by Pillow (extra `images`)."""

from __future__ import annotations

from typing import IO

import numpy as np
import numpy.typing as npt

from softleak.errors import DataError, MissingExtra, how_to_install


def decode_photo(
    stream: IO[bytes], name: str, formats: tuple[str, ...] | None = None
) -> npt.NDArray[np.uint8]:
    """Return an image file as RGB bytes (H, W, 3), upright; `formats` limits what may come."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingExtra(
            f"Reading compressed images needs Pillow: {how_to_install('images')}."
        ) from error
    try:
        with Image.open(stream, formats=formats) as photo:
            return np.array(ImageOps.exif_transpose(photo).convert("RGB"), dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} is not a readable image: {error}") from error
