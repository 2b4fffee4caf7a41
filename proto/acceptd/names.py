"""Text that peers choose and people read: in terminals, logs, labels and on the status page."""

from __future__ import annotations

from acceptd.errors import WireError


def check_printable(field: str, value: str) -> None:
    """Raises WireError, with the field and the index of the first character that a terminal might act on or hide.

    Refused are control and format characters (escape sequences, line ends, reversed writing), as `str.isprintable`
    has them.
    """
    if not value.isprintable():
        index = next(i for i, character in enumerate(value) if not character.isprintable())
        raise WireError(
            f"{field}[{index}] is {value[index]!a}; accepted: printable characters and spaces", field=field, index=index
        )


def printable(value: str) -> str:
    """`value` with U+FFFD for each character that `check_printable` refuses: for words that are kept all the same.

    >>> printable("no such\\nknob")
    'no such\ufffdknob'
    """
    return "".join(character if character.isprintable() else "\ufffd" for character in value)
