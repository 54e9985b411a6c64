"""Every measured column against the slow oracle."""

from __future__ import annotations

import math
from typing import Any

import adversarial
import definitions
import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings, strategies as st

from attnscope.columns import PAPER_BOUNDS, ROW_NAMES, SET_NAMES
from attnscope.measure import columns, specification as topn
from attnscope.measure._kernels import TopSets, group_at, prepare_groups
from attnscope.measure.pairs import pair_distances
from attnscope.measure.specification import Rows, row_columns, softmax_weights, topn_columns

# Relative to the column; a value that should be zero is compared with the size of what cancelled in it.
RELATIVE = 1e-9
# Scaling a vector to the sphere rounds it: differences of near-duplicates 1e-10 apart keep six digits.
NEAR_DUPLICATES = 1e-6
ON_SPHERE = {"radius", "delta", "separability_lower_printed", "separability_upper_printed"}
ADVERSARIAL = adversarial.rows()


def one_row(logits: np.ndarray, vectors: np.ndarray) -> tuple[Rows, torch.Tensor]:
    z = torch.from_numpy(logits).double()[None, None]
    rows = Rows(
        0, (len(logits) - 1,), z, torch.ones_like(z, dtype=torch.bool), torch.from_numpy(vectors).double()[None]
    )
    return rows, softmax_weights(rows)


def counts(length: int) -> list[int]:
    return [n for n in (1, 2, 3, 5, 7, 13, 50) if n < length]


def assert_row(measured: dict[str, torch.Tensor], place: tuple[int, ...], logits: np.ndarray) -> None:
    for name, expected in oracle.row_columns(logits).items():
        value = float(measured[name][place])
        if expected is None:
            assert math.isnan(value)
        else:
            assert value == pytest.approx(expected, rel=RELATIVE, abs=1e-300), name


def assert_set(
    measured: dict[str, torch.Tensor],
    place: tuple[int, ...],
    weights: np.ndarray,
    vectors: np.ndarray,
    n: int,
) -> None:
    expected = oracle.topn_columns(weights, vectors, n)
    doubtful = oracle.undecided(weights, vectors, n)
    scale = float(np.linalg.norm(vectors, axis=1).max())
    for name, right in expected.items():
        if name == "n" or name in doubtful:
            continue
        value = float(measured[name][place])
        if name == "epsilon_printed" and math.isinf(right):
            assert math.isinf(value), name
            continue
        if name == "epsilon_printed" and not (math.isfinite(right) and math.isfinite(value)):
            assert min(right, value) > 1e9 * scale, name  # a zero denominator, or one of rounding
            continue
        relative = NEAR_DUPLICATES if name in ON_SPHERE else RELATIVE
        absolute = 1e-14 * (1 if name in ON_SPHERE else scale)
        assert value == pytest.approx(right, rel=relative, abs=absolute), name


def test_every_declared_column_is_in_both_oracles() -> None:
    """The oracles name what is compared: a column that one of them lacks would be compared with nothing."""
    logits, vectors = np.array([0.5, -1.0, 2.0, 0.0, 1.5]), np.eye(5)
    weights = oracle.weights(logits)
    for rows in (oracle.row_columns(logits), definitions.of_row(logits, weights)):
        assert set(rows) == {"length", *ROW_NAMES}
    for sets in (oracle.topn_columns(weights, vectors, 2), definitions.of_set(weights, vectors, 2)[0]):
        assert set(sets) == {"n", *SET_NAMES}


@pytest.mark.parametrize(("name", "logits", "vectors"), ADVERSARIAL, ids=[name for name, *_ in ADVERSARIAL])
def test_adversarial_row(name: str, logits: np.ndarray, vectors: np.ndarray) -> None:
    rows, weights = one_row(logits, vectors)
    assert_row(row_columns(rows, weights), (0, 0), logits)
    n = counts(len(logits))
    measured = topn_columns(rows, weights, n)
    for index, size in enumerate(n):
        assert_set(measured, (0, 0, index), weights[0, 0].numpy(), vectors, size)


