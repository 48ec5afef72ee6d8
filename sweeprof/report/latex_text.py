r"""Text for LaTeX: no character has a meaning, and all of them are in the fonts that ``pdflatex`` has without any package."""

from __future__ import annotations

import unicodedata
from functools import cache

_WRITTEN = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # A language may have made it a command.
    '"': r"{\char34}",
    # Two in a row would become a dash, quotation marks, or with one before them a Spanish one.
    "-": "{-}",
    "'": "{'}",
    "`": "{`}",
    # After the end of a line of a table they would belong to its command.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "—": "---",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "•": r"\textbullet{}",
    "©": r"\copyright{}",
    "§": r"\S{}",
    "¶": r"\P{}",
    "£": r"\pounds{}",
    "€": "EUR",
    "ο": "o",  # a Greek one
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
    "ð": "d",
    "Ð": "D",
    "þ": "th",
    "Þ": "Th",
    "đ": "d",
    "Đ": "D",
}
_MATH = {
    "×": r"\times",
    "÷": r"\div",
    "±": r"\pm",
    "·": r"\cdot",
    "−": "-",
    "≤": r"\leq",
    "≥": r"\geq",
    "≠": r"\neq",
    "≈": r"\approx",
    "∞": r"\infty",
    "√": r"\surd",
    "∑": r"\sum",
    "∏": r"\prod",
    "∂": r"\partial",
    "∇": r"\nabla",
    "∈": r"\in",
    "→": r"\rightarrow",
    "←": r"\leftarrow",
    "↑": r"\uparrow",
    "↓": r"\downarrow",
    "↔": r"\leftrightarrow",
    "⇒": r"\Rightarrow",
    "°": r"^{\circ}",
    "²": "^2",
    "³": "^3",
    "¹": "^1",
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
}
"""LaTeX's accents by the combining characters of Unicode."""
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split()
"""Greek letters that do not look like Latin ones."""
_LATIN = {
    "Alpha": "A",
    "Beta": "B",
    "Epsilon": "E",
    "Zeta": "Z",
    "Eta": "H",
    "Iota": "I",
    "Kappa": "K",
    "Mu": "M",
    "Nu": "N",
}
_LATIN |= {"Omicron": "O", "Rho": "P", "Tau": "T", "Chi": "X"}


def escaped(text: str) -> str:
    """Return ``text`` without any meaning to LaTeX.

    Characters that its fonts lack are replaced: letters of other alphabets by their Latin names, symbols by theirs in parentheses,
    and ideographs, which have none, by their numbers in brackets.
    """
    return "".join(map(_written, unicodedata.normalize("NFC", text)))


@cache
def _written(character: str) -> str:  # noqa: PLR0911  # one for each kind of character
    if character in _WRITTEN:
        return _WRITTEN[character]
    if " " <= character <= "~":
        return character
    if character in _MATH:
        return f"${_MATH[character]}$"
    category = unicodedata.category(character)
    if category in ("Cc", "Zs", "Zl", "Zp"):
        return " "
    if category in ("Cf", "Mn", "Me"):  # direction marks, joiners, and what changes the character before it
        return ""
    parts = unicodedata.normalize("NFKD", character)
    if len(parts) == 2 and parts[1] in _ACCENTS and parts[0].isascii():
        letter = {"i": r"\i", "j": r"\j"}.get(parts[0], parts[0])
        return rf"\{_ACCENTS[parts[1]]}{{{letter}}}"
    if parts != character:  # a ligature, a full-width letter, a letter with another mark
        return "".join(map(_written, parts.replace("\u2044", "/")))
    return _named(character, category)


def _named(character: str, category: str) -> str:
    name = unicodedata.name(character, "")
    word = name.rpartition(" ")[2]
    if not name or word.rpartition("-")[2] == f"{ord(character):04X}":
        return f"{{[}}{ord(character):X}{{]}}"
    word = {"LAMDA": "LAMBDA"}.get(word, word)
    if name.startswith("GREEK SMALL LETTER "):
        return r"$\varsigma$" if "FINAL" in name else rf"$\{word.lower()}$"
    if name.startswith("GREEK CAPITAL LETTER "):
        letter = word.capitalize()
        return rf"$\{letter}$" if letter in _CAPITALS else _LATIN.get(letter, letter)
    if category[0] == "L":
        return word.capitalize() if category == "Lu" else word.lower()
    return f"({escaped(name.lower())})"
