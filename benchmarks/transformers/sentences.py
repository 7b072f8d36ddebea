"""Real sentences as token ids, by tokenizers that are trained on the embedded verses."""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks.transformers.classifiers import library
from softleak.paper import data

WORDS = 2000
SHORTEST, LONGEST = 5, 120


@cache
def tokenizer(pieces: bool) -> Any:  # noqa: ANN401 - a tokenizer of another library
    """Return WordPiece with [CLS] and [SEP], or byte pairs with <s> and </s>."""
    library()
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
    from tokenizers import models as kinds

    if pieces:
        made = Tokenizer(kinds.WordPiece(unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        trainer: Any = trainers.WordPieceTrainer(vocab_size=WORDS, special_tokens=special)
        ends = ("[CLS]", "[SEP]")
        made.decoder = decoders.WordPiece()
    else:
        made = Tokenizer(kinds.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel()
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        trainer = trainers.BpeTrainer(vocab_size=WORDS, special_tokens=special)
        ends = ("<s>", "</s>")
        made.decoder = decoders.ByteLevel()
    made.train_from_iterator(data.verses(), trainer)
    made.post_processor = processors.TemplateProcessing(
        single=f"{ends[0]} $A {ends[1]}",
        special_tokens=[(end, made.token_to_id(end)) for end in ends],
    )
    return made


def sentences(pieces: bool) -> list[list[int]]:
    """Return the token ids of the embedded verses that have 5 to 120 of them."""
    made = [tokenizer(pieces).encode(verse).ids for verse in data.verses()]
    return [ids for ids in made if SHORTEST <= len(ids) <= LONGEST]
