"""The options of a scan, for `attnscope.scan` and for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from attnscope.columns import VectorKind
from attnscope.options import (
    CORPUS,
    DIAGNOSIS,
    WHAT_IF,
    Decimals,
    Flag,
    WholeNumber,
    WholeNumbers,
    Words,
    as_written,
    flag,
)


@Parameter(name="*")
@dataclass(frozen=True)
class ScanOptions:
    """What `attnscope.scan` measures.

    Parameters
    ----------
    length
        Tokens in a window. Default: 1024, or the model's limit if that is less.
    lengths
        The prefixes whose last row is measured, e.g. 32,128,512. Default: powers of two up to the length. A causal
        model gives all of them in one forward pass; an encoder runs once for each.
    top_n
        Sizes of the top set, e.g. 1,5,20. Default: 1,5,10,20,100 as far as they fit.
    rows
        Which query rows to measure: last (of each length), a number of rows spread evenly over the window, or all.
    vectors
        What the weights average: value vectors, values through the output projection, the layer's input (the
        residual stream, before the norm), the same scaled to length one, or the token's input embedding.
    windows
        How many windows of the text to scan. Numbers are means over them; the page shows the spread. No window spans
        two documents.
    choose
        Which windows: the first ones, some spread evenly over all documents, or some drawn at random. Default: first
        for a text, even for a corpus.
    seed
        Seed of --choose random.
    packed
        Join the documents, with the tokenizer's end token after each, before windows are chosen.
    bos
        Put the model's begin token before each window.
    normalizers
        Normalizers to measure on the same logits as the model's own, e.g. sparsemax,entmax:alpha=1.3.
    temperatures
        Temperatures for the model's own normalizer and those of --normalizer, e.g. 0.5,2.
    memory_budget
        Memory for a block of rows while it is measured, e.g. 512MB or 2GB.
    bounds
        paper: also measure the bounds as the paper prints them, and the proved lower bound on separability. They need
        all pairs of keys; without it their columns are null.
    delta_max_length
        The longest rows in which --bounds paper looks at all pairs of keys: the time grows with the square of the
        length.
    diagnose
        Label every head with the simplest rule that gives nearly the same output, on 4 windows spread over the text
        (or --windows, at least 2), and rank the heads that matter most.
    verify
        Diagnose, then test every label inside the model on 4 other windows: replace the weights of its heads by what
        the label says is enough, and compare the change of the next-token distribution with that for random heads.
        Labels that fail are withdrawn. Takes about 300 forward passes.
    """

    length: WholeNumber | None = None
    lengths: WholeNumbers | None = None
    top_n: WholeNumbers | None = None
    rows: Annotated[int | str, Parameter(converter=as_written)] = "last"
    vectors: VectorKind = "value"
    windows: WholeNumber = 1
    choose: Annotated[Literal["first", "even", "random"] | None, Parameter(group=CORPUS)] = None
    seed: Annotated[WholeNumber, Parameter(group=CORPUS)] = 0
    packed: Annotated[bool, flag(group=CORPUS)] = False
    bos: Flag = False
    normalizers: Annotated[Words, Parameter(name="--normalizer", group=WHAT_IF)] = ()
    temperatures: Annotated[Decimals, Parameter(name="--temperature", group=WHAT_IF)] = ()
    memory_budget: Annotated[int | str, Parameter(converter=as_written)] = "256MB"
    bounds: Literal["paper"] | None = None
    delta_max_length: Annotated[WholeNumber, Parameter(name=["--delta-max-length", "--delta-keys"])] = 8192
    diagnose: Annotated[bool, flag(group=DIAGNOSIS)] = False
    verify: Annotated[bool, flag(group=DIAGNOSIS)] = False
