"""Growing the space axis by axis gives what laying it out and striking out gives, and stays small."""

import resource
import subprocess
import sys
from itertools import repeat
from typing import Any

import pytest

from tests.requests import request_for
from tests.search.whole_space import blocks, mask
from toolkit.search.candidates import spaces
from toolkit.search.constraints import Sieve
from toolkit.search.crossing import grow, ways
from toolkit.search.rules import CONSTRAINTS
from toolkit.strategy import Strategy

REQUESTS: dict[str, dict[str, Any]] = {
    "dense": {"gpus": 64},
    "odd": {"gpus": "3x8", "global_batch": 360},
    "experts": {"model": "mixtral-8x7b", "gpus": 32, "global_batch": 64},
    "one": {"gpus": 1},
    "pinned": {"gpus": 64, "pins": {"tp": 2, "virtual_pipeline_stages": 2}},
    "impossible": {"gpus": 64, "pins": {"tp": 3}},
    "adapters": {"gpus": 16, "method": "qlora"},
    "shards": {"gpus": 32, "framework": "fsdp"},
    "some layers": {"gpus": 16, "pins": {"recompute_layers": 4}},
    "uneven": {"model": "llama-3.1-405b", "gpus": 128, "framework": "megatron", "global_batch": 8, "pins": {"tp": 8}},
    "heads": {"gpus": 32, "pins": {"cp_method": 2}, "global_batch": 32},
}


def rows(blocks: list[Strategy]) -> set[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for block in blocks:
        columns = [getattr(block, name) for name in Strategy.__struct_fields__]
        found += zip(
            *(repeat(c, len(block.dp)) if isinstance(c, (str, int)) else c.tolist() for c in columns), strict=True
        )
    assert len(set(found)) == len(found)
    return set(found)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("most_rows", [50, 700, 2**18])
def test_the_same_rows_are_left_and_every_other_is_counted(name: str, most_rows: int) -> None:
    request = request_for(**REQUESTS[name])
    whole = list(blocks(request))
    expected = rows([block.select(mask(request, block, {})) for block in whole])
    eliminated: dict[str, int] = {}
    grown: list[Strategy] = []
    for space in spaces(request):
        sieve = Sieve(request, space, eliminated)
        for piece in grow(request, space, sieve, most_rows):
            grown += [way.select(sieve.legal(way)) for way, _ in ways(space, piece)]
    assert rows(grown) == expected
    total = sum(space.size for space in spaces(request))
    assert total == sum(len(block.dp) for block in whole)
    assert total == len(expected) + sum(eliminated.values())


def test_pieces_are_bounded() -> None:
    request = request_for(model="mixtral-8x7b", gpus=64, framework="megatron")
    space, *_ = spaces(request)
    assert space.size > 20_000
    for piece in grow(request, space, lambda strategy, known, rest: None, most_rows=1000):
        assert len(piece.dp) <= 1000


def test_each_rule_is_asked_once_and_with_its_fields_known() -> None:
    request = request_for(model="mixtral-8x7b", gpus=64, framework="megatron")
    for space in spaces(request):
        sieve = Sieve(request, space, {})
        list(grow(request, space, sieve))
        due = [constraint.name for rules in sieve._due.values() for constraint in rules]
        due += [constraint.name for constraint in sieve.of_method]
        assert sorted(due) == sorted(each.name for each in CONSTRAINTS if space.framework in each.frameworks)


def test_a_space_of_billions_is_searched_in_seconds_and_little_memory() -> None:
    """15,120 GPUs, 720 layers, 720 experts: laid out whole, it would be 4.7e9 rows."""
    code = """
import msgspec
from tests.requests import request_for
from toolkit.registry.calibrations import load_calibration
from toolkit.search.planner import search
request = request_for(model="mixtral-8x7b", gpus="1890x8", global_batch=5040)
model = msgspec.structs.replace(request.model, num_hidden_layers=720, num_experts=720, num_attention_heads=720,
    num_key_value_heads=720, hidden_size=5040, head_dim=7, intermediate_size=5040, moe_intermediate_size=5040)
result = search(msgspec.structs.replace(request, model=model), load_calibration(), 1)
print(result.total, result.feasible + sum(result.eliminated.values()))
"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    limited = f'ulimit -v 3000000; exec {sys.executable} -c "$0"'
    done = subprocess.run(["bash", "-c", limited, code], capture_output=True, text=True, timeout=60, check=True)
    total, counted = map(int, done.stdout.split())
    assert total == counted > 10**9
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10.0
