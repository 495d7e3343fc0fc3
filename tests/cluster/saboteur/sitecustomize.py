"""Trouble that a test orders: on PYTHONPATH by the site's setup command, so that emitted scripts stay as they are.

``trouble.json`` in the directory of submission: ``slow`` is seconds that every step of the first start takes more,
``raise`` an exception (``error``: type and text) after ``step`` on ``rank``, while it runs on ``node`` (any, if empty);
``path`` is found first by every Python on ``node``. ``samples``: each rank appends to ``samples-RANK.jsonl`` there what
it has read for each step, as digests; that is no trouble.
"""

import json
import os
import sys
import time
from pathlib import Path


def arrange(trouble):
    from toolkit.runtime.signals import StopRequest

    agreed, ordered = StopRequest.agreed, trouble.get("raise")

    def troubled(self, device="cpu", step=0):
        if "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(trouble.get("slow", 0.0))
        here = ordered and ordered.get("node", "") in ("", os.environ.get("SLURMD_NODENAME"))
        if here and (self.rank, step) == (ordered["rank"], ordered["step"]):
            kind, text = ordered["error"]
            raise {"ValueError": ValueError, "RuntimeError": RuntimeError}[kind](text)
        return agreed(self, device, step)

    StopRequest.agreed = troubled


def tell_samples(folder):
    import hashlib

    from recipes.stragglers import OwnSeconds
    from toolkit.runtime.signals import StopRequest

    reads, agreed, digests = OwnSeconds.reads, StopRequest.agreed, []

    def noted(self, batches):
        for batch in reads(self, batches):
            tokens = batch["input_ids" if "input_ids" in batch else "tokens"]
            digests.append(hashlib.sha256(tokens.cpu().numpy().tobytes()).hexdigest()[:16])
            yield batch

    def told(self, device="cpu", step=0):
        if digests:
            with (folder / f"samples-{self.rank}.jsonl").open("a") as lines:
                lines.write(json.dumps({"step": step, "samples": digests}) + "\n")
            digests.clear()
        return agreed(self, device, step)

    OwnSeconds.reads, StopRequest.agreed = noted, told


file = Path(os.environ.get("SLURM_SUBMIT_DIR", "/nowhere")) / "trouble.json"
if file.exists():
    ordered = json.loads(file.read_text())
    if "path" in ordered and ordered["node"] == os.environ.get("SLURMD_NODENAME"):
        sys.path.insert(0, ordered["path"])
    if "RANK" in os.environ:  # a process of the program, not torchrun
        arrange(ordered)
        if ordered.get("samples"):
            tell_samples(file.parent)
