"""Statistics over the heads of one row: the tests at every N (table `tests`) and on subsets of heads (`subsets`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from attnscope.experiments.profiles import PROFILE
from attnscope.studies.paper.ks_over_heads import critical_n, exact_p_values, largest_gaps, paired_test, subset_p_values

if TYPE_CHECKING:
    from jaxtyping import Float

    from attnscope.studies.paper.settings import Settings

COLUMNS = PROFILE
FORMS = {"printed": 1, "lower": 2, "upper": 3}  # the expectation compared with the distance: its index in COLUMNS
SUBSETS = (12, 36, 72, 144)
REPEATS = 5


class Sample(NamedTuple):
    """A row of a window, whose heads are the sample, for one kind of vectors with or without the first key."""

    vectors: str
    sink: str
    window: int
    row: int
    prefix: int


def tests(sample: Sample, profile: Float[np.ndarray, "heads columns n"], settings: Settings) -> dict[str, pl.DataFrame]:
    """KS and paired tests over heads of distance against expectation at every N, and the critical N of subsets."""
    heads, _, sizes = profile.shape
    n = np.arange(1, sizes + 1)
    distance = np.ascontiguousarray(profile[:, 0].T)
    tables, subsets = [], []
    for form, column in FORMS.items():
        expected = np.ascontiguousarray(profile[:, column].T)
        gaps = largest_gaps(distance, expected)
        p = exact_p_values(heads)[gaps]
        paired = paired_test(distance, expected, settings.seed)
        tables.append(
            pl.DataFrame(
                sample._asdict()
                | {"form": form, "heads": heads, "length": sizes + 1, "n": n}
                | {"distance": np.median(distance, 1), "expected": np.median(expected, 1)}
                | {"gap": gaps / heads, "p": p, "log_ratio": paired.mean, "log_ratio_deviation": paired.deviation}
                | {"p_difference": paired.p_difference, "p_equivalence": paired.p_equivalence}
            )
        )
        if sample.prefix == settings.longest:
            subsets.append(_subsets(sample, form, distance, expected, p, n, settings.seed))
    return {"tests": pl.concat(tables)} | ({"subsets": pl.concat(subsets)} if subsets else {})


def _subsets(
    sample: Sample, form: str, distance: np.ndarray, expected: np.ndarray, p: np.ndarray, n: np.ndarray, seed: int
) -> pl.DataFrame:
    """The critical N of random subsets of the heads, and of all heads."""
    heads = distance.shape[1]
    by_size = {size: subset_p_values(distance, expected, size, REPEATS, seed) for size in SUBSETS if size < heads}
    by_size[heads] = [p]
    lines = [
        {"form": form, "heads": size, "repeat": k} | critical_n(one, n)._asdict()
        for size, repeats in by_size.items()
        for k, one in enumerate(repeats)
    ]
    schema = {"form": pl.String, "heads": pl.Int64, "repeat": pl.Int64, "first": pl.Int64, "persistent": pl.Int64}
    keys = [pl.lit(value).alias(name) for name, value in sample._asdict().items()]
    return pl.DataFrame(lines, schema=schema).select(*keys, pl.all())
