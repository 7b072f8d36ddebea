"""Measure what transformers give away: `python -m benchmarks.transformers [PART …]`.

The parts are images, float64, narrow, solved, texts, frozen, batches, wrong, race and pretrained;
all of them without an argument. With `--count` fewer images and sentences are measured. `--data`
names a pack of photographs for the models of 224 pixels; without it the embedded images are
enlarged.
`--encoder` names the folder of a pretrained encoder, without which none is measured.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import softleak as sl
from benchmarks.transformers import (
    batches,
    image_cells,
    narrow_images,
    pretrained,
    text_cells,
    wrong_words,
)
from benchmarks.transformers.classifiers import (
    DOUBLE_MODEL,
    IMAGE_MODELS,
    NARROW_MODEL,
    TEXT_MODELS,
    ImageModel,
)
from softleak import matching
from softleak.paper import data, models


def main() -> None:
    """Run the parts that were asked for and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--count", type=int)
    parser.add_argument("--data", help="a pack of photographs, .npz")
    parser.add_argument("--encoder", type=Path, help="the folder of a pretrained encoder")
    parser.add_argument("--seed", type=int, default=0, help="of the part wrong")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for part in given.parts or MEASURES:
        print(f"\n## {part}\n", flush=True)
        MEASURES[part](given)


def images(given: argparse.Namespace) -> None:
    """Print the cells of vision transformers."""
    print(image_cells.HEADER)
    for kind in IMAGE_MODELS:
        for cell in image_cells.image_cells(kind, photographs(given, kind), given.count or 100):
            print(cell.line, flush=True)


def photographs(given: argparse.Namespace, kind: ImageModel) -> data.ImageSet:
    """Return the images of a model: the embedded ones, or photographs if it takes larger ones."""
    return data.load(given.data) if given.data and kind.size > 32 else data.embedded()


def in_float64(given: argparse.Namespace) -> None:
    """Print the cells of a model whose client computes in float64."""
    print(image_cells.HEADER)
    shown = photographs(given, DOUBLE_MODEL)
    for cell in image_cells.image_cells(DOUBLE_MODEL, shown, given.count or 20, (True,)):
        print(cell.line, flush=True)


def narrow(given: argparse.Namespace) -> None:
    """Print the cells of a model that has more patches than its width."""
    print(image_cells.HEADER)
    shown = photographs(given, NARROW_MODEL)
    for cell in image_cells.image_cells(NARROW_MODEL, shown, given.count or 20):
        print(cell.line, flush=True)


def solved(given: argparse.Namespace) -> None:
    """Print what Gauss–Newton adds to the closed form of a model with more patches than width."""
    print(narrow_images.NARROW_HEADER)
    for line in narrow_images.narrow_lines(given.count or 5):
        print(line, flush=True)


def texts(given: argparse.Namespace) -> None:
    """Print the cells of text classifiers."""
    print(text_cells.HEAD_LINE)
    for kind in TEXT_MODELS:
        for classes, labels, trained in (
            (2, "smoothed", False), (2, "Dirichlet", True), (20, "smoothed", True),
            (20, "Dirichlet", False),
        ):  # fmt: skip
            cell = text_cells.text_cell(kind, classes, labels, given.count or 200, trained=trained)
            print(cell.line, flush=True)


def frozen(given: argparse.Namespace) -> None:
    """Print the cells of text classifiers whose embeddings send no gradient."""
    print(text_cells.HEAD_LINE)
    for kind in TEXT_MODELS:
        for trained in (False, True):
            cell = text_cells.text_cell(
                kind, 4, "Dirichlet", given.count or 50, trained=trained, frozen=True
            )
            print(cell.line, flush=True)


def in_batches(given: argparse.Namespace) -> None:
    """Print how many texts of small batches are found, of models with frozen embeddings."""
    print(batches.BATCH_HEADER)
    for kind in (TEXT_MODELS[-1], TEXT_MODELS[0]):
        for size in (2, 4):
            print(batches.batch_line(kind, size, given.count or 20), flush=True)


def wrong(given: argparse.Namespace) -> None:
    """Print how often a wrong word was called certain, of random models and changed updates."""
    print(wrong_words.WRONG_HEADER)
    for tally in wrong_words.tallies(given.count or 50, given.seed):
        print(tally.line, *tally.cases, sep="\n", flush=True)


def of_an_encoder(given: argparse.Namespace) -> None:
    """Print the cells of a pretrained encoder with a new head."""
    if given.encoder is None:
        print("no --encoder was named")
        return
    print(text_cells.HEAD_LINE)
    texts_ = pretrained.folder_sentences(given.encoder)
    for frozen_, count in ((False, given.count or 100), (True, (given.count or 100) // 20)):
        model = pretrained.encoder(given.encoder)
        if frozen_:
            text_cells.freeze(model)
        name = f"{given.encoder.name}{', frozen' if frozen_ else ''}"
        some = text_cells.drawn_sentences(texts_, count)
        classes = pretrained.PRETRAINED_CLASSES
        print(text_cells.measured(name, model, "Dirichlet", some, classes).line, flush=True)


def race(_: argparse.Namespace) -> None:
    """Print how much longer matching takes than the closed form, on one image and in one run."""
    torch.manual_seed(0)
    model = models.vit(classes=10).eval()
    (s,) = data.samples(data.embedded(), data.Mixup(), 1, 3, data.CIFAR10_NORM)
    share = sl.capture(model, s.x, s.y)
    found = sl.recover_label(model, share)
    start = time.perf_counter()
    inv = sl.invert(model, share, found)  # finding the head and the plan included
    ours = time.perf_counter() - start
    start = time.perf_counter()
    matched = sl.reconstruct(model, share, found, objective=sl.Cosine(), optimiser=matching.Adam())
    theirs = time.perf_counter() - start
    assert matched.input is not None
    pixel = sum(data.CIFAR10_NORM.std) / 3
    errors = [(one - s.x.double()).square().mean() for one in (inv.input, matched.input.double())]
    psnr = [float(-10 * torch.log10(error * pixel**2)) for error in errors]
    print(
        f"closed form {psnr[0]:.1f} dB; matching with Adam, 4800 steps {psnr[1]:.1f} dB and "
        f"{theirs / ours:.0f} times as long"
    )


MEASURES = {
    "images": images,
    "float64": in_float64,
    "narrow": narrow,
    "solved": solved,
    "texts": texts,
    "frozen": frozen,
    "batches": in_batches,
    "wrong": wrong,
    "race": race,
    "pretrained": of_an_encoder,
}


if __name__ == "__main__":
    main()
