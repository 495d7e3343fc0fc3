"""Real runs on indexed tokens, to a Hugging Face model, and on from one."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from recipes.pretrain.reports import IDENTITY, _restore
from tests.recipes.test_pretrain import LOSS, ROOT, STEPS, pretrain_plan, start, write
from tests.recipes.test_pretrain_data import corpus, prepared
from toolkit.runtime import checkpoint, telemetry

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]


def planned(dataset, processes=1, model="", tokenizer="byte", **strategy):
    plan = pretrain_plan(processes=processes, **strategy)
    changes = {"dataset": str(dataset), "tokenizer": tokenizer, "model": model or plan.contract.model}
    return msgspec.structs.replace(plan, contract=msgspec.structs.replace(plan.contract, **changes))


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    done = prepared(corpus(folder), folder / "tokens", "--workers", "1")
    assert done.returncode == 0, done.stderr
    return folder / "tokens"


@pytest.fixture(scope="module")
def single(prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    said = start(folder, planned(prefix), 1, "--eval-steps", "2")
    assert said.count("held-out loss") == 3  # after 2, 4 and at the end
    return folder


def test_two_ranks_learn_the_same_from_the_same_tokens(tmp_path, prefix, single, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    made = planned(prefix, 2, zero_stage=1)
    start(tmp_path, made, 2, "--max-steps", "2")
    start(tmp_path, made, 2)
    one, two = (telemetry.read_steps(folder / "run") for folder in (single, tmp_path))
    assert [step.step for step in two] == list(range(1, STEPS + 1))
    assert max(abs(a.loss - b.loss) for a, b in zip(one, two, strict=True)) <= LOSS
    ends = [checkpoint.finished(folder / "run") for folder in (single, tmp_path)]
    assert abs(ends[0]["held_out_loss"] - ends[1]["held_out_loss"]) <= LOSS
    facts = checkpoint.facts(tmp_path / "run" / f"checkpoint-{STEPS}")
    assert facts["samples_seen"] == 8 * STEPS
    assert facts["data_sha256"] == json.loads((prefix.parent / "tokens.json").read_text())["sha256"]
    # one wandb run over both starts
    identity = (tmp_path / "run" / IDENTITY).read_text()
    assert facts[IDENTITY] == checkpoint.facts(tmp_path / "run" / "checkpoint-2")[IDENTITY] == identity
    runs = list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len(runs) == 2 and all(path.name.endswith(identity) for path in runs)
    (tmp_path / "run" / IDENTITY).unlink()
    _restore(tmp_path / "run")
    assert (tmp_path / "run" / IDENTITY).read_text() == identity


def test_the_model_is_what_was_trained_and_a_run_goes_on_from_it(tmp_path, prefix, single):
    import numpy as np
    import torch
    import transformers

    from recipes.pretrain.data import Windows

    folder = single / "run" / "model"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = Windows(np.fromfile(f"{prefix}-held-out.bin", np.uint16), 32, None)
    rows = torch.from_numpy(np.stack([tokens.sample(index) for index in range(min(32, len(tokens)))]))
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    theirs = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
    ours = checkpoint.finished(single / "run")["held_out_loss"]
    assert abs(theirs - ours) <= LOSS
    assert transformers.AutoTokenizer.from_pretrained(folder).encode("ab") == [97, 98]

    # the first learning rate is 0, so after one step the weights are those that were read
    made = planned(prefix, 2, model=str(folder), tp=2, sequence_parallel=1)
    said = start(tmp_path, made, 2, "--max-steps", "1")
    assert f"weights from {folder}" in said
    assert f"held-out loss {ours:.4f} after step 1" in said and "\nended at step 1 of " in said
    done = subprocess.run(
        [sys.executable, "-m", "recipes.pretrain.convert", "to-hf", str(tmp_path / "run" / "checkpoint-1")]
        + ["--out", str(tmp_path / "back")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    from recipes.pretrain.hugging_face.files import Weights

    first, back = Weights(folder), Weights(tmp_path / "back")
    assert first.names == back.names
    assert all(torch.equal(first.read(name), back.read(name)) for name in first.names)


def test_tokens_of_another_tokenizer_are_refused(tmp_path, prefix):
    from recipes.byte_tokenizer import ByteTokenizer

    ByteTokenizer().save_pretrained(tmp_path / "saved")
    arguments = write(tmp_path, planned(prefix, tokenizer=str(tmp_path / "saved")))
    done = subprocess.run(
        [sys.executable, "-m", "recipes.pretrain.train", *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "was made with the tokenizer 'byte', not with" in done.stderr
    assert "Traceback" not in done.stderr
