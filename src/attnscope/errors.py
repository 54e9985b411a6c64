"""The exceptions that attnscope raises deliberately.

Every message is one line that says what was received and what to do about it. The command line prints it unchanged
and exits with the exception's `exit_code`.
"""

from __future__ import annotations

_LONGEST = 200  # characters of a value in a message


class AttnscopeError(Exception):
    """Base class of all exceptions that attnscope raises deliberately."""

    exit_code = 2


class InputError(AttnscopeError, ValueError):
    """An invalid argument, text or option value."""


class ModelError(AttnscopeError):
    """A model that cannot be found, loaded or observed."""


class OutputError(AttnscopeError, OSError):
    """An output folder or file that cannot be written or read."""


def shown(value: object) -> str:
    """A received value as quoted in a message, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers with more digits
        return "an integer of more than 4,300 digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"
