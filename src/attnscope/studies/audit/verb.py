"""`attnscope audit`: test the claims of the paper, printed and corrected."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from attnscope.errors import InputError
from attnscope.options import JsonOption, VerboseOption, WholeNumber, arguments

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.studies.audit import Claim

CORRECTED_VIOLATED = 1


@Parameter(name="*")
@dataclass(frozen=True)
class AuditOptions:
    """How long `attnscope.audit` searches.

    Parameters
    ----------
    effort
        quick takes less than a minute on two cores, full about ten times as long.
    seed
        Seed of the random configurations.
    """

    effort: Literal["quick", "full"] = "quick"
    seed: WholeNumber = 0


def audit(
    *,
    claim: str | None = None,
    options: AuditOptions = AuditOptions(),
    claims_file: Annotated[Path | None, Parameter(name="--own")] = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> int:
    """Test every claim of the paper, printed and corrected, on random and adversarial configurations.

    Prints each claim with its statement, its verdict and how often each form was violated. Exits with code 1 if a
    corrected form was violated.

    For example:

    - `attnscope audit`
    - `attnscope audit --claim theorem-2-upper`
    - `attnscope audit --own my_bounds.py --effort full --json`

    Parameters
    ----------
    claim
        Test one claim and print it in full, with numbers to check by hand.
    claims_file
        A Python file with your own claims: every attnscope.studies.audit.Claim in it is tested instead.
    """
    from attnscope.show import terminal
    from attnscope.show.command import answer, command_line, running
    from attnscope.studies.audit.referee import CLAIMS, audit as search, find_claim
    from attnscope.studies.audit.view import claim_blocks

    claims = _load_claims(claims_file) if claims_file else list(CLAIMS)
    if claim is not None:
        claims = [find_claim(claim, claims)]
    with running():
        report = search(claims, **arguments(options))

    def print_result(console: Console) -> None:
        if claim is None:
            report.print_summary(console, verbose)
        else:
            terminal.write(console, claim_blocks(report.claims[0]))

    if claim is None:
        first = next((one.id for one in report.claims if one.verdict == "fails"), report.claims[0].id)
        commands = {command_line("audit", claim=first, own=claims_file): "One claim in full, with a counterexample."}
    else:
        commands = {command_line("audit"): "All claims of the paper."}
    answer(print_result, report.as_json, json, commands=commands)
    return 0 if report.sound else CORRECTED_VIOLATED


def _load_claims(path: Path) -> list[Claim[Any]]:
    """The claims defined in a Python file, in order."""
    import runpy

    from attnscope.studies.audit import Claim

    if not path.is_file():
        raise InputError(f"--own takes a Python file, and there is none at {path}")
    try:
        with redirect_stdout(sys.stderr):  # standard output is for the result
            defined = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split()) or "no message"
        raise InputError(f"{path} cannot be run: {type(error).__name__}: {reason}") from error
    claims = [value for value in defined.values() if isinstance(value, Claim)]
    if not claims:
        raise InputError(f"{path} defines no attnscope.studies.audit.Claim; see docs/theory.md for an example")
    return claims
