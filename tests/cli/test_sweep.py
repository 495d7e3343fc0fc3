"""``toolkit plan --gpus 8..512``: lines, JSON, prices, failures, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = ("plan", "--params", "7B", "--gpus", "8..64")


def toolkit(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", *argv], capture_output=True, text=True, cwd=cwd, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def document() -> dict:
    done = toolkit(*PLAN, "--tokens", "1T", "--price-per-gpu-hour", "2.5", "--json")
    assert done.returncode == 0
    return json.loads(done.stdout)


def test_every_count_is_there_with_its_plan(document: dict) -> None:
    counts = document["sweep"]["counts"]
    assert [row["gpus"] for row in counts] == [8, 16, 32, 64]
    for row in counts:
        s, step = row["plan"]["strategy"], row["plan"]["step"]
        assert s["tp"] * s["pp"] * s["cp"] * s["dp"] == row["gpus"] == row["nodes"] * row["gpus_per_node"]
        assert s["micro_batch_size"] * s["gradient_accumulation_steps"] * s["dp"] == 1024  # the same at every count
        assert row["tokens_per_second"] == pytest.approx(1024 * 4096 / step["seconds"])
        assert row["tokens_per_second"] == pytest.approx(step["tokens_per_second_per_gpu"] * row["gpus"])
        assert row["efficiency"] == pytest.approx(row["speed_up"] * 8 / row["gpus"])


def test_costs_follow_from_the_price(document: dict) -> None:
    assert document["sweep"]["price_per_gpu_hour"] == 2.5
    for row in document["sweep"]["counts"]:
        hours = row["gpus"] * row["plan"]["step"]["seconds"] / 3600 / (1024 * 4096) * 1e9
        assert row["gpu_hours_per_billion_tokens"] == pytest.approx(hours)
        assert row["cost_per_billion_tokens"] == pytest.approx(2.5 * hours)
        run = row["plan"]["whole_run"]
        assert run["cost"] == pytest.approx(2.5 * run["gpu_hours"])
        assert row["cost"] == run["expected_cost"] == pytest.approx(2.5 * run["expected_gpu_hours"])


def test_the_whole_run_expects_failures(document: dict) -> None:
    for row in document["sweep"]["counts"]:
        run, failures = row["plan"]["whole_run"], row["plan"]["resilience"]
        assert failures["failure_interval_seconds"] == pytest.approx(50_700 * 3600 / row["gpus"])
        assert run["expected_seconds"] == pytest.approx(run["seconds"] / failures["goodput"])
        assert run["interruptions"] == pytest.approx(run["expected_seconds"] / failures["failure_interval_seconds"])
        assert 0.9 < run["goodput"] < 1.0


def test_plans_are_ranked_by_the_objective() -> None:
    for objective, key in (
        ("throughput", lambda plan: plan["step"]["seconds"]),
        ("memory", lambda plan: plan["memory"]["total_bytes"]),
        ("cost", lambda plan: plan["gpus"] * plan["step"]["seconds"]),
    ):
        plans = json.loads(toolkit(*PLAN, "--objective", objective, "--json").stdout)["plans"]
        assert [plan["rank"] for plan in plans] == [1, 2, 3, 4]
        assert plans == sorted(plans, key=key), objective


def test_no_point_of_the_front_beats_another(document: dict) -> None:
    points = [(p["gpus"], p["step_seconds"], p["total_bytes"]) for p in document["pareto"]]
    assert len(points) > 20 and {gpus for gpus, _, _ in points} <= {8, 16, 32, 64}
    for one in points:
        assert not any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in points)
    best = min(row["gpu_hours_per_billion_tokens"] for row in document["sweep"]["counts"])
    assert min(p["gpu_hours_per_billion_tokens"] for p in document["pareto"]) <= best * (1 + 1e-9)


def test_a_line_for_each_count_the_knee_and_the_contract() -> None:
    done = toolkit(*PLAN, "--tokens", "1T", "--price-per-gpu-hour", "2.5")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    table = lines[: next(i for i, line in enumerate(lines) if line.startswith("fastest on"))]
    assert [line.split()[0] for line in table if line.split()[:1] in (["8"], ["16"], ["32"], ["64"])] == [
        "8",
        "16",
        "32",
        "64",
    ]
    for words in (
        "knee: ",
        "Pareto front of step time, memory and GPUs",
        "the same at every GPU count",
        "GPU-hours is",
    ):
        assert words in done.stdout


def test_an_unknown_price_is_unknown() -> None:
    done = toolkit(*PLAN, "--tokens", "1T")
    assert "cost unknown: no --price-per-gpu-hour" in done.stdout
    row = json.loads(toolkit(*PLAN, "--tokens", "1T", "--json").stdout)["sweep"]["counts"][0]
    assert row["cost"] is None and row["cost_per_billion_tokens"] is None and row["plan"]["whole_run"]["cost"] is None


def test_a_list_and_nodes() -> None:
    listed = json.loads(toolkit("plan", "--params", "7B", "--gpus", "8,16,48", "--json").stdout)
    assert [row["gpus"] for row in listed["sweep"]["counts"]] == [8, 16, 48]
    assert listed["workload"]["global_batch_size"] == 1056  # the usual 1,024, made divisible by each count
    nodes = json.loads(
        toolkit("plan", "--params", "7B", "--gpus", "1x4..4x4", "--cluster", "dgx-h100", "--json").stdout
    )
    assert [(row["nodes"], row["gpus_per_node"]) for row in nodes["sweep"]["counts"]] == [(1, 4), (2, 4), (4, 4)]


def test_a_recipe_keeps_its_contract() -> None:
    done = toolkit("plan", "--recipe", "tiny", "--gpus", "1..4", "--cluster", "local-cpu", "--json")
    document = json.loads(done.stdout)
    for row in document["sweep"]["counts"]:
        s = row["plan"]["strategy"]
        batch = s["micro_batch_size"] * s["gradient_accumulation_steps"] * s["dp"]
        assert batch == document["workload"]["global_batch_size"]
        assert row["plan"]["resilience"] is None  # nothing was published of CPUs


def test_ends_are_moved_to_whole_nodes_and_told() -> None:
    document = json.loads(toolkit("plan", "--params", "7B", "--gpus", "10..100", "--json").stdout)
    assert [row["gpus"] for row in document["sweep"]["counts"]] == [16, 32, 64, 96]
    assert "10 to 100 GPUs are 16 to 96 in whole nodes of 8" in document["assumptions"]


def test_a_count_on_which_nothing_fits_says_so_and_the_rest_is_planned() -> None:
    done = toolkit("plan", "--params", "70B", "--gpus", "1..32", "--accelerator", "a100-40gb")
    assert done.returncode == 0
    assert "nothing fits: " in done.stdout and "fastest on 32 GPUs" in done.stdout


def test_nothing_fits_on_any_count() -> None:
    done = toolkit("plan", "--params", "405B", "--gpus", "1..4", "--json")
    assert done.returncode == 1
    assert "nothing fits on any of 1, 2, 4 GPUs" in done.stderr and "it would fit" in done.stderr
    assert json.loads(done.stdout)["plans"] == []


SMALL = 'name = "small"\naccelerator = "h100-sxm5-80gb"\ngpus_per_node = 8\nnodes = 4\nprice_per_gpu_hour = 3.0\n'


def test_the_price_of_the_cluster_file_counts(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    done = toolkit("plan", "--params", "7B", "--gpus", "8..32", "--cluster", "small.toml", "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)["sweep"]["counts"]
    for row in rows:
        assert row["cost_per_billion_tokens"] == pytest.approx(3.0 * row["gpu_hours_per_billion_tokens"])
    argv = ("--cluster", "small.toml", "--price-per-gpu-hour", "1.5", "--json")
    cheaper = json.loads(toolkit("plan", "--params", "7B", "--gpus", "8..32", *argv, cwd=tmp_path).stdout)
    assert cheaper["sweep"]["counts"][0]["cost_per_billion_tokens"] == pytest.approx(
        0.5 * rows[0]["cost_per_billion_tokens"]
    )


def test_more_gpus_than_the_cluster_has(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    done = toolkit("plan", "--params", "7B", "--gpus", "8..64", "--cluster", "small.toml", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert "64 GPUs need 8 nodes of 8, and small has 4" in done.stderr and "ask for 32 GPUs or fewer" in done.stderr


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ("8..4", "write 4..8"),
        ("0..8", "zero"),
        ("8..1000000000", "above 1,000,000"),
        ("12..14", "whole nodes of 8"),
        ("8,12", "12 GPUs do not fill nodes of 8"),
        ("64,128", "64128 GPUs, or 64 and 128"),
        ("8..", "an end is missing"),
        ("8..16..32", "two ends"),
    ],
)
def test_odd_ranges_are_sentences(gpus: str, words: str) -> None:
    done = toolkit("plan", "--params", "7B", "--gpus", gpus)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_all_problems_at_once() -> None:
    done = toolkit("plan", "--params", "banana", "--gpus", "8..4", "--calibration", "nope", "--out", "x", "--pick", "2")
    assert done.returncode == 2
    for words in ("banana", "run downwards", "nope", "--out writes one plan", "--pick chooses one plan"):
        assert words in done.stderr, words


def test_other_commands_take_one_count() -> None:
    done = toolkit("estimate", "--params", "7B", "--gpus", "8..64", "--zero", "1")
    assert done.returncode == 2 and "toolkit plan also takes a range" in done.stderr


def test_a_sweep_imports_no_framework() -> None:
    code = (
        "import sys\nfrom toolkit.cli.main import main\n"
        f"try:\n    main({[*PLAN]!r})\nexcept SystemExit as e:\n    assert not e.code\n"
        "assert not {'torch', 'transformers', 'deepspeed', 'pydantic', 'yaml'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
