"""Texts of sequence classifiers: tokens in their places, certainty and labels, cell by cell."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import softleak as sl
from benchmarks.transformers.classifiers import TextModel, train_texts
from benchmarks.transformers.sentences import WORDS, sentences
from softleak.core.knowledge import Knowledge
from softleak.inversion.invert import invert_subject
from softleak.inversion.results import Certainty
from softleak.labels.recover import recover

LABEL_BOUND = 1e-3
TABLES = ("embeddings.", ".wte.", ".wpe.")  # frozen in cells of frozen embeddings


@dataclass(frozen=True)
class TextCell:
    """What was found of the sentences of one model with one kind of label."""

    model: str
    classes: int
    labels: str
    count: int
    whole: int  # sentences with every token in its place
    right: int  # tokens in their place
    tokens: int
    wrong: int  # tokens called certain that are not the true ones
    certain: int  # sentences all of whose tokens are called certain
    exact: int  # labels whose error is below 0.001
    proved: int  # of these, labels that are UNIQUE
    seconds: float

    @property
    def line(self) -> str:
        """Return a row of the table in docs/transformers.md."""
        return (
            f"| {self.model} | {self.classes} | {self.labels} | {self.whole}/{self.count} "
            f"| {100 * self.right / self.tokens:.2f} % | {self.certain}/{self.count} "
            f"| {self.wrong} | {self.exact}/{self.count} | {self.proved}/{self.count} "
            f"| {1000 * self.seconds:.0f} |"
        )


HEAD_LINE = (
    "| model | classes | labels | whole sentences | tokens | all certain | wrong but certain "
    "| labels exact | labels proved | ms |\n|---|---|---|---|---|---|---|---|---|---|"
)


def made_label(kind: str, classes: int, generator: torch.Generator) -> Tensor:
    """Return a smoothed label with ε below one half, or one uniform on the simplex."""
    if kind == "Dirichlet":
        drawn = torch.rand(classes, generator=generator, dtype=torch.double).log().neg()
        return drawn / drawn.sum()
    epsilon = float(torch.rand((), generator=generator)) / 2
    y = torch.full((classes,), epsilon / classes, dtype=torch.double)
    y[int(torch.randint(classes, (), generator=generator))] += 1 - epsilon
    return y


def built(kind: TextModel, classes: int, *, trained: bool, frozen: bool) -> nn.Module:
    """Return a classifier, trained a little if so asked, its embeddings frozen if so asked."""
    torch.manual_seed(0)
    model = kind.make(classes, WORDS)
    if trained:
        train_texts(model, sentences(kind.pieces)[::-1], classes)
    if frozen:
        freeze(model)
    return model.eval()


def text_cell(
    kind: TextModel, classes: int, labels: str, count: int, *, trained: bool, frozen: bool = False
) -> TextCell:
    """Measure one model with one kind of label on this many sentences."""
    model = built(kind, classes, trained=trained, frozen=frozen)
    name = f"{kind.family}{', trained a little' if trained else ''}{', frozen' if frozen else ''}"
    return measured(name, model, labels, drawn_sentences(sentences(kind.pieces), count), classes)


def drawn_sentences(every: list[list[int]], count: int) -> list[list[int]]:
    """Return this many of the sentences, in a random order that is always the same."""
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(7))
    return [every[i] for i in order[:count].tolist()]


def measured(
    name: str, model: nn.Module, labels: str, texts: list[list[int]], classes: int
) -> TextCell:
    """Measure what a model gives away of these sentences."""
    generator = torch.Generator().manual_seed(7)
    subject: sl.Subject | None = None
    whole = right = wrong = certain = exact = proved = 0
    seconds = 0.0
    for ids in texts:
        y = made_label(labels, classes, generator)
        x = {"input_ids": torch.tensor(ids), "attention_mask": torch.ones(len(ids)).long()}
        share = sl.capture(model, x, y)
        subject = subject or sl.Subject.of(model, share.input_shape)
        (found,) = recover(subject, [share], Knowledge())
        start = time.perf_counter()
        inv = invert_subject(subject, share, found)
        seconds += (time.perf_counter() - start) / len(texts)
        assert inv.text is not None
        pairs = {p.position: p for p in inv.text.places}
        hits = sum(i in pairs and pairs[i].token == token for i, token in enumerate(ids))
        whole, right = whole + (hits == len(ids) == len(pairs)), right + hits
        certain += inv.text.certain
        sure = (p for p in inv.text.places if p.certainty is Certainty.CERTAIN)
        wrong += sum(p.position >= len(ids) or p.token != ids[p.position] for p in sure)
        close = found.label is not None and float((found.label - y).abs().sum()) < LABEL_BOUND
        exact += close
        proved += close and found.status is sl.Status.UNIQUE
    total = sum(map(len, texts))
    return TextCell(
        name, classes, labels, len(texts), whole, right, total, wrong, certain, exact, proved,
        seconds,
    )  # fmt: skip


def freeze(model: nn.Module) -> None:
    """Freeze the embeddings of a model."""
    for name, parameter in model.named_parameters():
        if any(table in f".{name}" for table in TABLES):
            parameter.requires_grad_(False)
