"""What a diagnosis says: ranked sentences, each with the numbers it rests on and what to do about it.

Every number in a sentence is computed in the run it speaks of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.diagnosis.measure_findings import (
    budget_finding,
    coverage_finding,
    needs_finding,
    separability_finding,
    what_if_findings,
)
from attnscope.diagnosis.sentences import Described, carrying, column, counted, finding
from attnscope.diagnosis.states import STATES

if TYPE_CHECKING:
    import polars as pl

    from attnscope.diagnosis.observing import WindowRows
    from attnscope.diagnosis.thresholds import Thresholds

_ORDER = {"act": 0, "watch": 1, "note": 2}


def findings(
    heads: Described,
    windows: Sequence[WindowRows],
    agreed: dict[str, Any],
    length: int,
    thresholds: Thresholds,
    verification: dict[str, Any] | None,
    what_if: pl.DataFrame | None,
    seed: int,
) -> list[dict[str, Any]]:
    """All findings, the most pressing first."""
    found = [
        _broad(heads, length, thresholds, verification),
        needs_finding(heads, windows, length, thresholds, seed),
        budget_finding(heads, thresholds, verification),
        _idle(heads, thresholds),
        _local(heads, thresholds),
        _over_sharp(heads, thresholds),
        _stability(heads, agreed),
        _predictions(verification),
        separability_finding(heads, thresholds),
        coverage_finding(heads, thresholds),
        *what_if_findings(what_if, heads, verification),
    ]
    ranked = sorted((one for one in found if one), key=lambda one: _ORDER[one["severity"]])
    return [{"rank": rank, **one} for rank, one in enumerate(ranked, 1)]


def verdict(heads: Described, agreed: dict[str, Any], verification: dict[str, Any] | None) -> dict[str, Any]:
    """The whole diagnosis in a headline, three groups of heads and how far to trust them."""
    total = len(heads)
    broad, idle = carrying(heads, "broad"), carrying(heads, "sink-bound", "constant")
    local, selective = len(carrying(heads, "local")), len(carrying(heads, "selective"))
    tried = verification["predictions"] if verification else []
    failed = [p["state"] for p in tried if not p["held"]]
    headline = f"{len(broad)} of {counted(total)} to worry about"
    if not broad:
        headline = f"No head to worry about: none of the {total} needs many tokens"
    elif "broad" in failed:
        headline = (
            f"{len(broad)} of {counted(total)} {'looks' if len(broad) == 1 else 'look'} broad, but inside the model "
            "other heads suffer as much from losing keys: do not act on that label"
        )
    groups = [
        (
            "worry",
            ["broad"],
            "average over many tokens. The longer the text, the less each token counts there, and leaving keys out "
            "hurts them most.",
        ),
        (
            "spare",
            ["sink-bound", "constant"],
            "put out nearly the same whatever the text: candidates for pruning.",
        ),
        (
            "fine",
            ["local", "selective"],
            "do with few tokens: "
            + " and ".join(
                f"{count} {words}"
                for count, words in ((local, "with their neighbors"), (selective, "with a few picked anywhere"))
                if count
            )
            + ".",
        ),
    ]
    trust = f"Other windows of the text give the same label to {agreed['share']:.0%} of the heads."
    unsure = sum(head["edge"] is not None for head in heads)
    if unsure:
        trust += f" {counted(unsure)} {'lies' if unsure == 1 else 'lie'} near the edge between two labels."
    if tried:
        trust += f" Tried inside the model, {len(tried) - len(failed)} of {len(tried)} labels meant what they say"
        trust += f"; not so: {', '.join(failed)}." if failed else "."
    else:
        trust += " The labels were not tried inside the model (--verify does that)."
    counts = {"worry": len(broad), "spare": len(idle), "fine": local + selective}
    return {
        "headline": headline + ".",
        "groups": [
            {"name": name, "states": states, "heads": counts[name], "sentence": _said(counts[name], words)}
            for name, states, words in groups
            if counts[name]
        ],
        "trust": trust,
    }


def _said(count: int, words: str) -> str:
    """A sentence about some heads; its first word is a verb, which one head changes."""
    verb, _, rest = words.partition(" ")
    one = {"do": "does"}.get(verb, f"{verb}s")
    return f"{counted(count)} {one if count == 1 else verb} {rest}"


def _broad(
    heads: Described, length: int, thresholds: Thresholds, verification: dict[str, Any] | None
) -> dict[str, Any] | None:
    broad = sorted(carrying(heads, "broad"), key=lambda head: -head["evidence"]["error_top_share"])
    if not broad:
        return None
    part, worst = len(broad) / len(heads), broad[0]
    error, use = (
        float(np.median(column(broad, "error_top_share"))),
        float(np.median(column(broad, "tokens_in_use"))),
    )
    others = [head for head in heads if head["state"] != "broad"]
    elsewhere = float(np.median(column(others, "tokens_in_use"))) if others else math.nan
    refuted = any(p["state"] == "broad" and not p["held"] for p in (verification or {}).get("predictions", ()))
    compared = f", against {elsewhere:,.0f} in the other heads" if others else ""
    return finding(
        "broad-heads",
        "act" if part >= 0.25 and not refuted else "watch",
        "Heads that need many tokens",
        f"{len(broad)} of {counted(len(heads))} ({part:.0%}) average over many tokens: the {thresholds.top_share:.0%} "
        f"of keys with the largest weights miss their output by {error:.0%} (median), and they need {use:,.0f} tokens "
        f"at length {length:,} to come within {thresholds.enough:.0%}{compared}. Layer {worst['layer']} head "
        f"{worst['head']} is the broadest.",
        "This is what a saturated head can honestly mean. Do not take keys from these heads (top-k, sparse "
        "normalizers): "
        "they lose most. If they should select, give them a length-aware normalizer in training.",
        broad,
        count=len(broad),
        share=part,
        median_error=error,
        median_tokens=use,
        median_tokens_elsewhere=elsewhere if others else None,
    )


def _idle(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    idle = carrying(heads, "sink-bound", "constant")
    if not idle:
        return None
    bound, constant = len(carrying(heads, "sink-bound")), len(carrying(heads, "constant"))
    off = float(np.mean([head["off_share"] for head in heads]))
    return finding(
        "idle-heads",
        "watch" if len(idle) / len(heads) >= 0.25 else "note",
        "Heads whose output hardly depends on the text",
        f"{len(idle)} of {counted(len(heads))} {'puts' if len(idle) == 1 else 'put'} out nearly the same whatever the "
        f"row: {bound} only the first key's value (sink-bound), {constant} close to its own mean (constant). "
        f"Over all heads, {off:.0%} of the rows "
        f"put more than {thresholds.off_weight:.0%} of their weight on the first key.",
        "Candidates for pruning: try their mean output first. Weight on the first key alone is not enough to call a "
        "head idle; its value can be near zero, and then the rest decides.",
        idle,
        sink_bound=bound,
        constant=constant,
        off_share=off,
    )


def _local(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    local = carrying(heads, "local")
    if not local:
        return None
    error = float(np.median(column(local, "error_local")))
    near = int(thresholds.near_keys)
    return finding(
        "local-heads",
        "note",
        "Heads that look at their neighbors",
        f"{len(local)} of {counted(len(heads))} {'needs' if len(local) == 1 else 'need'} only the first key and the "
        f"nearest {near}: the error is "
        f"{error:.0%} (median).",
        f"A window of {near} keys plus the first one does for them at these lengths: a cheap place to save memory.",
        local,
        count=len(local),
        median_error=error,
    )


def _over_sharp(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    # Weight on the first key is rest, not sharpness.
    sharp = [head for head in heads if head["over_sharp_share"] - head["off_share"] > 0.5]
    if not sharp:
        return None
    return finding(
        "over-sharp-heads",
        "watch",
        "Heads that put nearly all weight on one token",
        f"{len(sharp)} of {counted(len(heads))} {'gives' if len(sharp) == 1 else 'give'} more than "
        f"{thresholds.over_sharp_weight:.0%} of the weight to a "
        "single token other than the first in most rows: hardly any gradient reaches their logits there.",
        "In training, raise the temperature of these heads or bound their logits. The paper's limit for too sharp, "
        "T below 0.1, speaks of the temperature and cannot be read off a trained model, whose logits have any scale.",
        sharp,
        count=len(sharp),
    )


def _stability(heads: Described, agreed: dict[str, Any]) -> dict[str, Any]:
    counts = {state: len(carrying(heads, state)) for state in STATES}
    listed = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    edge = [head for head in heads if head["edge"] is not None]
    mixed = sum(head["state_share"] < 0.5 for head in heads)
    shaky = agreed["kappa"] < 0.6
    sure = agreed["sure_heads"]
    sentence = (
        f"{listed}. Labels from one half of the {agreed['windows']} windows agree with those from the other half for "
        f"{agreed['share']:.0%} of the heads (kappa {agreed['kappa']:.2f}"
    )
    sentence += f"; {agreed['sure_share']:.0%} of the {sure} whose label is sure)" if sure else ")"
    sentence += (
        f". {counted(len(edge))} lie{'s' if len(edge) == 1 else ''} so near a limit that other rows could give another "
        "label."
        if edge
        else ". No head lies so near a limit that other rows would give it another label."
    )
    if mixed:
        sentence += f" In {counted(mixed)} fewer than half of the rows, taken one by one, show the head's own state."
    return finding(
        "labels",
        "watch" if shaky else "note",
        "How far the labels can be trusted",
        sentence,
        "Labels change with the kind of text: use more windows, and text like what the model will see."
        if shaky
        else "Do not act on a single head near the edge (listed here) without looking at its errors.",
        edge,
        **agreed,
        counts=counts,
        edge_heads=len(edge),
        mixed_heads=mixed,
    )


def _predictions(verification: dict[str, Any] | None) -> dict[str, Any] | None:
    if verification is None or not verification["predictions"]:
        return None
    held = [p["state"] for p in verification["predictions"] if p["held"]]
    failed = [p["state"] for p in verification["predictions"] if not p["held"]]
    ratios = ", ".join(f"{p['state']} {p['ratio']:.1f}" for p in verification["predictions"] if p["ratio"] is not None)
    return finding(
        "predictions",
        "watch" if failed else "note",
        "Tried inside the model",
        f"{len(held)} of {len(held) + len(failed)} predictions held on {verification['length']:,} tokens not seen "
        f"before: how many times the KL divergence of labeled and random heads differ is {ratios}."
        + (f" Not held: {', '.join(failed)}." if failed else ""),
        "Do not act on labels that did not hold on this model."
        if failed
        else "The labels mean on this model what they say.",
        [],
        held=held,
        failed=failed,
    )
