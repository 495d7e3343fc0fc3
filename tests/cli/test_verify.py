"""``toolkit verify``: exit codes, sentences and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.plans import DGX, LLAMA_8B, plan
from toolkit import plan as plans
from toolkit.cli.main import main
from toolkit.cli.verify import command


def written(folder: Path, **strategy: object) -> str:
    path = folder / "plan.json"
    path.write_text(plans.dump(plan("dry", LLAMA_8B, DGX, workload={"sequence_length": 2048}, **strategy)))
    return str(path)


def test_a_missing_plan_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["verify", "no/plan.json"])
    assert left.value.code == 2
    assert "no/plan.json" in capsys.readouterr().err


def test_layers_that_the_model_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["verify", written(tmp_path, zero_stage=3), "--layers", "99"])
    assert left.value.code == 2
    assert "which has 32" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_exit_code_follows_the_tolerance(tmp_path: Path) -> None:
    path = written(tmp_path, zero_stage=1)
    good = CliRunner().invoke(command, [path, "--layers", "2", "--tolerance", "0.05", "--json"])
    assert good.exit_code == 0, good.output
    found = json.loads(good.output)
    assert found["findings"] == []
    (row,) = found["ranks"]
    assert set(row["predicted_bytes"]) == set(row["counted_bytes"]) == {"parameters", "gradients", "optimizer", "peak"}
    ratio = row["predicted_bytes"]["peak"] / row["counted_bytes"]["peak"]
    assert row["relative_error"] == pytest.approx(ratio - 1, abs=1e-9)
    # 0.7 % of what hpZ sends depends on where the prefetcher stands (docs/verify.md): a finding where that is asked for
    path = written(tmp_path, zero_stage=3, hpz=8)
    bad = CliRunner().invoke(command, [path, "--layers", "2", "--tolerance", "0.002"])
    assert bad.exit_code == 1
    assert "above 0.2%: dp: sends predicted" in bad.output
