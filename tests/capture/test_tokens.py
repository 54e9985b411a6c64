"""Windows of texts and corpora: never across documents, spread or drawn over all of them."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import build, byte_tokenizer
from token_lists import tokenized_list

from attnscope.capture.documents import Corpus
from attnscope.capture.models import Model, load_model
from attnscope.capture.text import Text
from attnscope.capture.tokens import WindowChoice, WindowTokens, tokenized, window_choice
from attnscope.errors import InputError, ModelError

DOCUMENTS = ["abcdefg", "", "hi", "jklmnopqrstuvwxyz"]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(build("gpt2"), tokenizer=byte_tokenizer())


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in DOCUMENTS))
    return Corpus((str(tmp_path / "c.jsonl"),))


def chosen(
    model: Model, corpus: Corpus | Text, length: int, count: int, choice: WindowChoice, **more: Any
) -> list[str]:
    text = tokenized(model, corpus, choice, **more)
    windows = WindowTokens(text, text.starts(length, count, choice), length)
    return [model.tokenizer.decode(line) for line in windows[:].tolist()]


def test_no_window_spans_two_documents(model: Model, corpus: Corpus) -> None:
    assert chosen(model, corpus, 3, 7, WindowChoice()) == ["abc", "def", "jkl", "mno", "pqr", "stu", "vwx"]
    with pytest.raises(InputError, match=r"room for 7 windows, too few for 8 .* packed=True, which joins documents"):
        chosen(model, corpus, 3, 8, WindowChoice())


def test_packed_documents_are_one_with_the_end_token_after_each(model: Model, corpus: Corpus) -> None:
    text = tokenized(model, corpus, WindowChoice(packed=True))
    end = model.tokenizer.eos_token_id
    assert end is not None
    expected = [token for one in DOCUMENTS for token in [*model.tokenizer(one)["input_ids"], end]]
    assert text.read(0, len(text)).tolist() == expected
    assert text.ends.tolist() == [len(expected)]


def test_even_windows_are_those_in_the_middle_of_equal_parts(model: Model, corpus: Corpus) -> None:
    """Of 7 windows, 3 are those at 7/6, 21/6 and 35/6."""
    assert chosen(model, corpus, 3, 3, WindowChoice("even")) == ["def", "mno", "stu"]
    assert chosen(model, corpus, 3, 7, WindowChoice("even")) == chosen(model, corpus, 3, 7, WindowChoice())


def test_random_windows_are_drawn_without_repetition_by_the_seed_alone(model: Model, corpus: Corpus) -> None:
    every = chosen(model, corpus, 3, 7, WindowChoice())
    draws = [chosen(model, corpus, 3, 4, WindowChoice("random", seed)) for seed in (0, 0, *range(1, 12))]
    assert draws[0] == draws[1]
    assert all(len(set(draw)) == 4 and draw == sorted(draw, key=every.index) for draw in draws)
    assert {word for draw in draws for word in draw} == set(every)


@pytest.mark.parametrize("how", ["first", "even", "random"])
def test_any_documents_give_windows_that_lie_in_one_of_them(how: Any) -> None:
    """Against a list of all windows, document by document."""
    generator = random.Random(7)
    for _ in range(30):
        lengths = [generator.randrange(0, 40) for _ in range(generator.randrange(1, 12))]
        lengths.append(40)
        ends = np.cumsum(lengths).tolist()
        length = generator.randrange(1, 20)
        every = [start for begin, end in pairwise([0, *ends]) for start in range(begin, end - length + 1, length)]
        count = generator.randrange(1, len(every) + 1)
        starts = tokenized_list(list(range(ends[-1])), ends=ends).starts(length, count, WindowChoice(how)).tolist()
        assert len(starts) == count
        assert starts == sorted(starts)
        if len(lengths) > 1:
            assert set(starts) <= set(every)


def test_a_text_is_cut_from_its_start_and_a_corpus_evenly(corpus: Corpus) -> None:
    assert window_choice(Text("a", "t"), None, 0, False) == WindowChoice("first")
    assert window_choice(corpus, None, 3, True) == WindowChoice("even", 3, True)
    assert WindowChoice().as_json() == {}
    assert WindowChoice("random", 5).as_json() == {"choice": {"how": "random", "seed": 5, "packed": False}}
    with pytest.raises(InputError, match="choose takes first, even or random; received 'last'"):
        WindowChoice("last")  # type: ignore[arg-type]


def test_reading_stops_when_there_are_enough_windows(model: Model, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdef")
    (tmp_path / "b.txt").write_text("ghijkl")
    corpus = Corpus((str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "nowhere://c.txt"))
    text = tokenized(model, corpus, WindowChoice(), enough=(3, 4))
    assert (len(text), text.documents) == (12, 2)
    with pytest.raises(InputError, match="nowhere"):
        tokenized(model, corpus, WindowChoice(), enough=(3, 5))


def test_a_corpus_says_what_it_is(model: Model, corpus: Corpus, tmp_path: Path) -> None:
    text = tokenized(model, corpus, WindowChoice("even"))
    assert text.as_json() == {
        "source": corpus.source,
        "sha256": corpus.digest,
        "characters": sum(map(len, DOCUMENTS)),
        "tokens": sum(map(len, DOCUMENTS)),
        "documents": 4,
    }
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(InputError, match="has no tokens"):
        tokenized(model, Corpus((str(tmp_path / "empty.jsonl"),)), WindowChoice())


def test_tokens_without_an_embedding_are_refused(corpus: Corpus) -> None:
    small = load_model(build("gpt2"), tokenizer=byte_tokenizer())
    small.module.resize_token_embeddings(100)
    with pytest.raises(ModelError, match="model and tokenizer do not belong together"):
        tokenized(small, corpus, WindowChoice())