def masked_rows() -> Rows:
    """Two groups of three heads, five rows of a prefix, a window, scattered keys, and all keys."""
    generator = torch.Generator().manual_seed(7)
    logits = 2 * torch.randn(6, 5, 23, generator=generator, dtype=torch.float64)
    vectors = torch.randn(2, 23, 7, generator=generator, dtype=torch.float64)
    visible = torch.zeros(6, 5, 23, dtype=torch.bool)
    visible[:, 0, :11] = True
    visible[:, 1, 6:19] = True
    visible[:, 2] = torch.rand(23, generator=generator) < 0.6
    visible[:, 3] = True
    visible[:, 4, :1] = True
    return Rows(0, (10, 18, 20, 21, 22), logits, visible, vectors)


def test_masks_and_shared_vectors() -> None:
    rows = masked_rows()
    weights = softmax_weights(rows)
    per_row, n = row_columns(rows, weights), [1, 3, 5]
    per_set = topn_columns(rows, weights, n)
    for head in range(6):
        for row in range(5):
            seen = rows.visible[head, row]
            logits, vectors = rows.logits[head, row][seen].numpy(), rows.vectors[head // 3][seen].numpy()
            assert_row(per_row, (head, row), logits)
            for index, size in enumerate(n):
                if size < len(logits):
                    assert_set(per_set, (head, row, index), weights[head, row][seen].numpy(), vectors, size)


def test_row_with_nothing_visible_is_zero_and_spoils_no_other() -> None:
    """Fault 1."""
    rows = masked_rows()
    expected = topn_columns(rows, softmax_weights(rows), [1, 3])
    rows.visible[:, 4] = False
    weights = softmax_weights(rows)
    assert (weights[:, 4] == 0).all()
    measured = topn_columns(rows, weights, [1, 3])
    for name, values in measured.items():
        assert torch.equal(values[:, :4], expected[name][:, :4]), name


@pytest.mark.parametrize("way", [columns, lambda *given: (None, topn_columns(*given))], ids=["compiled", "torch"])
def test_rows_with_a_negative_weight_have_no_sets_and_spoil_no_other(way: Any) -> None:
    rows = masked_rows()
    weights = softmax_weights(rows)
    expected = way(rows, weights, [1, 3])[1]
    weights[1, 2, rows.visible[1, 2].nonzero()[5, 0]] = -1e-9
    weights[4, 0, :11] *= -1
    weights[5, 1, 0] = -0.0  # not visible, and not negative
    weights[5, 3, 4] = -0.0
    undefined = torch.zeros(6, 5, dtype=torch.bool)
    undefined[1, 2] = undefined[4, 0] = True
    zero = weights.clone()
    zero[5, 3, 4] = 0.0
    at_zero = way(rows, zero, [1, 3])[1]
    for name, values in way(rows, weights, [1, 3])[1].items():
        assert values[undefined].isnan().all(), name
        others = ~undefined
        others[:, 4] = others[5, 3] = False  # a row of one key has no sets at all
        assert torch.equal(values[others], expected[name][others]), name
        assert torch.equal(values[5, 3], at_zero[name][5, 3]), name


def test_slices_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 15."""
    rows = masked_rows()
    weights = softmax_weights(rows)
    whole = topn_columns(rows, weights, [1, 5])
    monkeypatch.setattr(topn, "SLICE_ELEMENTS", 1)
    for name, values in topn_columns(rows, weights, [1, 5]).items():
        torch.testing.assert_close(values, whole[name], rtol=1e-12, atol=1e-14, equal_nan=True, msg=name)


def test_sink_logit_takes_weight() -> None:
    rows, _ = one_row(np.array([0.3, -1.0, 2.0]), np.eye(3))
    with_sink = Rows(0, (2,), rows.logits, rows.visible, rows.vectors, torch.tensor([1.5], dtype=torch.float64))
    weights = softmax_weights(with_sink)
    total = sum(math.exp(z) for z in (0.3, -1.0, 2.0, 1.5))
    assert weights[0, 0].tolist() == pytest.approx([math.exp(z) / total for z in (0.3, -1.0, 2.0)])
    alpha = weights[0, 0].numpy()
    jacobian = np.diag(alpha) - np.outer(alpha, alpha)
    measured = row_columns(with_sink, weights)
    assert float(measured["jacobian_norm"]) == pytest.approx(np.linalg.norm(jacobian, 2), rel=1e-12)
    assert float(measured["jacobian_norm"]) <= float(measured["jacobian_bound"])


finite = st.floats(-30, 30, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(finite, min_size=3, max_size=19), st.integers(1, 5), st.integers(0, 2**31), st.booleans())
def test_corrected_bounds_are_never_crossed(logits: list[float], dims: int, seed: int, repeated: bool) -> None:
    vectors = np.random.default_rng(seed).normal(size=(len(logits), dims))
    if repeated:
        vectors[1::2] = vectors[0]
    rows, weights = one_row(np.array(logits), vectors)
    n = list(range(1, len(logits)))
    m = {name: values[0, 0] for name, values in topn_columns(rows, weights, n).items()}
    slack = 1e-12 * (1 + m["distance"])
    assert (m["distance_lower"] <= m["distance"] + slack).all()
    assert (m["distance"] <= m["distance_upper"] + slack).all()
    assert (m["distance"] <= m["distance_bound_printed"] + slack).all()  # true for top sets
    assert (m["expected_lower"] <= m["expected_upper"] + slack).all()
    assert (m["separability_lower"] <= m["separability"]).all()
    assert (m["separability"] <= m["separability_upper"]).all()
    r = {name: float(values[0, 0]) for name, values in row_columns(rows, weights).items()}
    assert r["jacobian_norm"] <= r["jacobian_bound"] * (1 + 1e-12)
    assert 1 - 1e-12 <= r["participation"] <= len(logits) * (1 + 1e-12)


@pytest.mark.parametrize("length", [4, 7])
def test_expectation_lies_between_its_bounds(length: int) -> None:
    generator = np.random.default_rng(length)
    for _ in range(5):
        rows, weights = one_row(3 * generator.normal(size=length), generator.normal(size=(length, 2)))
        n = list(range(1, length))
        measured = topn_columns(rows, weights, n)
        for index, size in enumerate(n):
            exact = oracle.expected_exhaustive(weights[0, 0].numpy(), rows.vectors[0].numpy(), size)
            assert float(measured["expected_lower"][0, 0, index]) <= exact * (1 + 1e-12)
            assert exact <= float(measured["expected_upper"][0, 0, index]) * (1 + 1e-12)


def causal_rows(keys: int, offset: float = 0.0) -> Rows:
    """Every row of a causal layer, two groups of two heads: many rows, so d1 comes from the list of pairs."""
    generator = torch.Generator().manual_seed(keys)
    logits = 2 * torch.randn(4, keys, keys, generator=generator, dtype=torch.float64)
    vectors = offset + torch.randn(2, keys, 5, generator=generator, dtype=torch.float64)
    visible = torch.ones(keys, keys, dtype=torch.bool).tril().expand(4, -1, -1)
    return Rows(0, tuple(range(keys)), logits, visible, vectors)


def test_compiled_way_on_long_sharp_rows() -> None:
    """A heavy first token of small length, weights from 1 to 1e-20: terms that cancel."""
    generator = torch.Generator().manual_seed(11)
    keys, positions = 1500, (700, 1100, 1499)
    vectors = torch.randn(2, keys, 24, generator=generator)
    vectors[:, 0] *= 0.05
    logits = 8 * torch.randn(4, 3, keys, generator=generator, dtype=torch.float64)
    logits[:, :, 0] += 20
    visible = (torch.arange(keys) <= torch.tensor(positions)[:, None]).expand(4, -1, -1)
    rows, n = Rows(0, positions, logits, visible, vectors), [1, 2, 30, 200]
    weights = softmax_weights(rows)
    _, per_set = columns(rows, weights, n)
    for name, expected in topn_columns(rows, weights, n).items():
        torch.testing.assert_close(per_set[name], expected, rtol=RELATIVE, atol=1e-12, msg=name)


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_compiled_way_equals_its_specification_on_all_rows(offset: float) -> None:
    rows, n = causal_rows(151, offset), [1, 5, 20, 100]
    weights = softmax_weights(rows)
    per_row, per_set = columns(rows, weights, n)
    for name, expected in row_columns(rows, weights).items():
        torch.testing.assert_close(per_row[name], expected, rtol=RELATIVE, atol=0, equal_nan=True, msg=name)
    valid = torch.tensor(n) < per_row["length"].unsqueeze(-1)
    for name, expected in topn_columns(rows, weights, n).items():
        torch.testing.assert_close(per_set[name][valid], expected[valid], rtol=RELATIVE, atol=1e-12, msg=name)


def test_many_sets_on_rows_far_apart() -> None:
    """More sets than a byte can number."""
    every, positions, n = causal_rows(170), (40, 41, 42, 128, 129, 169), list(range(1, 151))
    rows = Rows(0, positions, every.logits[:, positions], every.visible[:, positions], every.vectors)
    weights = softmax_weights(rows)
    per_row, per_set = columns(rows, weights, n)
    valid = torch.tensor(n) < per_row["length"].unsqueeze(-1)
    for name, expected in topn_columns(rows, weights, n).items():
        torch.testing.assert_close(per_set[name][valid], expected[valid], rtol=RELATIVE, atol=1e-12, msg=name)


@pytest.mark.parametrize("size", [1e-20, 1e-35, 1e-45, 1e-100, 1e-170])
@pytest.mark.parametrize("place", [0, 3])
def test_a_vector_too_short_for_float32_still_has_a_direction(size: float, place: int) -> None:
    """The token with the largest weight, and another one; on the unit sphere they count like all others."""
    random = np.random.default_rng(1)
    logits, vectors = random.normal(size=120), random.normal(size=(120, 16))
    logits[0] += 4
    vectors[place] *= size
    rows, weights = one_row(logits, vectors)
    _, per_set = columns(rows, weights, [1, 5, 20])
    for index, n in enumerate((1, 5, 20)):
        assert_set(per_set, (0, 0, index), weights[0, 0].numpy(), vectors, n)


def test_delta_of_the_rows_that_may_have_one_is_that_of_all_rows() -> None:
    rows = causal_rows(90)
    weights = softmax_weights(rows)
    every, some = columns(rows, weights, [3])[1]["delta"], columns(rows, weights, [3], delta_max_length=37)[1]["delta"]
    assert torch.equal(every[:, 4:37], some[:, 4:37])
    assert some[:, 37:].isnan().all()


def clustered(keys: int, dims: int, apart: float) -> np.ndarray:
    """Vectors of many lengths whose nearest pair, in direction, comes closer and closer; a few of them are zero."""
    random = np.random.default_rng(dims)
    vectors = random.normal(size=(keys, dims))
    for late in range(40, keys, 29):
        early = int(random.integers(late))
        vectors[late] = vectors[early] + apart ** (late / keys) * random.normal(size=dims)
    vectors *= 10.0 ** random.integers(-6, 6, size=(keys, 1))
    vectors[[keys // 2, keys - 3]] = 0
    return vectors


def assert_prefix_gaps(vectors: np.ndarray) -> None:
    """Against all gaps, formed one by one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(lengths > 0, lengths, 1)
    gaps = np.linalg.norm(units[:, None] - units[None], axis=-1)
    nearest = np.where(np.tril(np.ones_like(gaps), -1) > 0, gaps, np.inf).min(1)
    expected = np.minimum.accumulate(nearest)
    assert prefix_deltas(vectors) == pytest.approx(expected[1:], rel=1e-6, abs=1e-14)


def prefix_deltas(vectors: np.ndarray) -> np.ndarray:
    """The column delta of rows that see 2, 3, ... keys."""
    keys = len(vectors)
    visible = torch.ones(1, keys, keys, dtype=torch.bool).tril()
    rows = Rows(0, tuple(range(keys)), torch.zeros(1, keys, keys).double(), visible, torch.from_numpy(vectors)[None])
    return columns(rows, softmax_weights(rows), [1])[1]["delta"][0, 1:, 0].numpy()


@pytest.mark.parametrize("dims", [2, 3, 17, 64])
@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-5, 1e-9, 0.0])
def test_delta_of_every_prefix(dims: int, apart: float) -> None:
    """Fault 13. Over several blocks, also where products cannot tell pairs apart."""
    assert_prefix_gaps(clustered(203, dims, apart))


