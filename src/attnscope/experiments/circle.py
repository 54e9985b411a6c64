"""Data of Figure 1: a row's tokens projected onto the plane of their two largest singular values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from attnscope.measure.specification import unit
from attnscope.theory.configuration import Configuration, top_sets
from attnscope.theory.geometry import ball

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class Circle(NamedTuple):
    """Tokens on the unit circle, their weights, and the ball around the context in the same plane."""

    points: Float[Tensor, "keys 2"]
    weights: Float[Tensor, " keys"]
    selected: Bool[Tensor, " keys"]
    inside: Bool[Tensor, " keys"]
    context: Float[Tensor, " 2"]
    radius: float
    separability: float


def circle(weights: Float[Tensor, " keys"], vectors: Float[Tensor, "keys dims"], n: int) -> Circle:
    """The top set of size `n` after projecting the vectors onto a plane and scaling them to the unit circle.

    The weights do not change. The separability is that of the projected vectors and differs from the original's.
    """
    scaled = unit(vectors)
    _, _, directions = torch.linalg.svd(scaled, full_matrices=False)
    points = unit(scaled @ directions[:2].T)
    visible = torch.ones_like(weights, dtype=torch.bool)[None]
    selected = top_sets(weights[None], visible, [n])
    configuration = Configuration(weights[None], points, visible, selected)
    context_ball = ball(configuration)
    return Circle(
        points,
        weights,
        selected[0, 0],
        context_ball.inside[0, 0],
        configuration.context[0, 0],
        float(context_ball.radius),
        float(context_ball.separability),
    )
