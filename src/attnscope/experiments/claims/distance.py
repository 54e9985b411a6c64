"""Section 3.1: the claims on distance, expectation and critical N (Figure 2)."""

from __future__ import annotations

import numpy as np
import polars as pl

from attnscope.experiments.claims.evidence import UNIT, Claim, Evidence, Measure, Measurement
from attnscope.experiments.critical import LEVEL, bootstrap, critical_n
from attnscope.experiments.settings import FIXED_N

LINEAR = (0.9, 1.1)
EQUAL = (1 / 1.1, 1.1)
LATE_N, KNEE_N = 100, 20
SHARE = 8  # N = L / 8 stands for "N grows proportionally to L"


def criticals(e: Evidence, form: str, kind: str = "first") -> pl.DataFrame:
    """The critical N of each window, row and length; where there is none, the length itself stands for it."""
    return e.once(("critical", form, kind), lambda: _criticals(e, form, kind))


def _criticals(e: Evidence, form: str, kind: str) -> pl.DataFrame:
    lines = []
    for key, table in e.table("tests").filter(form=form).sort("n").group_by([*UNIT, "prefix"], maintain_order=True):
        found = getattr(critical_n(table["p"].to_numpy(), table["n"].to_numpy()), kind)
        length = int(table["length"][0])
        lines.append((*key, length, length if found is None else found, found is None))
    schema = {
        "window": pl.Int64,
        "row": pl.Int64,
        "prefix": pl.Int64,
        "length": pl.Int64,
        "n": pl.Int64,
        "none": pl.Boolean,
    }
    return pl.DataFrame(lines, schema=schema, orient="row").sort("prefix", *UNIT)


def _distance_exponent(e: Evidence) -> list[Measurement]:
    table = e.table("topn").filter(n=FIXED_N)
    return e.exponent("exponent of the median distance in L", table, pl.median("distance"), LINEAR)


