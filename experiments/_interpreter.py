"""Can this Python run the project here? A script learns it by importing this before anything of the project, and else ends with one line.

Written for Pythons and systems on which the project itself cannot be read.
"""

from __future__ import annotations

import importlib.util
import sys


def refusal(version: tuple[int, int], platform: str, installed: bool) -> str | None:
    """Why not, and the remedy. None when it can."""
    if platform != "linux":
        return f"pbt_agents runs on Linux only, and this is {platform}. On another system use a Linux container or virtual machine."
    if not (3, 11) <= version < (3, 13):
        return f"pbt_agents needs Python 3.11 or 3.12, and this is {version[0]}.{version[1]}. {_REMEDY}"
    if not installed:
        return f"pbt_agents is not installed for {sys.executable}. {_REMEDY}"
    return None


_REMEDY = "Run `make setup` (README.md has the steps without make), then .venv/bin/python in place of python."
_INSTALLED = all(importlib.util.find_spec(package) for package in ("pbt_agents", "ray"))
_REFUSAL = refusal((sys.version_info[0], sys.version_info[1]), sys.platform, _INSTALLED)
if _REFUSAL:
    print(f"error: {_REFUSAL}", file=sys.stderr)
    sys.exit(2)
