"""Folders of runs: how they are written and locked, manifests of blocks, tables, and the kinds of runs."""
