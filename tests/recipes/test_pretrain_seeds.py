"""Pretraining begins all random numbers with the seed of the contract: torch's, Python's and NumPy's."""

import hashlib
import json
import pickle
import random
from pathlib import Path

import msgspec
import numpy as np

from recipes.pretrain import config
from tests.killing import ranks
from tests.recipes.test_pretrain import pretrain_plan, write
from toolkit.runtime.together import Group


def states() -> dict[str, str]:
    import torch
    from megatron.core import tensor_parallel

    found = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state().numpy()}
    tracked = tensor_parallel.get_cuda_rng_tracker().get_states()
    found |= {f"megatron {name}": state.cpu().numpy() for name, state in tracked.items()}
    return {name: hashlib.sha256(pickle.dumps(state)).hexdigest() for name, state in found.items()}


def test_every_kind_of_random_number_begins_with_the_seed(tmp_path: Path) -> None:
    """Whatever has drawn before: libraries do while they are imported, and each checkpoint holds all these states."""
    from recipes.pretrain import machine, model  # once, before the processes are forked

    _, plan_file, _, core_file = write(tmp_path, pretrain_plan(processes=1))
    plan, core, _ = config.load(Path(plan_file), Path(core_file))
    seeds = [7, 7, 8]

    def build(group: Group) -> None:
        import torch

        cpus = machine.on_cpu()
        random.seed(group.rank)  # all stand elsewhere in each of them
        np.random.seed(group.rank)
        torch.manual_seed(group.rank)
        store = f"file://{tmp_path}/store-{group.rank}"
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        training = msgspec.structs.replace(core.training, seed=seeds[group.rank])
        model.build(msgspec.structs.replace(core, training=training), cpus, plan.model.vocab_size)
        (tmp_path / f"states-{group.rank}").write_text(json.dumps(states()))

    assert ranks.run(build, ["here"] * len(seeds)) == [0, 0, 0]
    one, same, other = (json.loads((tmp_path / f"states-{number}").read_text()) for number in range(3))
    assert {"python", "numpy", "torch"} < set(one)
    assert one == same
    assert [name for name in one if one[name] == other[name]] == []
