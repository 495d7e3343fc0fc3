"""A model that has really been trained: it comes out of its package whole, and fine-tuning goes on from it."""

import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import finetune_runs
from tests.pretrained import smollm2, story
from tests.pretrained.gguf import F32, Q4_1, Q8_0, TEXT, Gguf
from toolkit.runtime import checkpoint
from toolkit.runtime.telemetry import read_evaluations

PLAIN = (
    "The library was quiet that afternoon. A few students were reading near the windows, and the librarian was"
    " putting returned books back on the shelves."
)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def test_a_gguf_file_is_read_as_its_specification_says(tmp_path: Path) -> None:
    q8 = struct.pack("<e32b", 0.5, *range(-16, 16))
    q4 = struct.pack("<ee16B", 0.25, -1.0, *(low | (15 - low) << 4 for low in range(16)))
    tensors = [("plain", F32, [1, 3], struct.pack("<3f", 1, 2, 3)), ("eight", Q8_0, [32], q8), ("four", Q4_1, [32], q4)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 2)
    head += text("name") + struct.pack("<I", TEXT) + text("it") + text("list") + struct.pack("<IIQ2i", 9, 5, 2, -7, 7)
    body = b""
    for name, kind, shape, content in tensors:
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += struct.pack("<IQ", kind, len(body))
        body += content + bytes(-len(content) % 32)
    path = tmp_path / "small.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + body)
    file = Gguf(path)
    assert file.settings == {"name": "it", "list": [-7, 7]}
    found = dict(file.tensors())
    assert found["plain"].tolist() == [[1.0, 2.0, 3.0]]
    assert found["eight"].tolist() == [0.5 * q for q in range(-16, 16)]
    assert found["four"].tolist() == [0.25 * q - 1 for q in [*range(16), *range(15, -1, -1)]]


def test_the_halves_of_a_head_come_together() -> None:
    """What llama.cpp does to a matrix (convert_hf_to_gguf.py, LlamaModel.permute), and back."""
    matrix = np.arange(2 * 6 * 5, dtype=np.float32).reshape(12, 5)  # 2 heads of 6
    stored = matrix.reshape(2, 2, 3, 5).swapaxes(1, 2).reshape(12, 5)
    assert (smollm2.halves_together(stored, 2) == matrix).all() and (stored != matrix).any()


@pytest.fixture(scope="module")
def folder() -> Path:
    """Downloads the package where it was not (93 MB)."""
    return smollm2.folder()


@pytest.mark.slow
def test_the_model_knows_english_and_random_weights_do_not(folder: Path) -> None:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode(PLAIN)) == PLAIN
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("in 84")) == ["in", "Ġ", "8", "4"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008  # HuggingFaceTB/SmolLM2-135M
    drawn = transformers.AutoModelForCausalLM.from_config(model.config)
    tokens = tokenizer(PLAIN, return_tensors="pt")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        losses = [one(**tokens, labels=tokens["input_ids"]).loss.item() for one in (model, drawn)]
        answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert losses[1] > math.log(49_152) - 0.5  # as good as guessing
    assert losses[0] < 4.0  # perplexity below 55; measured 3.74
    assert "Paris" in tokenizer.decode(answer)


@pytest.mark.slow
def test_supervised_fine_tuning_goes_on_from_what_it_knows(folder: Path, tmp_path: Path) -> None:
    """135 M parameters, conversations, DeepSpeed ZeRO-2 on 2 ranks: the loss on conversations never seen falls."""
    recipe = story.write(tmp_path)
    layout = ("--cluster", "local-cpu", "--gpus", "2", "--framework", "deepspeed", "--zero", "2", "--micro-batch", "2")
    command = ("-m", "toolkit", "plan", "--recipe", str(recipe), *layout, "--out", str(tmp_path / "plan"))
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command = finetune_runs.command(tmp_path / "plan" / "plan.json", 2, "--eval-steps=8", "--save-steps=100")
    trained = subprocess.run(  # 80 s of two cores; others may want them too
        command, capture_output=True, text=True, timeout=1200, env=finetune_runs.environment()
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "134,515,008 parameters, weights from" in trained.stdout
    run = tmp_path / "plan" / "run"
    before, after = (one.held_out_loss for one in read_evaluations(run))
    assert before < 4.2  # it starts from the weights: random ones have 10.8
    assert after < before - 0.2
    finished = checkpoint.finished(run)
    assert finished is not None and finished["held_out_loss"] == after
