"""Audit of claims: evaluate each on many configurations, search for violations, and derive a verdict.

    >>> from attnscope.theory import distance
    >>> from attnscope.studies.audit import TOP_SETS, Claim, Form, at_most, audit
    >>> def bound(c):                                  # c: attnscope.theory.configuration.Configuration
    ...     return (c.length - c.count) * c.context.norm(dim=-1)
    >>> mine = Claim("mine", "my notebook", TOP_SETS, Form("d~ <= (L-N)|s|", at_most(distance.distance, bound)))
    >>> audit([mine]).claims[0].verdict
    'fails'

No verdict is stored anywhere: a claim is a pair of formulas, and flipping one changes what the audit reports.

| file | contents |
|---|---|
| `contract` | the parts of a claim: a space of configurations, and inequalities; random and adversarial numbers |
| `rows`, `logits` | spaces of rows with vectors and sets, and of rows of logits |
| `distance`, `geometry`, `gradient`, `normalizers`, `appendix` | the claims by subject, with the spaces of one alone |
| `referee` | `audit`: draw, search near the worst, shrink, judge |
| `report` | `AuditReport` |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._process import lazy
from attnscope.store.kinds import Description, Kind, Verb

if TYPE_CHECKING:
    from attnscope.studies.audit.contract import (
        Case as Case,
        Claim as Claim,
        Condition as Condition,
        Form as Form,
        Inequality as Inequality,
        Space as Space,
        about as about,
        at_least as at_least,
        at_most as at_most,
        between as between,
    )
    from attnscope.studies.audit.referee import audit as audit
    from attnscope.studies.audit.report import (
        AuditReport as AuditReport,
        ClaimReport as ClaimReport,
        Counterexample as Counterexample,
        Trial as Trial,
        Verdict as Verdict,
    )

SPACES = {
    "appendix": ("BOUNDED_VARIABLES", "CAUSAL_ROWS", "P_VALUES", "RANDOM_DIRECTIONS"),
    "geometry": ("BALLS", "INDEPENDENT_ROWS"),
    "logits": ("EQUISPACED_LOGITS", "QUERIES", "SEPARABLE_LOGITS", "SOFTMAX_LOGITS", "STEPS", "TWO_LOGITS"),
    "rows": (
        *("ANY_SETS", "COVERED_TOKENS", "FEW_OF_MANY", "GROWING_ROWS", "RANDOM_SETS", "TOKEN_CHANCES", "TOP_SETS"),
        "UNIT_TOP_SETS",
    ),
}
"""Where each space is. Sizes are small primes, with a few longer rows where a statement needs length to fail."""

_PUBLIC = {
    "contract": (
        *("Case", "Claim", "Condition", "Form", "Inequality", "Space", "about", "at_least", "at_most", "between"),
    ),
    "referee": ("audit",),
    "report": ("AuditReport", "ClaimReport", "Counterexample", "Trial", "Verdict"),
}
_NAMES = {name: f"{__name__}.{file}" for file, names in (_PUBLIC | SPACES).items() for name in names}


def describe(folder: Path, content: Mapping[str, Any]) -> Description:
    """One audit as a line of a list."""
    counts = Counter(str(claim["verdict"]) for claim in content["claims"])
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return Description("", "", f"audit of {counts.total()} claims, effort {content['effort']}", verdicts)


KINDS = (
    Kind(
        "audit",
        load="attnscope.studies.audit.report:AuditReport.load",
        describe="attnscope.studies.audit:describe",
        record="audit.json",
        written=("audit.json", "report.html"),
        verbs=(Verb("audit", "attnscope.studies.audit.verb:audit", "The paper"),),
    ),
)

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