@pytest.mark.parametrize("zeros", [[0], [1], [0, 1], [47], [48], [0, 99], [30, 33], [20, 98]])
def test_delta_where_zeros_are_nearer_than_anything_else(zeros: list[int]) -> None:
    """Axes are sqrt(2) apart, a zero is at 1 from all of them, and no product tells so."""
    vectors = np.eye(100)
    vectors[zeros] = 0
    assert_prefix_gaps(vectors)


@pytest.mark.parametrize("zeros", [[0], [1], [5], [0, 99], [97]])
def test_delta_where_a_zero_is_nearer_than_vectors_at_sharp_angles(zeros: list[int]) -> None:
    """Pairs are sqrt(1.5) apart, a zero is at 1 from all of them."""
    vectors = np.sqrt(0.75) * np.eye(100, 101, 1)
    vectors[:, 0] = 0.5
    vectors[zeros] = 0
    assert_prefix_gaps(vectors)


@pytest.mark.parametrize("dims", [2, 7, 64])
@pytest.mark.parametrize("top_n", [[100], [5, 100], [1, 5, 10, 20, 100]])
@pytest.mark.parametrize("farther", [1e-2, 1e-3, 1e-5, 1e-9])
def test_a_late_member_that_is_farther_by_little_is_found(dims: int, top_n: list[int], farther: float) -> None:
    """One of the first members is far from a key outside the set, one of the last a little farther from another."""
    random = np.random.default_rng(dims)
    vectors = 0.1 * random.normal(size=(300, dims)) / np.sqrt(dims)
    first, second = np.eye(dims)[:2]
    vectors[[2, 203]] = first, -first
    vectors[[91, 204]] = second * (1 + farther), -second * (1 + farther)
    rows, weights = one_row(-0.01 * np.arange(300), vectors)
    found = columns(rows, weights, top_n)[1]["distance_bound_printed"][0, 0, -1]
    a = weights[0, 0].numpy()
    mass, norms = a[:100].sum(), np.linalg.norm(vectors[:100], axis=1)
    d1 = np.linalg.norm(vectors[:100, None] - vectors[None, 100:], axis=-1).max()
    assert d1 == pytest.approx(2 + 2 * farther, rel=1e-12)
    assert float(found) == pytest.approx((1 - mass) * d1 + norms.max() * (mass * 200 - (1 - mass)), rel=1e-12)


