"""What a framework's own checkpoint lacks, by the names of its files: a rank that never wrote has no file to be broken.

DeepSpeed       zero_pp_rank_D_mp_rank_M_{optim,model}_states.pt: all D x M from 0 on, of both kinds as many as
                ``dp_world_size`` in mp_rank_00_model_states.pt says
Hugging Face    the shards of an index, trainer_state.json (written last), rng_state_R.pth of each rank, the optimizer
torch, Megatron .metadata (written last), each file it names with its length; metadata.json and common.pt beside it
Megatron, older mp_rank_TT[_PPP] for each rank, each with its files
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

from toolkit.runtime import soundness
from toolkit.runtime.manifest import Damage

ZERO = re.compile(r"(\w*?)zero_pp_rank_(\d+)_mp_rank_(\d+)_(optim|model)_states\.pt")
MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
RANDOM = re.compile(r"rng_state_(\d+)\.pth")
OF = re.compile(r"(.+)-(\d+)-of-(\d+)\.(safetensors|bin)")
OLD_MEGATRON = re.compile(r"mp_rank_(\d+)(?:_(\d+))?")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "global_step*", "pytorch_model_fsdp*")


def missing(root: Path, names: list[str], kind: str = "") -> list[Damage]:
    """What is not there, for the files ``names`` of the checkpoint ``root``, of a kind as in found.py."""
    by_folder: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folder, _, last = name.rpartition("/")
        by_folder[folder].append(last)
    found: list[Damage] = []
    for folder, mine in by_folder.items():
        where = f"{folder}/" if folder else ""
        found += _deepspeed(root / folder, where, mine)
        found += _indexed(root / folder, where, mine)
        found += _distributed(root / folder, where, mine)
    found += _hugging_face(root, by_folder[""]) if kind == "huggingface" else []
    found += _old_megatron(root, by_folder)
    return list({(each.file, each.kind): each for each in found}.values())


def _gone(name: str, why: str) -> Damage:
    return Damage(name, "missing", why)


def _deepspeed(folder: Path, where: str, names: list[str]) -> list[Damage]:
    shards = [match for name in names if (match := ZERO.fullmatch(name))]
    plain = sorted(int(match[1]) for name in names if (match := MODEL.fullmatch(name)))
    if not shards and not plain:
        return []
    if (folder / "zero").is_dir():  # the universal form: no shards, a folder for each weight
        weights = sorted(path.name for path in (folder / "zero").iterdir() if path.is_dir())
        bare = [name for name in weights if not (folder / "zero" / name / "fp32.pt").is_file()]
        return [_gone(f"{where}zero/{name}/fp32.pt", "the weight itself") for name in bare]
    ranks = max((int(match[2]) + 1 for match in shards), default=0)
    models = max([int(match[3]) + 1 for match in shards] + [each + 1 for each in plain], default=0)
    for name in names:
        if MODEL.fullmatch(name) or (ZERO.fullmatch(name) and name.endswith("_model_states.pt")):
            facts = soundness.facts_in(folder / name)
            ranks = max(ranks, facts.get("dp_world_size", 0) if shards else 0)
            models = max(models, facts.get("mp_world_size", 0))
            break
    found = []
    kinds = sorted({(match[1], match[4]) for match in shards})
    if not plain and not any(kind == "model" for _, kind in kinds):
        found.append(_gone(f"{where}mp_rank_00_model_states.pt", "no file with the model's states"))
    if any(kind == "model" for _, kind in kinds) and not any(kind == "optim" for _, kind in kinds):
        kinds.append(("", "optim"))
    for prefix, kind in kinds:
        for rank in range(ranks):
            for model in range(models):
                name = f"{prefix}zero_pp_rank_{rank}_mp_rank_{model:02d}_{kind}_states.pt"
                if name not in names:
                    found.append(_gone(where + name, f"the share of data-parallel rank {rank} of {ranks}"))
    for model in range(models if plain else 0):
        if model not in plain:
            found.append(_gone(f"{where}mp_rank_{model:02d}_model_states.pt", f"model rank {model} of {models}"))
    return found


def _indexed(folder: Path, where: str, names: list[str]) -> list[Damage]:
    wanted: dict[str, str] = {}
    for name in names:
        if name.endswith((".safetensors.index.json", ".bin.index.json")):
            try:
                shards = json.loads((folder / name).read_bytes())["weight_map"].values()
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # told by soundness, if it is no JSON
            wanted |= {str(shard): f"{name} names it" for shard in shards}
        elif match := OF.fullmatch(name):
            width = len(match[2])
            for number in range(1, int(match[3]) + 1):
                wanted[f"{match[1]}-{number:0{width}d}-of-{match[3]}.{match[4]}"] = f"shard {number} of {int(match[3])}"
    numbers = {int(match[1]) for name in names if (match := RANDOM.fullmatch(name))}
    wanted |= {f"rng_state_{rank}.pth": f"random state of rank {rank}" for rank in range(max(numbers, default=-1) + 1)}
    return [_gone(where + name, why) for name, why in wanted.items() if name not in names]


def _distributed(folder: Path, where: str, names: list[str]) -> list[Damage]:
    shards = [name for name in names if name.endswith(".distcp")]
    megatron = "common.pt" in names or "metadata.json" in names
    if not shards and not megatron and ".metadata" not in names:
        return []
    found = [] if ".metadata" in names else [_gone(f"{where}.metadata", "it is written last and names all shards")]
    if megatron:
        for name in ("common.pt", "metadata.json"):
            found += [] if name in names else [_gone(where + name, "megatron-core writes it beside the shards")]
    if ".metadata" not in names:
        return found
    try:
        lengths = soundness.shards_of(folder, ".metadata")
    except (OSError, ValueError):
        return found  # told by soundness
    for name, least in lengths.items():
        if name not in names:
            found.append(_gone(where + name, ".metadata names it"))
        elif (size := (folder / name).stat().st_size) < least:
            found.append(Damage(where + name, "truncated", f"{size:,} bytes, .metadata needs {least:,}"))
    return found


def _hugging_face(root: Path, names: list[str]) -> list[Damage]:
    found = []
    if "trainer_state.json" not in names:
        found.append(_gone("trainer_state.json", "the Trainer writes it last: the save was not finished"))
    if not any(next(root.glob(pattern), None) for pattern in WEIGHTS):
        found.append(_gone("model.safetensors", "no weights of any kind"))
    inner = sorted(path.name for path in root.glob("global_step*") if path.is_dir())
    if not inner and not any(root.glob("optimizer*")):
        # save_only_model leaves them out on purpose
        said = "no states of an optimizer: the Trainer goes on with new ones, and says nothing"
        found.append(Damage("optimizer.pt", "unknown", said))
    for rank in range(_ranks(root / inner[-1]) if inner and any(RANDOM.fullmatch(name) for name in names) else 0):
        if f"rng_state_{rank}.pth" not in names:
            found.append(_gone(f"rng_state_{rank}.pth", f"random state of rank {rank}"))
    if inner:
        named = (root / "latest").read_text().strip() if "latest" in names else ""
        if named not in inner:
            said = f"names {named!r}" if named else "is missing"
            found.append(Damage("latest", "pointer", f"{said}: DeepSpeed finds nothing until it holds {inner[-1]}"))
    return found


def _ranks(folder: Path) -> int:
    """Data-parallel ranks that saved a checkpoint of DeepSpeed; 0 where no file tells."""
    facts = (soundness.facts_in(path) for path in sorted(folder.glob("*mp_rank_00_model_states.pt")))
    return next((each["dp_world_size"] for each in facts if "dp_world_size" in each), 0)


def _old_megatron(root: Path, by_folder: dict[str, list[str]]) -> list[Damage]:
    places = {
        (int(match[1]), int(match[2] or 0)): (folder, match[2])
        for folder in by_folder
        if (match := OLD_MEGATRON.fullmatch(folder))
    }
    if not places:
        return []
    tp, pp = (max(place[axis] for place in places) + 1 for axis in (0, 1))
    several = any(second is not None for _, second in places.values())
    files = set.union(*(set(by_folder[folder]) for folder, _ in places.values()))
    found = []
    for first in range(tp):
        for second in range(pp):
            folder = f"mp_rank_{first:02d}" + (f"_{second:03d}" if several else "")
            mine = set(by_folder.get(folder, ()))
            found += [_gone(f"{folder}/{name}", "other ranks have it") for name in sorted(files - mine)]
    return found
