"""The errors attnscope raises on purpose.

Every message says what was received and what to do about it, in one line: the command
line prints it as it is and ends with the error's exit code.
"""

from __future__ import annotations


class AttnscopeError(Exception):
    """Base of everything attnscope raises on purpose."""

    exit_code = 2


class InputError(AttnscopeError, ValueError):
    """An argument, a text or an option value that cannot be used as it is."""


class ModelError(AttnscopeError):
    """A model that cannot be found, loaded or observed."""


class OutputError(AttnscopeError, OSError):
    """An output folder or file that cannot be written or read."""
