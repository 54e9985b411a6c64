"""Normalizers: the maps from logits to weights."""
