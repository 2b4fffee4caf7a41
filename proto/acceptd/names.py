"""Text that others choose and people read: in terminals, logs, labels and on the status page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from acceptd.errors import WireError

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes of a file's name on Linux.
_NAME_MAX: Final = 255
#: A token of ours, wherever it stands; the body of a key on one line, which mixes capitals, small letters and digits as
#: no name of a file does.
_TOKEN: Final = re.compile(r"acceptd_[A-Za-z0-9_-]{43}")
_KEY: Final = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*[0-9])[A-Za-z0-9+][A-Za-z0-9+/_-]{39,}={0,2}")


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


def path_shown(path: str | Path) -> str:
    """A path as it stands in messages. What looks like the secret itself, set where its file's name belongs, does not.

    >>> path_shown("/etc/acceptd/tokens")
    "'/etc/acceptd/tokens'"
    >>> path_shown("-----BEGIN PRIVATE KEY-----\\nMIIEvAIBADANBg")
    'a path that is not shown (it may be the secret itself)'
    """
    text = str(path)
    long = any(len(part.encode("utf-8", "replace")) > _NAME_MAX for part in text.split("/"))
    secret = "-----BEGIN" in text or _TOKEN.search(text) or _KEY.fullmatch(text.removeprefix("Bearer ").strip())
    if long or secret or not text.isprintable():
        return "a path that is not shown (it may be the secret itself)"
    return repr(text)
