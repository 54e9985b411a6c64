"""Everything that can be said about a normalizer, side by side: `scorecard`.

| file | contents |
|---|---|
| `contracts` | what every normalizer promises, tested; an error for each contract that a user's class breaks |
| `measuring` | bounds, exact Jacobian, nearness to Theorem S, capacity on real logits, speed |
| `cards` | `scorecard`: all of it, and recall against length and budget, as JSON |
| `page` | the same as one HTML page |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._process import lazy

if TYPE_CHECKING:
    from attnscope.studies.scorecard.cards import Scorecard as Scorecard
    from attnscope.studies.scorecard.cards import scorecard as scorecard

_NAMES = dict.fromkeys(("Scorecard", "scorecard"), "attnscope.studies.scorecard.cards")

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
