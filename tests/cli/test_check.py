"""toolkit check at the command line: exit codes, the text, and what it cannot read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def check(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "check", *arguments], capture_output=True, text=True, cwd=cwd, timeout=60
    )


def test_errors_are_1_warnings_0_and_what_cannot_be_read_2(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("n1 slots=8\nn2 lots=8\n")
    (tmp_path / "right").write_text("#!/bin/bash\necho\n")
    (tmp_path / "warned.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=1\necho\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    wrong = check("hostfile", cwd=tmp_path)
    assert wrong.returncode == 1
    assert wrong.stdout.startswith("hostfile:2: error: 'lots=8' is not slots=N [hostfile-line]\n")
    assert "instead: did you mean slots=8?" in wrong.stdout and wrong.stdout.endswith("1 file: 1 error\n")
    assert (check("right", cwd=tmp_path).returncode, check("right", cwd=tmp_path).stdout) == (
        0,
        "1 file: nothing found\n",
    )
    warned = check("warned.sbatch", cwd=tmp_path)
    assert warned.returncode == 0 and "[no-requeue]" in warned.stdout
    unreadable = check("none.sbatch", "binary", "right", cwd=tmp_path)
    assert unreadable.returncode == 2 and unreadable.stdout == ""
    assert "cannot read none.sbatch" in unreadable.stderr and "binary is no script" in unreadable.stderr
    assert check("right", "--cluster", "dgx-h10", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("text", ["if true; then\necho\n", "echo 'x\n", "for i in a; do echo; fi\n"])
def test_what_bash_cannot_read_is_told_with_its_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{text}")
    done = check("run.sh", cwd=tmp_path)
    assert done.returncode == 1 and "[syntax]" in done.stdout and "run.sh:" in done.stdout


def test_planning_does_not_load_the_grammar() -> None:
    code = (
        "import sys\nfrom toolkit.cli.main import group\n"
        "group(['plan', '--params', '7B', '--gpus', '8', '--accelerator', 'h100', '--top', '1', '--json'],"
        " standalone_mode=False)\n"
        "assert not [name for name in sys.modules if name.startswith('tree_sitter')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_standard_input_pipes_and_what_never_ends(tmp_path: Path) -> None:
    start = [sys.executable, "-m", "toolkit", "check"]
    done = subprocess.run([*start, "-"], input="#!/bin/bash\r\necho\r\n", capture_output=True, text=True)
    assert done.returncode == 1 and "-:1: error:" in done.stdout
    piped = f"{' '.join(start)} <(printf '#!/bin/bash\\r\\necho\\r\\n')"
    assert subprocess.run(["bash", "-c", piped], capture_output=True).returncode == 1
    (tmp_path / "empty").touch()
    for name, said in (("/dev/zero", "is no script"), ("empty", "empty is empty"), ("-", "- is empty")):
        done = subprocess.run(
            [*start, name], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
