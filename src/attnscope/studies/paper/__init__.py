"""The paper's experiments on any model: Algorithms 1 to 5 of its appendix, its claims, its figures."""
