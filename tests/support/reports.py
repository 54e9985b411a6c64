"""Reports for the tests: hand-made runs of any size, with numbers that can be told apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from attnscope.diagnosis.states import STATES, Thresholds
from attnscope.store import tables


def enlarged(table: pl.DataFrame, layers: int, heads: int) -> pl.DataFrame:
    """The lines of one head for every head of a larger model, each with numbers of its own."""
    grid = pl.DataFrame({"layer": range(layers)}).join(pl.DataFrame({"head": range(heads)}), how="cross").cast(pl.Int32)
    lines = table.filter(layer=0, head=0).drop("layer", "head")
    factor = 1 - (pl.col("layer") * 61 + pl.col("head") * 7) % 997 / 1997
    wide = grid.join(lines, how="cross").with_columns(pl.selectors.float() * factor)
    return wide.select(table.columns)


def large_shown(token_weights: tables.TokenWeights, layers: int, heads: int) -> tables.TokenWeights:
    """The weights over the text for every head of a larger model."""
    patterns = None if token_weights.patterns is None else enlarged_patterns(token_weights.patterns, layers, heads)
    return tables.TokenWeights(
        enlarged(token_weights.weights, layers, heads), token_weights.tokens, token_weights.texts, patterns
    )


def enlarged_patterns(patterns: pl.DataFrame, layers: int, heads: int) -> pl.DataFrame:
    """The pattern of one head for every head of a larger model, with noise that no compression removes."""
    random = np.random.default_rng(0)
    one = patterns.filter(layer=0, head=0)
    cells = np.array(one["weights"].to_list(), dtype=np.float32)
    parts = [
        one.with_columns(
            layer=pl.lit(layer, pl.Int32),
            head=pl.lit(head, pl.Int32),
            weights=pl.Series(list(cells * random.uniform(0, 2, cells.shape).astype(np.float32))),
        )
        for layer in range(layers)
        for head in range(heads)
    ]
    whole = pl.concat(parts).cast(dict(tables.PATTERNS))
    return whole.with_columns(pl.col("weights").list.eval(pl.element().fill_nan(None)))


def made_claims() -> dict[str, Any]:
    """Claims as an audit has them, with trials, and as a reproduction has them, with words; some text is hostile."""
    return {
        "claims": [
            {
                "id": "lemma-1",
                "place": "eq. (3)",
                "note": "Weights lie between <b>bounds</b>.",
                "printed": [{"violations": 3, "rate": 0.25}],
                "corrected": [{"violations": 0, "rate": 0.0}],
                "depends_on": [],
            },
            {"id": "figure-2", "place": "section 4", "claim": "Separability falls\u202e.", "verdict": "held"},
        ]
    }


def made_findings(heads: list[tuple[int, int]]) -> dict[str, Any]:
    """Findings for some heads, the states in turn."""
    judged = [
        {
            "layer": layer,
            "head": head,
            "state": list(STATES)[i % len(STATES)],
            "sureness": 0.7 if i == 3 else 1.0,
            "edge": "selective" if i == 3 else None,
            "state_share": 1.0,
            "off_share": 0.1,
            "over_sharp_share": 0.0,
            "evidence": {
                "error_first_key": 0.91,
                "error_local": 0.42,
                "participation": 4.2,
                "tokens_needed": 10.0 + i,
                "null_uniform": 0.3,
                "null_random": 0.2,
                "growth_exponent": 0.5,
            },
        }
        for i, (layer, head) in enumerate(heads)
    ]
    broad = [[entry["layer"], entry["head"]] for entry in judged if entry["state"] == "broad"]
    return {
        "schema": 2,
        "verdict": {
            "headline": f"{len(broad)} of {len(heads)} heads need many tokens.",
            "groups": [
                {
                    "name": "many-tokens",
                    "states": ["broad"],
                    "heads": len(broad),
                    "sentence": "These need many tokens.",
                }
            ],
            "trust": "Labels can be trusted.",
            "heads": [
                {"layer": i, "head": 3, "name": f"L{i}H3", "state": "broad", "kl": None, "residual_change": 0.1}
                | {"why": f"Why {th}.", "what": f"What {th}.", "when": f"When {th}."}
                for i, th in enumerate(("first", "second"))
            ],
            "ranked_by": "change of the residual stream",
            "next": {"command": "attnscope scan --verify", "python": "attnscope.diagnose()", "why": "To be sure."},
            "warnings": ["The windows are too short to tell."],
        },
        "length": 128,
        "windows": 2,
        "thresholds": Thresholds().as_json(),
        "heads": judged,
        "agreement": {"share": 0.92, "kappa": 0.86, "windows": 2},
        "findings": [
            {
                "rank": 1,
                "id": "broad-heads",
                "severity": "act",
                "title": "Some heads need many tokens",
                "sentence": "Their top 5% are not enough.",
                "evidence": {},
                "advice": "Do not sharpen them.",
                "heads": broad,
            }
        ],
        "skipped_heads": [],
        "verification": {
            "windows": 4,
            "length": 128,
            "predictions": [
                {
                    "state": "local",
                    "heads": 2,
                    "held": True,
                    "kl_state": 0.01,
                    "kl_random": 0.1,
                    "ratio": 10.0,
                    "ratio_low": 10.0,
                    "ratio_high": 10.0,
                    "ratio_windows": [10.0],
                    "sentence": "Local held.",
                },
                {
                    "state": "broad",
                    "heads": 2,
                    "held": False,
                    "kl_state": 0.1,
                    "kl_random": 0.09,
                    "ratio": 1.1,
                    "ratio_low": 1.1,
                    "ratio_high": 1.1,
                    "ratio_windows": [1.1],
                    "sentence": "Broad did not hold.",
                },
            ],
            "untested": ["constant"],
        },
    }


def withdrawn_findings(heads: list[tuple[int, int]]) -> dict[str, Any]:
    """Findings for some heads of which the label broad did not hold inside the model."""
    found = made_findings(heads)
    without = [entry for entry in found["heads"] if entry["state"] == "broad"]
    for entry in found["heads"]:
        entry["withdrawn"] = None
    for entry in without:
        entry |= {"state": None, "sureness": None, "edge": None, "state_share": None, "withdrawn": "broad"}
    sentence = f"{len(without)} heads without a label: broad held 1.1 times (0.9 to 1.3 over 4 windows)."
    withdrawn = [{"state": "broad", "heads": len(without), "sentence": sentence}]
    found["verdict"] |= {"headline": "No head needs many tokens.", "groups": [], "withdrawn": withdrawn}
    found["findings"] = []
    found["verification"]["windows"] = 4
    for prediction in found["verification"]["predictions"]:
        ratio = prediction["ratio"]
        prediction |= {"ratio_low": ratio - 0.2, "ratio_high": ratio + 0.2, "ratio_windows": [ratio - 0.2, ratio + 0.2]}
    return found
