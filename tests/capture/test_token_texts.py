"""The texts of tokens, for each kind of tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from models import byte_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from attnscope.capture.tokens import token_texts

TEXT = "Anna\u2019s caf\u00e9 \u2014 \u65e5\u672c \U0001f642\n\n  and\ta tail."


def sentencepiece_tokenizer() -> Any:
    """Pieces with `\u2581` for a space, and bytes for all other characters."""
    merges = [
        "A n",
        "An n",
        "Ann a",
        "\u2581 a",
        "\u2581a n",
        "\u2581an d",
        "\u2581 t",
        "\u2581t a",
        "\u2581ta i",
        "\u2581tai l",
    ]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    pieces = dict.fromkeys(["<unk>", "<s>", ".", "s", *(part for pair in pairs for part in (*pair, "".join(pair)))])
    names = [*pieces, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def wordpiece_tokenizer() -> Any:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "tail", "##s", "wag", "##ging", ".", "don", "'", "t", "(", ")"]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level_tokenizer() -> Any:
    """Byte-level BPE whose one merge joins a space to the first byte of a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate([*alphabet, "\u0120\u00e6"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("\u0120", "\u00e6")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


KINDS = {"bytes": byte_tokenizer, "byte-level": byte_level_tokenizer, "sentencepiece": sentencepiece_tokenizer}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_the_texts_of_all_tokens_are_the_text(make: Any) -> None:
    tokenizer = make()
    names, texts = token_texts(tokenizer, tokenizer(TEXT, add_special_tokens=False)["input_ids"])
    assert len(names) == len(texts)
    assert "".join(texts) == TEXT


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_character_of_several_tokens_belongs_to_the_first(make: Any) -> None:
    tokenizer = make()
    texts = token_texts(tokenizer, tokenizer("a \u65e5.", add_special_tokens=False)["input_ids"])[1]
    assert [text.strip() for text in texts if text.strip()] == ["a", "\u65e5", "."]
    first = next(i for i, text in enumerate(texts) if "\u65e5" in text)
    assert texts[first + 1 :] == ["", "", "."]  # three bytes in UTF-8


def test_a_window_that_starts_inside_a_character_shows_that_it_is_broken() -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer("\u65e5!", add_special_tokens=False)["input_ids"]
    assert token_texts(tokenizer, tokens[1:])[1] == ["\ufffd", "\ufffd", "!"]


def test_pieces_of_words_join_and_words_are_apart() -> None:
    tokenizer = wordpiece_tokenizer()
    tokens = tokenizer("a tail (wagging tails) don't.")["input_ids"]
    names, texts = token_texts(tokenizer, tokens)
    assert "##ging" in names
    assert texts[0] == "[CLS]"
    assert texts[-1] == "[SEP]"
    assert "".join(texts[1:-1]) == " a tail (wagging tails) don't."


def test_a_space_before_a_piece_is_its_own() -> None:
    tokenizer = sentencepiece_tokenizer()
    names, texts = token_texts(tokenizer, tokenizer(" and a tail", add_special_tokens=False)["input_ids"])
    assert names == ["\u2581and", "\u2581a", "\u2581tail"]
    assert texts == [" and", " a", " tail"]
