"""The paper's statements as pure functions, printed and corrected side by side.

"Limitations of Normalization in Attention Mechanism" (Mudarisov, Burtsev, Petrova, State, 2025). One file per
subject; each docstring gives the statement, its place in the paper, and the idea of the proof. Shapes follow one
convention, explained in `attnscope.theory.configuration`.

| file | statements |
|---|---|
| `vanishing` | Lemma 1, Corollary 1 |
| `distance` | eq. (7), Theorem 1(1), B1 to B4 |
| `expectation` | Theorem 1(2), Corollary 2, E1 to E4; `sampling` computes the expectation itself |
| `geometry` | eq. (10), Theorem 2, T2a to T2d |
| `gradient` | section 2.3, Lemma 2, Corollary 3, J1 to J4, finite steps |
| `appendix` | the appendix: significance, a step of its proofs, literal rows |
| `heads` | section 4, coverage |
| `selectivity` | Theorem S and two impossibilities |
| `claims`, `spaces`, `audit` | the claims, the configurations to test them on, and the search for violations |
"""
