"""A small local server over a folder of runs: list, open, compare, start and cancel scans."""
