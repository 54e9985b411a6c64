"""The claims that `attnscope audit` tries, one file a subject. Each is a pair of formulas, none has a verdict.

To have your own tried, build a `Claim` the same way and hand it to `attnscope.theory.audit.audit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.errors import InputError
from attnscope.theory.audit import Claim
from attnscope.theory.claims import (
    distance,
    expectation,
    geometry,
    gradient,
    heads,
    normalizers,
    selectivity,
    vanishing,
)

CLAIMS: tuple[Claim[Any], ...] = (
    *vanishing.CLAIMS,
    *distance.CLAIMS,
    *expectation.CLAIMS,
    *geometry.CLAIMS,
    *gradient.CLAIMS,
    *heads.CLAIMS,
    *selectivity.CLAIMS,
    *normalizers.CLAIMS,
)


def find_claim(name: str, claims: Sequence[Claim[Any]] = CLAIMS) -> Claim[Any]:
    """The claim with that id."""
    for claim in claims:
        if claim.id == name:
            return claim
    known = ", ".join(claim.id for claim in claims)
    raise InputError(f"no claim is called {name!r}; the claims are {known}")
