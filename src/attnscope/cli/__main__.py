"""`python -m attnscope.cli`."""

from attnscope.cli import main

main()