def _expectation_exponent(column: str, name: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        table = e.table("drawn").filter(n=FIXED_N)
        return e.exponent(f"exponent of the median expectation in L, {name}", table, pl.median(column), LINEAR)

    return measured


def _ratio(column: str, other: str, n: int, name: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        table = e.longest("drawn").filter(n=n)
        return e.measure(name, table, (pl.col(column) / pl.col(other)).median(), EQUAL)

    return measured


def _safe(column: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        held = (pl.col("distance") <= pl.col(column) * (1 + 1e-9)).mean()
        return e.measure("share of rows below the bound", e.table("topn"), held, (1.0, 1.0))

    return measured


def _plateau(e: Evidence) -> list[Measurement]:
    median = {n: pl.col("distance").filter(pl.col("n") == n).median() for n in (KNEE_N, LATE_N)}
    ratio = median[LATE_N] / median[KNEE_N]
    return e.measure(f"median distance at N = {LATE_N} over that at {KNEE_N}", e.longest("topn"), ratio, EQUAL)


def _tightens(column: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        slack = pl.col(column) / pl.col("distance")
        late, early = (slack.filter(pl.col("n") == n).median() for n in (LATE_N, FIXED_N))
        name = f"bound / distance at N = {LATE_N} over that at {FIXED_N}"
        return e.measure(name, e.longest("topn"), late / early, (-np.inf, 0.95))

    return measured


def _critical_share(forms: tuple[str, ...]) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        found = []
        for form in forms:
            table = criticals(e, form)
            values = table.filter(pl.col("prefix") == pl.col("prefix").max())
            share = (values["n"] / values["length"]).to_numpy()
            found.append(Measurement(f"critical N / L, expectation {form}", bootstrap(share), (0.05, 0.07)))
        return found

    return measured


def _critical_exponent(forms: tuple[str, ...]) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        return [
            one
            for form in forms
            for one in e.exponent(
                f"exponent b of critical N = c L^b, expectation {form}",
                criticals(e, form),
                pl.first("n"),
                (-np.inf, 0.999),
            )
        ]

    return measured


def _uniform_printed(e: Evidence) -> list[Measurement]:
    table = e.longest("tests").filter(pl.col("n") == LATE_N, pl.col("form") == "printed")
    passed = (pl.col("p") >= LEVEL).mean()
    return e.measure(f"share of windows where KS accepts at N = {LATE_N}", table, passed, (0.5, 1.0))


def _uniform_corrected(e: Evidence) -> list[Measurement]:
    table = e.longest("drawn").filter(n=LATE_N)
    like_random = (pl.col("drawn_p_high") > LEVEL).mean()
    found = e.measure(f"share of heads whose top {LATE_N} rank among random sets", table, like_random, (0.5, 1.0))
    mass = (pl.col("top_mass") / (pl.col("n") / pl.col("length"))).median()
    name = f"weight of the top {LATE_N} over its uniform share N/L"
    return found + e.measure(name, e.longest("topn").filter(n=LATE_N), mass, (0.5, 2.0))


def _collapse(e: Evidence) -> list[Measurement]:
    table = e.table("tests").filter(pl.col("form") == "printed", pl.col("n") == pl.col("length") // SHARE)
    return e.exponent(f"exponent of the distance in L at N = L/{SHARE}", table, pl.first("distance"), (-np.inf, 0.0))


def _collapse_per_token(e: Evidence) -> list[Measurement]:
    table = e.table("tests").filter(pl.col("form") == "printed", pl.col("n") == pl.col("length") // SHARE)
    each = (pl.col("distance") / (pl.col("length") - pl.col("n"))).first()
    return e.exponent(f"exponent of the distance of a token in L at N = L/{SHARE}", table, each, (-np.inf, -0.1))


def _vanishing(accepted: tuple[float, float]) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        return e.exponent(
            "exponent of the median largest weight in L", e.table("rows"), pl.median("max_weight"), accepted
        )

    return measured


CLAIMS = [
    Claim(
        "vanishing-attention",
        "Section 1; section 4",
        "attention weights collapse toward 1/L; the peak value drops as the context grows",
        "the largest weight falls like 1/L: exponent -1.1 to -0.9; corrected: it falls at all, exponent below -0.05",
        _vanishing((-1.1, -0.9)),
        _vanishing((-np.inf, -0.05)),
        "the peak falls with L, at whatever rate",
    ),
    Claim(
        "distance-linear",
        "Section 3.1 (i), Fig. 2a",
        "for N << L the distance scales linearly with sequence length",
        "exponent of the median distance at N = 5 between 0.9 and 1.1",
        _distance_exponent,
    ),
    Claim(
        "expectation-linear",
        "Fig. 2a",
        "the expectation grows roughly linearly in L",
        "exponent of the median expectation at N = 5 between 0.9 and 1.1",
        _expectation_exponent("expected_printed", "as printed"),
        _expectation_exponent("drawn_mean", "of random sets"),
        "the expectation over random sets itself",
    ),
    Claim(
        "corollary-2i",
        "Section 3.1 (i)",
        "exactly as Corollary 2(i) predicts: E is about the sum of |alpha_i x_i|",
        "median over heads of E / sum |alpha_i x_i| at N = 5 within 10 % of 1",
        _ratio("expected_printed", "scaled_sum", FIXED_N, "printed main term / sum of |alpha x|"),
        _ratio("drawn_mean", "scaled_sum", FIXED_N, "expectation / sum of |alpha x|"),
        "the expectation over random sets itself",
    ),
    Claim(
        "bound-safe",
        "Fig. 2a",
        "the upper bound is safe",
        "every row below the bound",
        _safe("distance_bound_printed"),
        _safe("distance_upper"),
        "B3",
    ),
    Claim(
        "plateau-beyond-20",
        "Fig. 2b; section 4",
        "increasing N beyond 20 yields diminishing returns: the distance plateaus",
        "median distance changes by less than 10 % from N = 20 to 100",
        _plateau,
    ),
    Claim(
        "bound-tightens",
        "Section 3.1 (ii), Fig. 2b",
        "the bound tightens as N grows",
        "bound / distance falls by at least 5 % from N = 5 to 100",
        _tightens("distance_bound_printed"),
        _tightens("distance_upper"),
        "B3",
    ),
    Claim(
        "converge-at-100",
        "Section 3.1 (ii)",
        "as N approaches 100, the true and expected distances converge",
        "median over heads of distance / expectation at N = 100 within 10 % of 1",
        _ratio("distance", "expected_printed", LATE_N, "distance / printed expectation"),
        _ratio("distance", "drawn_mean", LATE_N, "distance / expectation"),
        "the expectation over random sets itself",
    ),
    Claim(
        "critical-share",
        "Section 3.1 (iii), Fig. 2c; section 4",
        "the critical N is about 0.06 L",
        "first N with KS p >= 0.01 over heads, over L at the longest L, between 0.05 and 0.07 (no such N counts as L)",
        _critical_share(("printed",)),
        _critical_share(("lower", "upper")),
        "against both ends of the proved range of E",
    ),
    Claim(
        "critical-sublinear",
        "Section 3.1 (iii)",
        "the critical N grows sub-linearly in L",
        "exponent b of critical N = c L^b below 1 (no such N counts as L)",
        _critical_exponent(("printed",)),
        _critical_exponent(("lower", "upper")),
        "against both ends of the proved range of E",
    ),
    Claim(
        "uniform-selection",
        "Abstract; section 3.1 (iii)",
        "beyond the critical N attention behaves as if weights were uniform",
        "printed: KS accepts at N = 100 in at least half of the windows; corrected: at least half of the heads have a "
        "top 100 that ranks among random sets (p > 0.01), and its weight is within a factor 2 of N/L",
        _uniform_printed,
        _uniform_corrected,
        "each head against random sets of its own, and its weight",
    ),
    Claim(
        "collapse-proportional",
        "Section 1; section 4; section 5",
        "the distance collapses once N grows proportionally to L",
        "exponent of the distance at N = L/8 in L at most 0; corrected: that of the distance of one token below -0.1",
        _collapse,
        _collapse_per_token,
        "the distance of one token",
    ),
]
