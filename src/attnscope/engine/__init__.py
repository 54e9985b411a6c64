"""Run a model on a plan of windows and pass its attention calls to a measurer: the only loop over windows.

`windows.py` plans the windows and `blocks.py` groups them: a plan of independent blocks in, finished parts out. Engines
run the blocks: `local.py` in this process, `ray_engine.py` on the workers of a Ray cluster. `run.py` is the loop over
the windows of a block, `parts.py` holds their results, `store.py` keeps them in memory or on disk. `next_token.py`
gives the logits of the next token. Commands differ only in their measurers.

Requirements: a measurer does not know whether a call comes from a text, from tensors or from a training step. Ray is
never imported unless it was asked for, and a worker gets a description of the work and the model, never a live model.
"""
