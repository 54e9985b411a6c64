"""The paper's statements as pure functions, printed and corrected side by side.

"Limitations of Normalization in Attention Mechanism" (Mudarisov, Burtsev, Petrova, State,
2025). One file a subject; each function's docstring has the statement, its place in the
paper, and the proof idea. Shapes follow one convention, explained in
`attnscope.theory.configuration`.
"""
