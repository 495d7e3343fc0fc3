"""``make demo`` after its installation: the script plans, emits, and really trains what it emitted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_demo_trains_what_it_emitted_and_says_where_everything_lies(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    script = ["bash", str(ROOT / "scripts" / "demo"), str(Path(sys.executable).parent)]
    done = subprocess.run(
        script, env={**os.environ, "DEMO": str(folder)}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["strategy"]["framework"], plan["strategy"]["zero_stage"], plan["strategy"]["dp"]) == (
        "deepspeed",
        2,
        2,
    )
    run = json.loads((folder / "run" / "run.json").read_text())
    assert run["world_size"] == 2
    assert "deepspeed" in run["versions"]
    steps = [json.loads(line) for line in (folder / "run" / "steps.jsonl").read_text().splitlines()]
    assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]
    for name in ("plan.json", "launch.sh", "ds_config.json", "run/steps.jsonl"):
        assert str(folder / name) in done.stdout
