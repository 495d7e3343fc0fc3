"""Real outputs in README.md: rewritten by ``make golden``, compared by a test, so they cannot drift."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(^\$ (toolkit [^\n]*)\n)(.*?)(^```$)", flags=re.M | re.S)


def output_of(command: str) -> str:
    """What the command prints, standard error after standard output; blank lines and ends of lines apart."""
    argv = [sys.executable, "-m", *command.split()]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    text = done.stdout + done.stderr
    assert "Traceback" not in text, text
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def rendered(text: str) -> str:
    """The document with every ``$ toolkit ...`` block followed by what that command prints now."""
    return BLOCK.sub(lambda match: match.group(1) + output_of(match.group(2)) + match.group(4), text)


if __name__ == "__main__":
    from tests import scoreboard

    README.write_text(rendered(README.read_text()))
    scoreboard.PAGE.write_text(scoreboard.rendered(scoreboard.PAGE.read_text()))
