"""Models to rows: run a model unchanged and see each layer's queries, keys, values and mask."""

from attnscope.capture.recording import record

__all__ = ["record"]
