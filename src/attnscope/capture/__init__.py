"""Run a model unchanged and observe the queries, keys, values and mask of each attention call."""

from attnscope.capture.recording import record

__all__ = ["record"]
