"""Benchmarks: time and error as ratios to peers, measured in one run."""
