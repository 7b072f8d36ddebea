from __future__ import annotations

import base64
import io

import pytest
import torch
from PIL import Image

from softleak.present.page import data_uri, is_picture


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_survive(channels):
    pixels = torch.rand(channels, 5, 7)
    encoded = data_uri(pixels).removeprefix("data:image/png;base64,")
    image = Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert image.size == (7, 5)
    back = torch.tensor(list(image.tobytes())).reshape(5, 7, channels).permute(2, 0, 1)
    assert torch.equal(back, (pixels * 255).round().long())


def test_values_beyond_the_range_are_clamped():
    wild = torch.tensor([[[-1.0, 2.0, float("nan")]]])
    encoded = data_uri(wild).removeprefix("data:image/png;base64,")
    assert list(Image.open(io.BytesIO(base64.b64decode(encoded))).tobytes()) == [0, 255, 0]


def test_only_images_are_pictures():
    assert is_picture(torch.zeros(3, 4, 4))
    assert not is_picture(torch.zeros(8))
    assert not is_picture(torch.zeros(2, 4, 4))
