"""A small local web server for a folder of runs: list, open, compare, rename and delete runs, start scans."""
