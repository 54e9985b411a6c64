"""A small local web server for a folder of runs: list, open and compare runs, start and cancel scans."""
