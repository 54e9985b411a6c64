"""Run a model on a plan of windows and pass its attention calls to a measurer: the only loop over windows.

`windows.py` plans the windows, `run.py` runs them, `parts.py` holds the results of each finished window, in memory and
on disk, and `next_token.py` gives the logits of the next token. Commands differ only in their measurers.

Requirement: a measurer does not know whether a call comes from a text, from tensors or from a training step.
"""
