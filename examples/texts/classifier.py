"""A small BERT that tells which of four books a sentence is of, and its tokenizer."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from softleak.paper import data

CLASSES = ("Ruth", "Ecclesiastes", "Jonah", "another book")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = 2000


def make() -> nn.Module:
    """Return the classifier with the weights that every client starts from."""
    library: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = library.BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=160, num_labels=len(CLASSES),
    )  # fmt: skip
    model: nn.Module = library.BertForSequenceClassification(config).eval()
    return model


def tokenizer() -> Any:  # noqa: ANN401 - a tokenizer of another library
    """Return word pieces learned from the verses that come with softleak."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=WORDS, special_tokens=list(SPECIAL))
    made.train_from_iterator(data.verses(), trainer)
    ends = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    return made