@pytest.mark.parametrize("dims", [1, 3, 17, 64])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e7])
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_farthest_distance_between_members_and_others(dims: int, offset: float, spread: float) -> None:
    """d1 of random sets in two blocks, rows in any order, against all distances: lengths alike or not, a cluster."""
    random = np.random.default_rng(dims)
    vectors = offset + random.normal(size=(300, dims)) * np.exp(spread * random.normal(size=(300, 1)))
    group = group_at(prepare_groups(vectors[None]), 0)
    ends = np.array([3, 9, 40, 128, 129, 200, 257, 300])
    members = np.stack([random.permutation(end)[np.arange(100) % end] for end in ends])
    counts = np.array([[min(1, end - 1), min(20, end - 1), min(100, end - 1)] for end in ends])
    delta, d1 = np.empty(8), np.empty(counts.shape)
    for rows in (np.array([4, 0, 2, 1, 3]), np.arange(3, 8)):
        pair_distances(group, rows, ends, TopSets(members, counts, np.ones(8)), delta, d1)
    for row, end in enumerate(ends):
        for s, count in enumerate(counts[row]):
            inside = np.isin(np.arange(end), members[row, :count])
            distances = np.linalg.norm(vectors[:end][inside][:, None] - vectors[:end][~inside][None], axis=-1)
            assert d1[row, s] * group.scale == pytest.approx(distances.max(), rel=1e-10)


