"""Results from the protocol's tables: evaluated claims, figures, and a page that shows the readings side by side.

    tables -> claims.answer_protocol -> comparisons -> terminal, protocol.html, docs
           -> figures.draw_protocol

All of them start from the claims, so that terminal, page, `claims.json` and docs cannot differ.
"""

from attnscope.experiments.protocol_report.claims import answer_protocol, combine
from attnscope.experiments.protocol_report.comparisons import Comparison, comparisons
from attnscope.experiments.protocol_report.evidence import TABLES
from attnscope.experiments.protocol_report.files import write_protocol

__all__ = ["TABLES", "Comparison", "answer_protocol", "combine", "comparisons", "write_protocol"]
