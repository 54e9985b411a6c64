"""Small rows on which a careless implementation gives wrong numbers.

Each is (name, logits[L], vectors[L, d]): cancellation, ties, degenerate geometry, saturation, extreme sizes.
L and d are distinct primes where nothing else fixes them, so that swapped axes cannot pass. Seeds are fixed.
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Row = tuple[str, Array, Array]


def rows() -> list[Row]:
    """All hostile rows, in a fixed order."""
    return [
        *_near_duplicates(),
        *_ties(),
        *_degenerate(),
        *_saturated(),
        *_scales(),
        *_shapes(),
        *_geometry(),
    ]


def _draw(seed: int, length: int, width: int) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=length), generator.normal(size=(length, width))


def _near_duplicates() -> list[Row]:
    """The three largest weights almost equal, on vectors that differ by a tiny relative amount."""
    found: list[Row] = []
    for seed, gap in enumerate((1e-4, 1e-7, 1e-10)):
        logits, vectors = _draw(100 + seed, 17, 11)
        generator = np.random.default_rng(200 + seed)
        for k in (3, 8, 12):
            logits[k] = 4 + gap * k
            vectors[k] = vectors[3] * (1 + gap * generator.normal(size=11))
        found.append((f"near-duplicate top vectors, {gap:.0e}", logits, vectors))
    logits, vectors = _draw(110, 13, 7)
    vectors = vectors[0] + 1e-6 * vectors
    found.append(("all vectors within 1e-6 of one", logits, vectors))
    return found


def _ties() -> list[Row]:
    logits, vectors = _draw(120, 13, 5)
    logits[[2, 5, 7, 11]] = 3.0
    vectors[[2, 5, 7, 11]] = vectors[2]
    duplicates = ("duplicates of equal weight across every cut up to 4", logits, vectors)

    logits, vectors = _draw(121, 11, 3)
    logits[:] = np.repeat([1.0, 0.0], [5, 6])
    two_levels = ("two levels of tied logits", logits, vectors)

    _, vectors = _draw(122, 13, 7)
    equal = ("all logits equal", np.full(13, 0.7), vectors)

    logits, vectors = _draw(123, 7, 3)
    vectors[:] = np.where(np.arange(7)[:, None] % 2 == 0, vectors[0], vectors[1])
    logits[:] = np.array([2.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    pairs = ("two vectors taking turns, weights in tied pairs", logits, vectors)
    return [duplicates, two_levels, equal, pairs]


def _degenerate() -> list[Row]:
    logits, _ = _draw(130, 11, 5)
    same = ("identical vectors everywhere", logits, np.tile([1.0, -2.0, 0.5, 0.25, 3.0], (11, 1)))
    uniform = ("identical vectors, equal logits", np.zeros(7), np.ones((7, 3)))

    logits, vectors = _draw(131, 13, 5)
    vectors[[1, 4, 9]] = 0
    some = ("three zero vectors", logits, vectors)

    logits, vectors = _draw(132, 11, 5)
    vectors[int(np.argmax(logits))] = 0
    logits[int(np.argmax(logits))] += 2
    top = ("the heaviest token has a zero vector", logits, vectors)

    logits, vectors = _draw(133, 7, 5)
    every = ("all vectors zero", logits, np.zeros_like(vectors))

    logits, vectors = _draw(134, 11, 3)
    directions = vectors[0] * np.exp2(np.arange(-5, 6))[:, None]
    parallel = ("one direction, lengths 1/32 to 32", logits, directions)
    return [same, uniform, some, top, every, parallel]


def _saturated() -> list[Row]:
    found: list[Row] = []
    for seed, gap in enumerate((50, 200, 800)):
        logits, vectors = _draw(140 + seed, 13, 7)
        logits[5] = gap
        found.append((f"one-hot, gap {gap}", logits, vectors))
    logits, vectors = _draw(145, 11, 7)
    logits[:] = 50 * np.arange(11.0)
    found.append(("a staircase of gaps of 50", logits, vectors))
    logits, vectors = _draw(146, 13, 5)
    logits[1:] = math.log(1e-20) + 1e-3 * logits[1:]
    logits[0] = 0
    found.append(("one weight of 1, the others about 1e-20", logits, vectors))
    logits, vectors = _draw(147, 7, 5)
    logits[[0, 4]] = 60.0
    found.append(("two tied winners, nothing else", logits, vectors))
    return found


def _scales() -> list[Row]:
    logits, vectors = _draw(150, 13, 7)
    spread = ("logits of size 1e4", 1e4 * logits, vectors)
    logits, vectors = _draw(151, 13, 7)
    shifted = ("ordinary logits around 1e4", 1e4 + logits, vectors)
    logits, vectors = _draw(152, 17, 11)
    offset = ("vectors around a mean of 100", logits, vectors + 100)
    logits, vectors = _draw(153, 17, 11)
    vectors[0] *= 1e6
    logits[0] = 3
    sink = ("sink with a huge vector", logits, vectors)
    logits, vectors = _draw(154, 17, 11)
    vectors[0] *= 1e-6
    logits[0] = 6
    quiet = ("sink with a tiny vector", logits, vectors)
    logits, vectors = _draw(155, 13, 5)
    vectors[8] = 1e4
    far = ("one light token far away", logits, vectors)
    logits, vectors = _draw(156, 11, 5)
    small = ("vectors of size 1e-30", logits, 1e-30 * vectors)
    return [spread, shifted, offset, sink, quiet, far, small]


def _shapes() -> list[Row]:
    sizes = {
        "L = 2": (2, 3),
        "L = 3": (3, 2),
        "L = 101, d = 1": (101, 1),
        "d far above L": (5, 67),
        "L = 53, d = 2": (53, 2),
    }
    return [(name, *_draw(160 + seed, *size)) for seed, (name, size) in enumerate(sizes.items())]


def _geometry() -> list[Row]:
    logits, _ = _draw(170, 13, 13)
    orthonormal = ("orthonormal vectors", logits, np.eye(13))

    logits, vectors = _draw(171, 11, 5)
    signs = np.where(np.arange(11) % 2 == 0, 1.0, -1.0)[:, None]
    alternating = ("one vector with alternating signs", logits, signs * vectors[0])

    logits, vectors = _draw(172, 14, 5)
    vectors[7:] = -vectors[:7]
    logits[7:] = logits[:7]
    antipodal = ("antipodal pairs of equal weight: the mean is zero", logits, vectors)

    logits, _ = _draw(173, 5, 4)
    centred = np.eye(5) - 0.2
    simplex = ("regular simplex, the widest separation there is", logits, centred)
    return [orthonormal, alternating, antipodal, simplex]