@pytest.mark.parametrize(("name", "logits", "vectors"), ADVERSARIAL, ids=[name for name, *_ in ADVERSARIAL])
def test_adversarial_row_by_the_entry_point(name: str, logits: np.ndarray, vectors: np.ndarray) -> None:
    """Faults 12 and 13."""
    rows, weights = one_row(logits, vectors)
    n = counts(len(logits))
    per_row, per_set = columns(rows, weights, n)
    assert_row(per_row, (0, 0), logits)
    for index, size in enumerate(n):
        assert_set(per_set, (0, 0, index), weights[0, 0].numpy(), vectors, size)


def test_long_rows_have_no_delta() -> None:
    rows = causal_rows(31)
    _, per_set = columns(rows, softmax_weights(rows), [3], delta_max_length=20)
    missing = per_set["delta"][:, 4:, 0].isnan()
    assert missing[:, 16:].all()
    assert not missing[:, :16].any()


@pytest.mark.parametrize("way", [columns, lambda *given: (None, topn_columns(*given))], ids=["compiled", "torch"])
def test_without_the_papers_bounds_their_columns_alone_are_missing(way: Any) -> None:
    rows = masked_rows()
    weights = softmax_weights(rows)
    every, some = way(rows, weights, [1, 3])[1], way(rows, weights, [1, 3], 0)[1]
    for name, values in every.items():
        if name in PAPER_BOUNDS:
            assert some[name].isnan().all(), name
        else:
            torch.testing.assert_close(some[name], values, rtol=1e-12, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("dims", [1, 2, 3, 7, 8, 64])
def test_equal_vectors_have_no_gap(dims: int) -> None:
    vectors = np.random.default_rng(dims).normal(size=(20, dims))
    vectors[13] = vectors[5]
    assert prefix_deltas(vectors)[-1] == 0


@pytest.mark.parametrize("keys", [16, 200])
@pytest.mark.parametrize("exponent", [-100, -158, -200, -290])
def test_small_weights_give_small_distances(keys: int, exponent: int) -> None:
    """As beside a sink that takes nearly all: what is linear in the weights stays so, however small they are."""
    vectors = np.random.default_rng(keys).normal(size=(keys, 5))
    rows, weights = one_row(np.linspace(0, 3, keys), vectors)
    many = Rows(
        0, tuple(range(keys)), rows.logits.expand(1, keys, keys), rows.visible.expand(1, keys, keys), rows.vectors
    )
    every = weights.expand(1, keys, keys).contiguous()
    tiny = 10.0**exponent
    n = [1, 2, 3, 4]
    for shown, own in ((rows, weights), (many, every)):
        plain, small = columns(shown, own, n)[1], columns(shown, own * tiny, n)[1]
        for name in (
            "distance",
            "distance_lower",
            "distance_upper",
            "expected_lower",
            "expected_upper",
            "epsilon_printed",
        ):
            assert (small[name] / tiny).flatten().numpy() == pytest.approx(plain[name].flatten().numpy(), rel=RELATIVE)
        order = np.argsort(-own[0, 0].numpy())
        for index, size in enumerate(n):
            gaps = np.linalg.norm(vectors[order[:size], None] - vectors[None, order[size:]], axis=-1)
            norms = np.linalg.norm(vectors[order[:size]], axis=-1)
            bound = small["distance_bound_printed"][..., index].flatten().numpy()
            assert bound == pytest.approx(gaps.max() - norms.max(), rel=1e-9)


@pytest.mark.parametrize("length", [3, 7, 29, 150, 400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-30])
def test_epsilon_of_identical_vectors_with_equal_weights_is_infinite(
    length: int, dtype: torch.dtype, scale: float
) -> None:
    """Fault 12: mu_i = (1 + p) y - p L y = 0 for N = 1; what rounding leaves of it is no denominator."""
    vectors = np.tile(np.array([0.3, -1.7, 0.11]) * scale, (length, 1))
    rows, weights = one_row(np.zeros(length), vectors)
    rows = Rows(rows.layer, rows.positions, rows.logits, rows.visible, rows.vectors.to(dtype))
    assert math.isinf(oracle.topn_columns(weights[0, 0].numpy(), vectors, 1)["epsilon_printed"])
    assert torch.isinf(columns(rows, weights, [1])[1]["epsilon_printed"]).all()
    assert torch.isinf(topn_columns(rows, weights, [1])["epsilon_printed"]).all()


@pytest.mark.parametrize("ratio", [1e-22, 1e-30, 1e-60])
def test_bounds_of_rows_far_smaller_than_a_later_key(ratio: float) -> None:
    """A row's vectors are brought near size 1 with those of all keys: squares of what is left vanish in float32."""
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(1, 1, 24, generator=generator, dtype=torch.float64)
    logits[0, 0, 0] = 5  # in every top set, and ever farther from the next key
    vectors = torch.arange(24.0, dtype=torch.float64)[None, :, None] * torch.rand(5, generator=generator) + 1
    visible = torch.zeros(1, 1, 24, dtype=torch.bool)
    visible[..., :16] = True
    scaled = vectors.clone()
    scaled[:, :16] *= ratio
    weights = softmax_weights(Rows(0, (15,), logits, visible, vectors))
    small = columns(Rows(0, (15,), logits, visible, scaled), weights, [1, 5])[1]["distance_bound_printed"]
    for index, n in enumerate((1, 5)):
        expected = oracle.topn_columns(weights[0, 0, :16].numpy(), vectors[0, :16].numpy(), n)["distance_bound_printed"]
        assert float(small[0, 0, index]) / ratio == pytest.approx(expected, rel=RELATIVE)
