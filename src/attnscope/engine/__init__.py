"""Run a model on a plan of windows and hand its attention calls to a measurer: the only loop over windows.

`windows.py` plans the windows, `run.py` runs them, `parts.py` holds what each finished window leaves, in memory and on
disk, and `next_token.py` gives the logits of the next token. Commands differ in their measurers alone.

Requirement: a measurer does not know whether a call comes from a text, from tensors or from a training step.
"""
