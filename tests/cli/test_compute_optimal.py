"""``toolkit plan --compute-optimal``: the split, the plan for it, and what contradicts it."""

import json
import subprocess
import sys

import pytest


def toolkit(*argv: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "toolkit", *argv], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def document() -> dict:
    done = toolkit("plan", "--compute-optimal", "5.76e23", "--gpus", "1024", "--top", "1", "--json")
    assert done.returncode == 0
    return json.loads(done.stdout)


def test_both_laws_are_shown_and_the_corrected_one_is_followed(document: dict) -> None:
    found = document["compute_optimal"]
    assert [law["name"] for law in found["laws"]] == ["besiroglu-2024", "hoffmann-2022"]
    assert found["followed"] == "besiroglu-2024"
    for law in found["laws"]:
        assert {"E", "A", "B", "alpha", "beta", "source"} <= set(law)
        best = law["optimum"]
        assert 6 * best["parameters"] * best["tokens"] == pytest.approx(5.76e23)
    assert found["tokens_per_parameter"] == pytest.approx(20, rel=0.1)


def test_the_plan_trains_what_the_budget_pays(document: dict) -> None:
    found, run = document["compute_optimal"], document["plans"][0]["whole_run"]
    assert document["model"]["total_parameters"] == found["parameters"]
    assert found["parameters"] == pytest.approx(found["laws"][0]["optimum"]["parameters"], rel=0.01)
    assert 6 * found["parameters"] * found["tokens"] == pytest.approx(5.76e23, rel=1e-6)
    assert run["tokens"] == pytest.approx(found["tokens"], rel=1e-4)  # whole steps
    assert any("outside the 57M to 16B" in sentence for sentence in document["assumptions"])


@pytest.mark.parametrize(("budget", "gpus", "hours"), [("500 GPU-days", 64, 12_000), ("20000 GPU-hours", 8, 20_000)])
def test_gpu_time_is_spent_by_the_plan_that_it_pays_and_not_a_step_more(budget: str, gpus: int, hours: float) -> None:
    done = toolkit("plan", "--compute-optimal", budget, "--gpus", str(gpus), "--top", "1", "--json")
    document = json.loads(done.stdout)
    run, found = document["plans"][0]["whole_run"], document["compute_optimal"]
    step = run["expected_gpu_hours"] / run["steps"]
    assert hours - 2 * step < run["expected_gpu_hours"] <= hours  # failures included
    assert found["gpu_days"] == hours / 24
    assert found["tokens"] == run["tokens"]
    assert found["flop"] == pytest.approx(6 * found["parameters"] * found["tokens"])
    best = found["laws"][0]["optimum"]  # the law's row is of the FLOP that are planned, with its own size in full
    assert found["tokens_per_parameter"] == pytest.approx(best["tokens_per_parameter"], rel=0.03)


def test_the_text_names_constants_and_sources() -> None:
    done = toolkit("plan", "--compute-optimal", "1e21", "--gpus", "8", "--top", "1")
    assert done.returncode == 0
    for words in (
        "Besiroglu et al. 2024",
        "Hoffmann et al. 2022",
        "alpha 0.3478 beta 0.3658",
        "2404.10102",
        "planned: ",
        "losses of two laws do not compare",
    ):
        assert words in done.stdout, words


def test_with_a_sweep_the_size_is_the_same_everywhere() -> None:
    done = toolkit("plan", "--compute-optimal", "1e22", "--gpus", "8..32", "--json")
    document = json.loads(done.stdout)
    assert len(document["sweep"]["counts"]) == 3
    assert {row["plan"]["whole_run"]["steps"] for row in document["sweep"]["counts"]} == {
        -(-document["compute_optimal"]["tokens"] // (1024 * 4096))
    }


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("1e24", "--params", "7B"), "--params both say what to train"),
        (("1e24", "--tokens", "1T", "--model", "gpt2"), "--model, --tokens both say"),
        (("1e24", "--method", "lora"), "the laws are of pretraining"),
        (("banana",), "not understood"),
        (("1000",), "a unit is missing"),
        (("-5",), "not understood"),
        (("1e16",), "outside what a dense shape is made for"),
        (("1e30",), "outside what a dense shape is made for"),
        (("100 GPU-days", "--gpus", "8..64"), "GPU time buys another number of FLOP"),
        (("",), "not understood"),
    ],
)
def test_contradictions_are_sentences(argv: tuple[str, ...], words: str) -> None:
    gpus = () if "--gpus" in argv else ("--gpus", "64")
    done = toolkit("plan", "--compute-optimal", *argv, *gpus)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert words in done.stderr


def test_gpus_are_asked_for() -> None:
    for budget in ("1e24", "100 GPU-days"):
        done = toolkit("plan", "--compute-optimal", budget)
        assert done.returncode == 2 and "--gpus is missing" in done.stderr
