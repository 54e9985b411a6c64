"""Audit of claims: evaluate each on many configurations, search for violations, and derive a verdict.

    >>> from attnscope.theory import distance, spaces
    >>> from attnscope.studies.audit import Claim, Form, at_most, audit
    >>> def bound(c):                                  # c: attnscope.theory.configuration.Configuration
    ...     return (c.length - c.count) * c.context.norm(dim=-1)
    >>> mine = Claim("mine", "my notebook", spaces.TOP_SETS, Form("d~ <= (L-N)|s|", at_most(distance.distance, bound)))
    >>> audit([mine]).claims[0].verdict
    'fails'

No verdict is stored anywhere: a claim is a pair of formulas, and flipping one changes what the audit reports.
"""

from attnscope.studies.audit.contract import (
    Case,
    Claim,
    Condition,
    Form,
    Inequality,
    Space,
    about,
    at_least,
    at_most,
    between,
)
from attnscope.studies.audit.referee import audit
from attnscope.studies.audit.report import AuditReport, ClaimReport, Counterexample, Trial, Verdict

__all__ = [
    "AuditReport",
    "Case",
    "Claim",
    "ClaimReport",
    "Condition",
    "Counterexample",
    "Form",
    "Inequality",
    "Space",
    "Trial",
    "Verdict",
    "about",
    "at_least",
    "at_most",
    "audit",
    "between",
]
