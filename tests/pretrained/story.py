"""Conversations out of the shipped book, and a recipe for the pretrained model on them.

The user gives a passage, the assistant goes on with the next one: what is learnt is to go on as the book does, where
the model answers as assistants do. Passages are whole paragraphs; none is in two conversations, so what is held out
was never seen.

    python -m tests.pretrained.story FOLDER     rows.jsonl and sft-story.toml, for toolkit plan --recipe
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from recipes.finetune.documents import SAMPLE
from tests.pretrained import smollm2

CHARACTERS = 200  # of a passage at least; about 100 tokens
RECIPE = """
name = "sft-story"
version = 1
program = "finetune"
summary = "SmolLM2-135M-Instruct (4-bit weights restored) goes on with a story instead of talking about it"
source = "own: no published counterpart"
status = "verified on 2 CPU ranks: DeepSpeed ZeRO-2, fp32"
expected = "unreferenced: own data"
reference = "local-cpu 2"

[contract]
model = "{model}"
dataset = "{rows}"
sequence_length = 224
global_batch_size = 4
precision = "fp32"
method = "full"
optimizer = "adamw"
learning_rate = 1.0e-4
warmup_steps = 2
schedule = "cosine"
weight_decay = 0.0
adam_beta1 = 0.9
adam_beta2 = 0.999
gradient_clipping = 1.0
total_steps = {steps}
seed = 42
packing = true
completion_only = true
"""


def passages() -> list[str]:
    """The book in pieces of at least so many characters, cut between paragraphs."""
    found, piece = [], ""
    for paragraph in SAMPLE.read_text(encoding="utf-8").split("\n\n"):
        piece += " ".join(paragraph.split()) + "\n"
        if len(piece) >= CHARACTERS:
            found.append(piece.strip())
            piece = ""
    return found


def write(folder: Path, steps: int = 8) -> Path:
    """Rows and recipe; returns the recipe's path."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = passages()
    rows = folder / "rows.jsonl"
    with rows.open("w", encoding="utf-8") as file:
        for given, following in zip(pieces[::2], pieces[1::2], strict=False):
            asked = {"role": "user", "content": f"Go on with this story:\n\n{given}"}
            messages = [asked, {"role": "assistant", "content": following}]
            file.write(json.dumps({"messages": messages}) + "\n")
    recipe = folder / "sft-story.toml"
    recipe.write_text(RECIPE.format(model=smollm2.folder(), rows=rows.resolve(), steps=steps))
    return recipe


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
