"""Removes data from the texts that leave a site: an error or a note may quote samples."""

from __future__ import annotations

import re

MAX_CHARACTERS = 300
MAX_INPUT = 4000
"""Anything after this number of characters is dropped unread."""
MAX_WORD = 40
"""A longer run of characters without a space is treated as encoded data."""
REMOVED = "..."
NUMBERS_REMOVED = "[...]"

_TRACEBACK = "Traceback (most recent call last)"
_BYTES_LITERAL = re.compile(r"""(?<![\w./\\'"-])b(['"])(?:\\.|(?!\1)[^\\])*\1""")
# A literal that was cut off has no closing quote.
_CUT_LITERAL = re.compile(r"""(?<![\w./\\'"-])b(['"])(?:\\.|(?!\1)[^\\])*\\?\Z""")
_ESCAPED_BYTE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
# Base64 in lines, of which the last may be as short as a word.
_WRAPPED = re.compile(r"[A-Za-z0-9+/=_-]{41,}(?:\r?\n[A-Za-z0-9+/=_-]+)+")
_HEX_BYTES = re.compile(r"\b(?:[0-9a-fA-F]{2}[\s:,]+){7,}[0-9a-fA-F]{2}\b")
_QUOTED = re.compile(r"""(?<!\w)(['"])([^'"\n]*[/\\][^'"\n]*)\1""")
_ABSOLUTE = re.compile(r"""(?<![\w.:/\\~-])(?:~|[A-Za-z]:|file:/)?(?:[/\\]+[^\s'"/\\,;:()\[\]]+)+[/\\]*""")
# Includes numbers as NumPy, torch and Python print them: np.float32(0.5), tensor(0.5), 0xff.
_PLAIN_NUMBER = r"[-+]?(?:0x[0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)[j%]?"
_NUMBER = rf"(?:[A-Za-z_][\w.]*\(\s*)?{_PLAIN_NUMBER}(?![\w.])\)?"
_BETWEEN = r"""[\s,;:|/=()\[\]{}'"]+"""
_NUMBERS = re.compile(rf"[(\[{{]*(?<![\w.+-]){_NUMBER}(?:{_BETWEEN}{_NUMBER}){{2,}}[)\]}}]*")


def redact(text: str) -> str:
    """Return one line of at most 300 characters that may leave a site.

    Tracebacks, bytes, encoded data and sequences of three or more numbers are removed, and file paths are reduced to
    their last part. Words, names and single numbers stay, so that an error still says what is wrong.
    """
    line = _without_traceback(text)
    was_cut, line = len(line) > MAX_INPUT, line[:MAX_INPUT]
    for data in (_BYTES_LITERAL, *([_CUT_LITERAL] if was_cut else []), _WRAPPED, _HEX_BYTES):
        line = data.sub(REMOVED, line)
    words = line.split()
    line = " ".join(w if w.isprintable() and _ESCAPED_BYTE.search(w) is None else REMOVED for w in words)
    line = _QUOTED.sub(lambda match: f"{match[1]}{_last_part(match[2])}{match[1]}", line)
    line = _ABSOLUTE.sub(lambda match: _last_part(match[0]), line)
    line = " ".join(REMOVED if len(word) > MAX_WORD else word for word in line.split())
    line = _NUMBERS.sub(NUMBERS_REMOVED, line)
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - len(REMOVED)] + REMOVED


def _without_traceback(text: str) -> str:
    """Return the lines before a traceback; if there are none, its last line, which is the error itself."""
    before, found, _ = text.partition(_TRACEBACK)
    if not found:
        return text
    return before.rpartition("\n")[0].strip() or text.strip().rpartition("\n")[2]


def _last_part(path: str) -> str:
    """Return the last part of a path, with slashes or backslashes: `c.png` for `/a/b/c.png`."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
