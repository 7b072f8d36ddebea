"""Random text classifiers, texts and changes of an update, to tempt a wrong word into certainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import softleak as sl
from benchmarks.transformers.classifiers import USUAL, library
from benchmarks.transformers.rebuilt import adapted, tied
from softleak.core.share import GradientShare
from softleak.defenses import Cast, Clip, GaussianNoise, Int8, LaplaceNoise, Prune, Sign

DISTILLED = {
    **USUAL,
    "width": "dim",
    "layers": "n_layers",
    "heads": "n_heads",
    "inner": "hidden_dim",
}
GPT = {
    "width": "n_embd", "layers": "n_layer", "heads": "n_head", "inner": "n_inner",
    "places": "n_positions",
}  # fmt: skip
FAMILIES: Mapping[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "Bert": (USUAL, {}),
    "Roberta": (USUAL, {}),
    "Electra": (USUAL, {}),
    "DistilBert": (DISTILLED, {}),
    "GPT2": (GPT, {}),
    "Albert": (USUAL, {}),
    "DebertaV2": (USUAL, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "Llama": (USUAL, {}),
}
CLASSES = 4


def drawn(generator: torch.Generator, *choices: Any) -> Any:  # noqa: ANN401 - whatever was given
    """Return one of several choices."""
    return choices[int(torch.randint(len(choices), (), generator=generator))]


def stranger(generator: torch.Generator) -> tuple[str, nn.Module, int]:
    """Return a random classifier with random weights: its family, itself, its number of words."""
    family = drawn(generator, *FAMILIES)
    names, more = FAMILIES[family]
    words = drawn(generator, 40, 120, 300, 1000)
    width = drawn(generator, 16, 32, 64)
    sizes = {"width": width, "layers": drawn(generator, 1, 2, 3), "heads": 2,
             "inner": 2 * width, "places": 48}  # fmt: skip
    settings = {names[k]: v for k, v in sizes.items()}
    torch.manual_seed(int(torch.randint(1 << 30, (), generator=generator)))
    config = getattr(library(), f"{family}Config")(
        vocab_size=words, num_labels=CLASSES, pad_token_id=0, **settings, **more
    )
    model: nn.Module = getattr(library(), f"{family}ForSequenceClassification")(config)
    with torch.no_grad():  # weights from small ones, as they start, to large ones
        factor = drawn(generator, 1.0, 1.0, 3.0, 10.0)
        for parameter in model.parameters():
            parameter.mul_(factor if parameter.ndim > 1 else 1.0)
    return family, model.eval(), words


def texts(count: int, words: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a batch of random texts: repeats, shared openings, padding that is read or not."""
    length = drawn(generator, 3, 5, 9, 16, 24, 40)
    few = drawn(generator, 4, words, words)  # few words are repeated many times
    ids = torch.randint(1, max(few, 2), (count, length), generator=generator)
    mask = torch.ones_like(ids)
    if drawn(generator, True, False):
        ids[:, 0] = 2 % words  # as a class token
    if drawn(generator, True, False, False):
        ids[:, length - length // 3 :] = 0
        if drawn(generator, True, False):
            mask[:, length - length // 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


Change = Callable[[nn.Module, GradientShare, torch.Generator], GradientShare]


def _tables(model: nn.Module) -> tuple[str, ...]:
    tables = (n for n, m in model.named_modules() if isinstance(m, nn.Embedding))
    return tuple(f"{name}.weight" for name in tables)


def _some(_: nn.Module, share: GradientShare, generator: torch.Generator) -> GradientShare:
    """Withhold a random half of all gradients."""
    return share.without(*(n for n in share if drawn(generator, True, False)))


def _places(model: nn.Module, share: GradientShare, _: torch.Generator) -> GradientShare:
    """Withhold the smaller tables, as positions are."""
    sizes = {n: len(share[n]) for n in _tables(model) if n in share}
    return share.without(*(n for n in sizes if sizes[n] < max(sizes.values())))


def _emptied(model: nn.Module, share: GradientShare, generator: torch.Generator) -> GradientShare:
    """Set some rows of the tables to zero, as a client that hides its rarest words would."""

    def change(name: str, gradient: Tensor) -> Tensor:
        if name not in _tables(model):
            return gradient
        kept = torch.rand(len(gradient), generator=generator) > 0.3
        return gradient * kept[:, None].to(gradient)

    return share.map(change)


@dataclass(frozen=True)
class Way:
    """One way in which an update may differ from the gradient of one text."""

    change: Change = lambda _, share, __: share
    texts: int = 1
    client: sl.Client | None = None
    rebuild: Callable[[nn.Module], nn.Module] = lambda model: model


WAYS: Mapping[str, Way] = {
    "as it is": Way(),
    "scaled": Way(lambda _, s, g: s.scaled(drawn(g, 1e-6, 0.3, 50.0))),
    "embeddings frozen": Way(lambda m, s, _: s.without(*_tables(m))),
    "positions withheld": Way(_places),
    "half of all gradients withheld": Way(_some),
    "float16 or bfloat16": Way(lambda _, s, g: Cast(drawn(g, torch.float16, torch.bfloat16))(s)),
    "int8": Way(lambda _, s, __: Int8()(s)),
    "pruned": Way(lambda _, s, g: Prune(drawn(g, 0.9, 0.5, 0.1, 0.01))(s)),
    "signs": Way(lambda _, s, __: Sign()(s)),
    "clipped": Way(lambda _, s, __: Clip(0.1 * s.norm())(s)),
    "Gaussian noise": Way(lambda _, s, g: GaussianNoise(drawn(g, 1e-9, 1e-7, 1e-5, 1e-3), 0)(s)),
    "Laplace noise": Way(lambda _, s, g: LaplaceNoise(drawn(g, 1e-9, 1e-7, 1e-5), 0)(s)),
    "frozen, float16": Way(lambda m, s, _: Cast(torch.float16)(s.without(*_tables(m)))),
    "frozen, noise": Way(lambda m, s, _: GaussianNoise(1e-7, 0)(s.without(*_tables(m)))),
    "two texts": Way(texts=2),
    "three texts": Way(texts=3),
    "two texts, frozen": Way(lambda m, s, _: s.without(*_tables(m)), texts=2),
    "five local steps": Way(client=sl.Client(lr=0.05, steps=5)),
    "rows emptied by the client": Way(_emptied),
    "table used twice": Way(rebuild=tied),
    "table used twice, frozen": Way(lambda m, s, _: s.without(*_tables(m)), rebuild=tied),
    "adapters and head alone": Way(rebuild=adapted),
}  # fmt: skip
