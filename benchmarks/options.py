"""Types of the benchmarks' options."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from attnscope.options import Words
from attnscope.progress import Progress

Only = Annotated[Words | None, Parameter(name="--only")]
Hidden = Annotated[Progress, Parameter(parse=False)]
