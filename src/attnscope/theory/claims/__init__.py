"""The claims that `attnscope audit` tests, one file per subject: pairs of formulas, without verdicts.

To test a claim of your own, build a `Claim` the same way and pass it to `attnscope.theory.audit.audit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.errors import InputError
from attnscope.theory.audit import Claim
from attnscope.theory.claims import (
    appendix,
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
    *appendix.CLAIMS,
    *selectivity.CLAIMS,
    *normalizers.CLAIMS,
)


def find_claim(name: str, claims: Sequence[Claim[Any]] = CLAIMS) -> Claim[Any]:
    """The claim with id `name`."""
    for claim in claims:
        if claim.id == name:
            return claim
    known = ", ".join(claim.id for claim in claims)
    raise InputError(f"no claim is called {name!r}; the claims are {known}")
