"""Known warnings are silent, in children that begin afresh too; all others are shown, and the user overrules."""

import subprocess
import sys
from pathlib import Path

import pytest

SAYS = """
import warnings
warnings.warn("`torch.distributed.all_gather_into_tensor` is deprecated. Please use another", FutureWarning)
warnings.warn("Transformer Engine and Apex are not installed. Falling back to Torch optimizers.", UserWarning)
warnings.warn("torch.float8 will go", FutureWarning)
"""
QUIET = f"""
import subprocess, sys
from recipes import quiet
quiet.known_warnings(); quiet.known_warnings()
{SAYS}
sys.exit(subprocess.run([sys.executable, "-c", {SAYS!r}]).returncode)
"""


@pytest.mark.parametrize(
    ("asked", "shown"), [("", ["torch.float8"] * 2), ("always", ["`torch", "Trans", "torch."] * 2)]
)
def test_what_is_shown(asked: str, shown: list[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", QUIET], capture_output=True, text=True, cwd=root, env={"PYTHONWARNINGS": asked}
    )
    assert done.returncode == 0, done.stderr
    said = [line.partition("Warning: ")[2] for line in done.stderr.splitlines() if "Warning: " in line]
    assert len(said) == len(shown), done.stderr
    assert all(line.startswith(begin) for line, begin in zip(said, shown, strict=True)), said
