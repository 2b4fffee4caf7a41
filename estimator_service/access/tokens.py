"""Bearer tokens: made here, known to the service by their hash alone.

The file has one token a line, `NAME ROLE PAIRS sha256:HEX`; `#` begins a comment. Two lines may share a name while one
token replaces the other. A token is 256 random bits, so a plain SHA-256 of it tells nothing about it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path
from typing import Final

from acceptd.errors import ConfigError
from acceptd.names import path_shown
from estimator_service.access.files import FileWatch, read
from estimator_service.access.identity import Caller, Role

#: Lets scanners of repositories and logs find a token that leaked.
PREFIX: Final = "acceptd_"
#: Random bytes of a token.
_SECRET_BYTES: Final = 32
#: Lines of a file. Each call is compared with every one, some 0.2 µs each.
MAX_TOKENS: Final = 4096
#: Patterns a token. Each stream's pair is compared with every one.
_MAX_PATTERNS: Final = 64

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PATTERN: Final = re.compile(r"[^\s#,]{1,256}")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")


def new_token() -> str:
    """A fresh token."""
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def digest_of(token: str) -> bytes:
    """What the service keeps of it, 32 bytes."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def line_of(name: str, role: Role, pairs: tuple[str, ...], token: str) -> str:
    """The line of the tokens' file that lets `token` in. Raises ConfigError for a name or pattern it cannot hold."""
    words = [name, str(role), ",".join(pairs), f"sha256:{digest_of(token).hex()}"]
    _caller(words, "token")
    return " ".join(words)


def parse(text: str, source: str) -> tuple[Caller, ...]:
    """Who may call. Raises ConfigError with the line's number; never with the line, which may hold a token."""
    callers = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if words:
            callers.append(_caller(words, f"{source}: line {number}"))
    if len(callers) > MAX_TOKENS:
        raise ConfigError(f"{source}: {len(callers)} tokens; accepted: at most {MAX_TOKENS}")
    return tuple(callers)


def _caller(words: list[str], where: str) -> Caller:
    if len(words) != len(("name", "role", "pairs", "digest")):
        raise ConfigError(f"{where} has {len(words)} words; accepted: NAME ROLE PAIRS sha256:HEX")
    name, role, patterns, digest = words
    pairs = tuple(patterns.split(","))
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: the name is not accepted; accepted: up to 64 of A-Z a-z 0-9 . _ -")
    if role not in set(Role):
        raise ConfigError(f"{where}: the role is not accepted; accepted: {', '.join(Role)}")
    if len(pairs) > _MAX_PATTERNS or not all(_PATTERN.fullmatch(pattern) for pattern in pairs):
        raise ConfigError(
            f"{where}: the pairs are not accepted; accepted: up to {_MAX_PATTERNS} patterns with commas between"
        )
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise ConfigError(f"{where}: the hash is not accepted; accepted: sha256: and 64 hex digits")
    return Caller(name, Role(role), pairs, bytes.fromhex(found[1]))


class Tokens:
    """The tokens of a file, as of its latest readable state. Raises ConfigError if the first one is not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._callers: tuple[Caller, ...] = ()
        self._watch = FileWatch((path,))
        self.refresh()

    def __len__(self) -> int:
        return len(self._callers)

    def find(self, token: str) -> Caller | None:
        """Whose token it is. Takes the same time whichever it is, and if it is nobody's."""
        presented, found = digest_of(token), None
        for caller in self._callers:
            if hmac.compare_digest(presented, caller.digest):
                found = caller
        return found

    def holds(self, caller: Caller) -> bool:
        """Whether the caller's token is still there, with the same rights."""
        return caller in self._callers

    def refresh(self) -> bool:
        """Reads the file if it has changed or could not be read; whether there are tokens of a new state of it.

        Raises ConfigError if it cannot be used, once for each reason; the tokens read before stay.
        """
        if not self._watch.due():
            return False
        try:
            self._callers = self._read()
        except ConfigError as error:
            if self._watch.failed(error):
                raise
            return False
        self._watch.used()
        return True

    def _read(self) -> tuple[Caller, ...]:
        data = read("tokens", self.path, "a readable file of tokens")
        source = f"tokens = {path_shown(self.path)}"
        try:
            return parse(data.decode(), source)
        except UnicodeDecodeError:
            raise ConfigError(f"{source}: not UTF-8; accepted: a file of tokens") from None
