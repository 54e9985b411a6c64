"""Measure this library against its peers on this machine: `python -m benchmarks`, not part of the package."""
