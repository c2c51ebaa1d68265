"""A tokenizer trained on the questions at hand, so that nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

PADDING, UNKNOWN, CLASSIFIER, SEPARATOR = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
SPECIAL = (PADDING, UNKNOWN, CLASSIFIER, SEPARATOR)
"""Their ids are their places in this list, whatever the training found."""

PADDING_ID, UNKNOWN_ID, CLASSIFIER_ID, SEPARATOR_ID = range(len(SPECIAL))


@dataclass(frozen=True)
class Encoding:
    """A text as tokens, each with the characters it stands for: `text[begin:end]`."""

    ids: list[int]
    spans: list[tuple[int, int]]


class Tokenizer:
    """Byte-pair encoding of lower-cased words and punctuation marks."""

    def __init__(self, trained: tokenizers.Tokenizer) -> None:
        self._trained = trained

    @property
    def num_tokens(self) -> int:
        """The vocabulary, special tokens included."""
        return int(self._trained.get_vocab_size())

    def encode(self, text: str) -> Encoding:
        """The text's tokens without special ones; characters never seen in training are unknown."""
        encoded = self._trained.encode(text, add_special_tokens=False)
        return Encoding(list(encoded.ids), list(encoded.offsets))

    def to_json(self) -> str:
        """All of it as text; `Tokenizer.from_json` reads it."""
        return str(self._trained.to_str())

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The tokenizer that `to_json` wrote."""
        return cls(tokenizers.Tokenizer.from_str(text))


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A tokenizer of at most `vocabulary` tokens, or as many as the texts' characters need."""
    if vocabulary <= len(SPECIAL):
        raise ValueError(f"a vocabulary has more than its {len(SPECIAL)} special tokens, got {vocabulary}")
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return Tokenizer(tokenizer)
