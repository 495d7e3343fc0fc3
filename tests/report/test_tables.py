"""Tables at any width: numbers whole, words broken at spaces only, and every column shown or named as left out."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from toolkit.report.tables import Column, draw
from toolkit.report.validation import _table

COLUMNS = (
    Column("GPUs"),
    Column("step\ns"),
    Column("step s\n80%", spare=1),
    Column("tokens/s", spare=2),
    Column("plan", "left", wraps=True),
)
WORDS = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True), min_size=1, max_size=6).map(" ".join)
ROWS = st.lists(
    st.tuples(
        st.integers(1, 99_999).map("{:,}".format),
        st.floats(0.1, 999).map("{:.3g}".format),
        st.floats(0.1, 999).map("{:.3g}-990".format),
        st.integers(10, 10**6).map("{:,}".format),
        WORDS,
    ),
    min_size=1,
    max_size=4,
)


def drawn(width: int, rows: list[tuple[str, ...]], below: bool) -> str:
    out = Console(file=io.StringIO(), width=width)
    draw(out, COLUMNS, rows, below=below)
    return out.file.getvalue()  # type: ignore[attr-defined]


@given(st.integers(60, 160), ROWS, st.booleans())
def test_nothing_is_cut_and_what_is_left_out_is_named(width: int, rows: list[tuple[str, ...]], below: bool) -> None:
    text = drawn(width, rows, below)
    assert "\u2026" not in text and all(len(line.rstrip()) <= width for line in text.splitlines())
    words = re.split(r"[\s\u2500]+", text)
    missing = text.partition("no room for: ")[2]
    for place, column in enumerate(COLUMNS):
        if column.name not in missing:
            assert all(word in words for row in rows for word in row[place].split()), column
    assert not missing or "--json" in " ".join(missing.split())


def test_a_wide_line_leaves_nothing_out() -> None:
    rows = [("64", "60.3", "55.1-66.1", "69,500", "megatron tp4 pp4 distributed-optimizer mb1x256")]
    assert "no room" not in drawn(140, rows, False)
    assert "plan of 64  megatron tp4" in drawn(60, rows, True)  # whole, on a line of its own


def test_the_figures_of_a_validation_are_whole_at_80_columns() -> None:
    errors = {
        "rows": 1104,
        "median_abs_relative_error": 0.077,
        "p90_abs_relative_error": 0.495,
        "worst_abs_relative_error": 0.98,
        "bias": -0.169,
        "rank_correlation": 0.79,
        "interval80": {"share_held": 0.79},
    }
    group = {
        "step_time": errors,
        "peak_memory": errors,
        "verdicts": {"rows": 493, "oom_called_fit": 1, "fit_called_no": 0},
        "skipped": {"rows": 75},
    }
    name = "nvidia-dgxc-benchmarking-of-very-many-words/and-more"
    for width in (80, 100, 140):
        out = Console(file=io.StringIO(), width=width)
        _table(out, "", {name: group, "all": group})
        text = out.file.getvalue()  # type: ignore[attr-defined]
        assert "\u2026" not in text and all(len(line.rstrip()) <= width for line in text.splitlines())
        for figure in ("1,104", "7.7%", "49.5%", "98%", "-16.9%", "0.79", "79%"):
            assert text.count(figure) >= 4, (width, figure)
        assert text.count("1 of 493") == 2


def in_a_terminal(arguments: str, width: int) -> str:
    """What a command prints to a terminal of so many columns, without colours."""
    ours, its = pty.openpty()
    argv = [sys.executable, "-m", "toolkit", *arguments.split()]
    environment = os.environ | {"COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(argv, stdout=its, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(its)
        written = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while more := os.read(ours, 65536):
                written += more
    os.close(ours)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", written.decode())


@pytest.mark.parametrize(
    "arguments",
    [
        "plan --params 7B --gpus 64 --top 3",
        "plan --params 70B --gpus 64..256 --tokens 1T --price-per-gpu-hour 2.5",
        "plan --compute-optimal 1e22 --gpus 8 --top 2",
        "models",
        "clusters",
        "clusters dgx-h100",
        "accelerators",
        "accelerators h100-sxm5-80gb",
        "recipes",
        "estimate --params 7B --gpus 8 --zero 2 --micro-batch 1 --price-per-gpu-hour 2 --tokens 1T",
    ],
)
def test_commands_in_a_terminal_of_80_columns(arguments: str) -> None:
    text = in_a_terminal(arguments, 80)
    for line in text.splitlines():
        assert "\u2026" not in line and len(line.rstrip()) <= 80, line
    for name in ("days", "goodput", "cost of", "1B tokens"):
        if ".." in arguments:
            assert name in text.replace("good-", "goodput"), name
