"""Run a model unchanged and observe the queries, keys, values and mask of each attention call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._process import lazy

if TYPE_CHECKING:
    from attnscope.capture.documents import Corpus as Corpus
    from attnscope.capture.models import Model as Model, ModelSource as ModelSource, load_model as load_model
    from attnscope.capture.text import Text as Text, corpus as corpus, read_text as read_text
    from attnscope.capture.watching import record as record

_NAMES = {
    "Corpus": "attnscope.capture.documents",
    "Model": "attnscope.capture.models",
    "ModelSource": "attnscope.capture.models",
    "Text": "attnscope.capture.text",
    "corpus": "attnscope.capture.text",
    "load_model": "attnscope.capture.models",
    "read_text": "attnscope.capture.text",
    "record": "attnscope.capture.watching",
}

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
