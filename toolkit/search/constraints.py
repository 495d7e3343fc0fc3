"""Rules at work: the mask of the search, the validation of one strategy, and the text of the error."""

from __future__ import annotations

from math import lcm
from typing import Any

from toolkit.context_parallel import exchanging_ranks
from toolkit.errors import Problem
from toolkit.megatron_shapes import inexpressible
from toolkit.model import ModelSpec
from toolkit.pipeline_split import IMPOSSIBLE, pipeline_split
from toolkit.search.crossing import Space
from toolkit.search.request import Request
from toolkit.search.rule import Constraint
from toolkit.search.rules import CONSTRAINTS
from toolkit.strategy import Strategy

# checked after the rules, from the estimates
MEMORY = "memory"
HOST_MEMORY = "host_memory"
METHOD = "cp_method"

SENTENCES = {
    MEMORY: "needs more memory than a GPU has",
    HOST_MEMORY: "needs more host memory than a node has",
} | {constraint.name: constraint.rule for constraint in CONSTRAINTS}


def violated(request: Request, strategy: Strategy) -> list[tuple[Constraint, Problem]]:
    """Every constraint that a scalar strategy breaks, with its sentence filled in."""
    found: list[tuple[Constraint, Problem]] = []
    for constraint in CONSTRAINTS:
        if strategy.framework not in constraint.frameworks:
            continue
        arguments = (request.model, request.cluster, request.workload, strategy)
        if not constraint.holds(*arguments):
            if constraint.name == "gpus" and any(rule.name == "data_parallel_only" for rule, _ in found):
                continue  # degrees that the framework does not have: their product says nothing more
            found.append(
                (
                    constraint,
                    Problem(_fill(constraint.sentence, request, strategy), _fill(constraint.remedy, request, strategy)),
                )
            )
    return found


def broken(request: Request, strategy: Strategy) -> Any:
    """How many rules each row of a column strategy breaks."""
    arguments = (request.model, request.cluster, request.workload, strategy)
    return sum(
        ~_column(constraint.holds(*arguments), strategy)
        for constraint in CONSTRAINTS
        if strategy.framework in constraint.frameworks
    )


class Sieve:
    """The rules as ``keep`` of :func:`toolkit.search.crossing.grow`: each one as soon as its fields are known.

    ``eliminated`` counts, for each rule, the rows of the whole product that it was the first to refuse.
    """

    def __init__(self, request: Request, space: Space, eliminated: dict[str, int]) -> None:
        self.request, self.space = request, space
        self.eliminated = eliminated
        read = [(each, _fields(each, request, space)) for each in CONSTRAINTS if space.framework in each.frameworks]
        # what depends on the method of context parallelism is asked when rows are laid out by method
        self.rules = [(each, fields) for each, fields in read if METHOD not in fields]
        self.of_method = [each for each, fields in read if METHOD in fields]
        self._due: dict[frozenset[str], list[Constraint]] = {}

    def __call__(self, strategy: Strategy, known: frozenset[str], rest: int) -> Any:
        """The rows that satisfy every rule whose last field has just become known; None where no rule is due."""
        due = self._due_now(known)
        return self._sifted(due, strategy, self.space.candidates(strategy.cp) * rest) if due else None

    def legal(self, strategy: Strategy) -> Any:
        """Of rows laid out by one method of context parallelism, those that satisfy the rules which depend on it."""
        return self._sifted(self.of_method, strategy, self.space.candidates(0 * strategy.cp))

    def _sifted(self, rules: list[Constraint], strategy: Strategy, candidates: Any) -> Any:
        alive: Any = _column(True, strategy)
        for constraint in rules:
            holds = constraint.holds(self.request.model, self.request.cluster, self.request.workload, strategy)
            removed = int(candidates[alive & ~_column(holds, strategy)].sum())
            alive &= holds
            if removed:
                self.eliminated[constraint.name] = self.eliminated.get(constraint.name, 0) + removed
        return alive

    def _due_now(self, known: frozenset[str]) -> list[Constraint]:
        if known not in self._due:
            earlier = [fields for fields in self._due if fields < known]
            self._due[known] = [
                constraint
                for constraint, reads in self.rules
                if reads <= known and not any(reads <= fields for fields in earlier)
            ]
        return self._due[known]


class _Recorder:
    """Stands for a scalar strategy of ones and remembers which of its fields were read."""

    def __init__(self, space: Space) -> None:
        self.framework = space.framework
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> int:
        self.read.add(name)
        return 1


def _fields(constraint: Constraint, request: Request, space: Space) -> frozenset[str]:
    """The fields of a strategy that a rule reads, found by asking it once."""
    asked: Any = _Recorder(space)
    constraint.holds(request.model, request.cluster, request.workload, asked)
    return frozenset(asked.read)


def _column(holds: Any, strategy: Strategy) -> Any:
    """A rule of the request alone gives one value: as many of it as there are rows."""
    import numpy

    rows: Any = strategy.dp
    return numpy.zeros(rows.shape, dtype=bool) | holds


def _tp_choices(model: ModelSpec) -> list[int]:
    heads, kv = model.num_attention_heads, model.num_key_value_heads or 1
    return [t for t in range(1, heads + 1) if heads % t == 0 and (kv % t == 0 or t % kv == 0)]


def _vpp_choices(model: ModelSpec, pp: int) -> list[int]:
    if pp == 1:
        return [1]
    layers = model.num_hidden_layers
    most = range(1, layers // pp + 2)
    return [v for v in most if v == 1 or pipeline_split(layers, pp, v).way != IMPOSSIBLE]


def _offload_remedy(s: Strategy) -> str:
    """What makes the offload that was asked for legal: the framework first, then the stage."""
    changes = ["--framework deepspeed"] if s.framework != "deepspeed" else []
    least = 3 if s.offload == 2 else 1
    if s.framework != "deepspeed" or s.zero_stage < least:
        changes.append("--zero 3" if least == 3 else "--zero 1 or more")
    return f"use {' with '.join(changes)}, or leave --offload out"


def sequence_multiple(strategy: Strategy) -> int:
    """Tokens that a (packed) sequence must be a multiple of: two chunks for each of cp ranks, whole ones for tp."""
    return strategy.cp * (lcm(2, strategy.tp) if strategy.sequence_parallel else 2)


def _fill(text: str, request: Request, strategy: Strategy) -> str:
    s = strategy
    return text.format(
        m=request.model,
        c=request.cluster,
        w=request.workload,
        s=s,
        product=s.tp * s.pp * s.cp * s.dp,
        expert_product=s.etp * s.ep * s.pp,
        unbuildable=", ".join(inexpressible(request.model)),
        batch_product=s.micro_batch_size * s.dp * s.gradient_accumulation_steps,
        offload_remedy=_offload_remedy(s),
        tp_choices=", ".join(map(str, _tp_choices(request.model))),
        vpp_choices=", ".join(map(str, _vpp_choices(request.model, s.pp))),
        sequence_multiple=sequence_multiple(s),
        exchanging=exchanging_ranks(request.model, request.cluster.fast_domain, s),
        stage_layers=pipeline_split(request.model.num_hidden_layers, s.pp, s.virtual_pipeline_stages).middle,
    )
