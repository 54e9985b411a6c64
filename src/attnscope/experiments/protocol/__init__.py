"""The paper's own protocol (its appendix): Algorithms 1 to 5 over all rows of every head.

Both readings of a row are measured in one forward pass. `literal` takes I = {1, ..., L}: the keys that a causal row
does not see have weight zero and count as not selected. `visible` leaves them out.

- `sets.py`: Algorithms 1, 2 and 4, at some N;
- `profiles.py`: Algorithm 3, at every N;
- `responses.py`: Algorithm 5;
- `measuring.py`: the measurer that runs them on the attention calls of a window;
- `lines.py`: turns sums over rows into lines of the tables.
"""
