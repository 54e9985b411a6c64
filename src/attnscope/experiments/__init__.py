"""Experiments on any model: what other normalizers do to it, and whether the guidelines hold."""
