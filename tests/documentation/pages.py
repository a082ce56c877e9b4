"""The documentation as data: its pages, and the links, commands and tables in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
_INTERPRETER = r"(?:\.venv/bin/)?python"


def links(text: str) -> list[str]:
    """Targets of relative links, without what follows a #."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target.split("#")[0] for target in targets if "://" not in target and not target.startswith("#")]


def commands(text: str) -> list[tuple[str, set[str]]]:
    """(script, -m module or -m pbt_agents command; its long flags) of every Python command line on the page."""
    found = []
    for line in text.splitlines():
        for command in re.findall(rf"{_INTERPRETER} ((?:-m )?[\w./]+(?:\.py)?[^`|#]*)", line):
            words = command.split()
            what = " ".join(words[: 3 if words[1:2] == ["pbt_agents"] else 2]) if words[0] == "-m" else words[0]
            found.append((what, {word.split("=")[0] for word in words if word.startswith("--") and len(word) > 2}))
    return found


def paths(text: str) -> set[str]:
    """What the page names in code marks as a file of the repository: it begins with a folder of it."""
    folders = [folder.name for folder in ROOT.iterdir() if folder.is_dir() and folder.name[0] != "." and folder.name != "runs"]
    return set(re.findall(rf"`((?:{'|'.join(folders)})/[\w./-]*)`", text))


def first_cells(text: str) -> list[str]:
    """Names in code marks in the first column of every table."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
