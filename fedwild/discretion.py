"""What a site may say in words: an error or a note may quote data, and no sample must leave a site in a sentence."""

from __future__ import annotations

import re

MOST_CHARACTERS = 300
LOOKED_AT = 4000
"""What comes later in a text is never told, nor looked at."""
LONGEST_RUN = 40
"""A longer run of characters without a space is no word, but encoded data."""
LEFT_OUT = "..."
NUMBERS_LEFT_OUT = "[...]"

_TRACEBACK = "Traceback (most recent call last)"
_BYTES_LITERAL = re.compile(r"""(?<![\w./\\'"-])b(['"])(?:\\.|(?!\1)[^\\])*\1""")
# One that was cut off, which has no end.
_CUT_LITERAL = re.compile(r"""(?<![\w./\\'"-])b(['"])(?:\\.|(?!\1)[^\\])*\\?\Z""")
_ESCAPED_BYTE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
# Base64 in lines, the last of which may be as short as a word.
_WRAPPED = re.compile(r"[A-Za-z0-9+/=_-]{41,}(?:\r?\n[A-Za-z0-9+/=_-]+)+")
_HEX_BYTES = re.compile(r"\b(?:[0-9a-fA-F]{2}[\s:,]+){7,}[0-9a-fA-F]{2}\b")
_QUOTED = re.compile(r"""(?<!\w)(['"])([^'"\n]*[/\\][^'"\n]*)\1""")
_ABSOLUTE = re.compile(r"""(?<![\w.:/\\~-])(?:~|[A-Za-z]:|file:/)?(?:[/\\]+[^\s'"/\\,;:()\[\]]+)+[/\\]*""")
# Also as NumPy, torch and Python print them one by one: np.float32(0.5), tensor(0.5), 0xff.
_PLAIN_NUMBER = r"[-+]?(?:0x[0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)[j%]?"
_NUMBER = rf"(?:[A-Za-z_][\w.]*\(\s*)?{_PLAIN_NUMBER}(?![\w.])\)?"
_BETWEEN = r"""[\s,;:|/=()\[\]{}'"]+"""
_NUMBERS = re.compile(rf"[(\[{{]*(?<![\w.+-]){_NUMBER}(?:{_BETWEEN}{_NUMBER}){{2,}}[)\]}}]*")


def told_outside(text: str) -> str:
    """One line of at most 300 characters that may leave a site.

    Tracebacks, bytes, encoded data and sequences of three or more numbers are left out, and of a file's path all but
    its last part. Words, names and single numbers stay: an error must still tell what is wrong.
    """
    line = _without_traceback(text)
    was_cut, line = len(line) > LOOKED_AT, line[:LOOKED_AT]
    for data in (_BYTES_LITERAL, *([_CUT_LITERAL] if was_cut else []), _WRAPPED, _HEX_BYTES):
        line = data.sub(LEFT_OUT, line)
    line = " ".join(LEFT_OUT if _holds_bytes(word) else word for word in line.split())
    line = _QUOTED.sub(lambda found: f"{found[1]}{_last_part(found[2])}{found[1]}", line)
    line = _ABSOLUTE.sub(lambda found: _last_part(found[0]), line)
    line = " ".join(LEFT_OUT if len(word) > LONGEST_RUN else word for word in line.split())
    line = _NUMBERS.sub(NUMBERS_LEFT_OUT, line)
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - len(LEFT_OUT)] + LEFT_OUT


def _without_traceback(text: str) -> str:
    """The lines before a traceback; if there are none, its last line, which is the error itself."""
    before, found, _ = text.partition(_TRACEBACK)
    if not found:
        return text
    return before.rpartition("\n")[0].strip() or text.strip().rpartition("\n")[2]


def _last_part(path: str) -> str:
    """`c.png` of `/a/b/c.png`, whichever way its slashes lean."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _holds_bytes(word: str) -> bool:
    """Whether something in it is no character that could be printed, or stands for one."""
    return not word.isprintable() or _ESCAPED_BYTE.search(word) is not None
