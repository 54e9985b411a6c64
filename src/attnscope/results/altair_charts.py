"""Moved: attnscope.show.charts."""

from attnscope.show.charts import *  # noqa: F403
