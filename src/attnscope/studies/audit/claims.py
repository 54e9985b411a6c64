"""The claims that `attnscope audit` tests, one file per subject: pairs of formulas, without verdicts.

To test a claim of your own, build a `Claim` the same way and pass it to `attnscope.studies.audit.audit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.errors import InputError
from attnscope.studies.audit import Claim
from attnscope.studies.audit import (
    claims_appendix as appendix,
)
from attnscope.studies.audit import (
    claims_distance as distance,
)
from attnscope.studies.audit import (
    claims_distance as expectation,
)
from attnscope.studies.audit import (
    claims_geometry as geometry,
)
from attnscope.studies.audit import (
    claims_geometry as heads,
)
from attnscope.studies.audit import (
    claims_gradient as gradient,
)
from attnscope.studies.audit import (
    claims_normalizers as normalizers,
)
from attnscope.studies.audit import (
    claims_normalizers as selectivity,
)
from attnscope.studies.audit import (
    claims_normalizers as vanishing,
)

CLAIMS: tuple[Claim[Any], ...] = (
    *vanishing.VANISHING_CLAIMS,
    *distance.DISTANCE_CLAIMS,
    *expectation.EXPECTATION_CLAIMS,
    *geometry.GEOMETRY_CLAIMS,
    *gradient.CLAIMS,
    *heads.HEAD_CLAIMS,
    *appendix.CLAIMS,
    *selectivity.SELECTIVITY_CLAIMS,
    *normalizers.NORMALIZER_CLAIMS,
)


def find_claim(name: str, claims: Sequence[Claim[Any]] = CLAIMS) -> Claim[Any]:
    """The claim with id `name`."""
    for claim in claims:
        if claim.id == name:
            return claim
    known = ", ".join(claim.id for claim in claims)
    raise InputError(f"no claim is called {name!r}; the claims are {known}")
