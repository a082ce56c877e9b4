r"""The one extractor of answers, \boxed{...}, for training and evaluation alike."""

import re

_OPENING = re.compile(r"\\boxed\s*\{")


def last_boxed(text: str) -> str | None:
    """The content of the last complete box, by counting braces; None where there is none. The text around it never counts."""
    for opening in reversed(list(_OPENING.finditer(text))):
        depth = 1
        for position in range(opening.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[opening.end() : position]
    return None
