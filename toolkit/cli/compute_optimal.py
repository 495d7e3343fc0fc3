"""``--compute-optimal BUDGET``: a budget becomes a size and a number of tokens, and both become options of the plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.budgets import DAY, Budget, parse_budget
from toolkit.errors import Problems, ToolkitError
from toolkit.scaling_law import ComputeOptimal, ScalingLaw
from toolkit.units import format_count

if TYPE_CHECKING:
    from toolkit.cli.request import Asked
    from toolkit.search.planner import Choice

DECIDED = ("params", "model", "recipe", "tokens")  # what a budget decides, so that nobody else may
FIRST_UTILIZATION = 0.4  # of the peak, where a search for the plan's own rate begins
CLOSE_ENOUGH = 0.005  # of the budget in GPU time
MOST_ROUNDS = 12


@dataclass(frozen=True)
class Optimum:
    """A budget with what each law makes of it; the first law is followed."""

    written: str
    flop: float
    gpu_seconds: float  # 0 where the budget was FLOP
    laws: tuple[ScalingLaw, ...]
    splits: tuple[ComputeOptimal, ...]
    parameters: int  # of the shape that is planned
    tokens: int
    loss: float

    def document(self) -> dict[str, Any]:
        """``compute_optimal`` of ``--json``."""
        import msgspec

        return {
            "budget": self.written,
            "flop": self.flop,
            "gpu_days": self.gpu_seconds / DAY or None,
            "followed": self.laws[0].name,
            "parameters": self.parameters,
            "tokens": self.tokens,
            "tokens_per_parameter": self.tokens / self.parameters,
            "loss": self.loss,
            "laws": [
                msgspec.to_builtins(law) | {"optimum": msgspec.to_builtins(split)}
                for law, split in zip(self.laws, self.splits, strict=True)
            ],
        }


def chosen(options: dict[str, Any]) -> tuple[dict[str, Any], Optimum]:
    """The options with size and tokens in place of the budget; raises ToolkitError with all that contradicts it."""
    from toolkit.gpu_ranges import is_several

    budget = Budget()
    with Problems() as problems:
        given = [f"--{name}" for name in DECIDED if options.get(name)]
        if given:
            problems.add(f"--compute-optimal and {', '.join(given)} both say what to train", "give one of them")
        if options.get("method") not in (None, "full"):
            problems.add(
                f"--compute-optimal with --method {options['method']}",
                "the laws are of pretraining: leave --method out",
            )
        try:
            budget = parse_budget(options["compute_optimal"])
        except ToolkitError as error:
            problems.absorb(error)
        if budget.gpu_seconds and is_several(options.get("gpus") or ""):
            problems.add(
                "GPU time buys another number of FLOP on each number of GPUs",
                "give the budget in FLOP (1e24), or one number of GPUs",
            )
        if budget.gpu_seconds and not options.get("gpus"):
            problems.add("--gpus is missing", "say how many GPUs there are: --gpus 64, or --gpus 8x8")
    if budget.gpu_seconds:
        return _of_gpu_time(options, budget.gpu_seconds)
    return _of_flop(options, budget.flop)


def _of_flop(options: dict[str, Any], flop: float, gpu_seconds: float = 0.0) -> tuple[dict[str, Any], Optimum]:
    from toolkit.estimate.parameters import count_parameters
    from toolkit.estimate.scaling_laws import affordable_tokens, optimal_parameters
    from toolkit.registry.scaling_laws import scaling_laws
    from toolkit.registry.sizes import shape_of_size

    law = next(iter(scaling_laws().values()))
    size = round(float(f"{optimal_parameters(flop, law.A, law.B, law.alpha, law.beta):.3g}"))
    _check_size(size, flop, gpu_seconds, law)
    total = count_parameters(shape_of_size(size)).total  # what a shape really has decides what tokens it leaves
    return _trained(options, size, total, round(affordable_tokens(flop, total)), flop, gpu_seconds)


def _check_size(size: int, flop: float, gpu_seconds: float, law: ScalingLaw) -> None:
    """Raises ToolkitError where the budget leads to a size that no shape is made for: it is the budget that is wrong.

    The optimal size is a power of the budget, so the budget of the largest (or least) size follows from one point.
    """
    from toolkit.registry.sizes import LARGEST, SMALLEST

    if SMALLEST <= size <= LARGEST:
        return
    nearest = LARGEST if size > LARGEST else SMALLEST
    factor = (nearest / size) ** ((law.alpha + law.beta) / law.beta)
    way, bound = ("smaller", "at most") if size > LARGEST else ("larger", "at least")
    there = f"{factor * gpu_seconds / DAY:.2g} GPU-days" if gpu_seconds else f"{factor * flop:.2g} FLOP"
    raise ToolkitError(
        f"this budget is best spent on {format_count(size)} parameters, outside what a dense shape is made for: "
        f"{format_count(SMALLEST)} to {format_count(LARGEST)}",
        remedy=f"give a {way} budget, {bound} about {there}",
    )


def _trained(
    options: dict[str, Any], size: int, parameters: int, tokens: int, flop: float, gpu_seconds: float
) -> tuple[dict[str, Any], Optimum]:
    """The options of a size and its tokens, with what each law makes of the FLOP."""
    from toolkit.estimate.scaling_laws import compute_optimal, loss
    from toolkit.registry.scaling_laws import scaling_laws

    laws = tuple(scaling_laws().values())
    law = laws[0]
    found = Optimum(
        written=options["compute_optimal"],
        flop=flop,
        gpu_seconds=gpu_seconds,
        laws=laws,
        splits=tuple(compute_optimal(flop, each) for each in laws),
        parameters=parameters,
        tokens=tokens,
        loss=loss(parameters, tokens, law.E, law.A, law.B, law.alpha, law.beta),
    )
    return options | {"params": str(size), "tokens": str(tokens)}, found


def _of_gpu_time(options: dict[str, Any], gpu_seconds: float) -> tuple[dict[str, Any], Optimum]:
    """GPU time as FLOP, at the rate of the plan that the FLOP lead to: repeated until both agree, then never more."""
    from toolkit.cli.request import build
    from toolkit.search.planner import search

    flop = 0.0
    nearest: tuple[float, dict[str, Any], Optimum] | None = None  # sizes come in steps: both may never agree wholly
    for _ in range(MOST_ROUNDS):
        if not flop:  # the hardware is looked up with any size
            asked = build(options | {"params": "1B", "tokens": "1B"})
            peak = asked.request.cluster.accelerator.peak_flop_per_second[asked.request.workload.precision]
            flop = FIRST_UTILIZATION * peak * gpu_seconds
        planned, found = _of_flop(options, flop, gpu_seconds)
        asked = build(planned)
        choices = search(asked.request, asked.calibration, top=1).choices
        if not choices:
            return planned, found  # the command itself says why nothing fits
        takes = _gpu_seconds(asked, choices[0])
        error = abs(takes / gpu_seconds - 1.0)
        if nearest is None or error < nearest[0]:
            nearest = error, planned, found
        if error <= CLOSE_ENOUGH:
            break
        flop *= gpu_seconds / takes
    return _within(options, nearest[1], nearest[2]) if nearest else (planned, found)


def _gpu_seconds(asked: Asked, choice: Choice) -> float:
    """GPU time of the whole run, failures included where they are known and the run ends."""
    from toolkit.cli.plans import expected
    from toolkit.recipe import planned_steps

    step = choice.estimate.step.seconds
    failures = expected(asked, choice.strategy.framework, step)
    seconds = failures.run_seconds if failures is not None and failures.run_seconds else None
    return asked.request.cluster.num_gpus * (seconds or planned_steps(asked.contract) * step)


def _within(options: dict[str, Any], planned: dict[str, Any], found: Optimum) -> tuple[dict[str, Any], Optimum]:
    """The size with the most whole steps that the GPU time pays, at least one."""
    from toolkit.cli.request import build
    from toolkit.estimate.scaling_laws import training_budget_flop
    from toolkit.recipe import planned_steps
    from toolkit.search.planner import search

    asked = build(planned)
    choice = search(asked.request, asked.calibration, top=1).choices[0]
    step_tokens = asked.contract.global_batch_size * asked.contract.sequence_length
    steps = planned_steps(asked.contract)
    for _ in range(MOST_ROUNDS):
        takes = _gpu_seconds(asked, choice)
        fewer = max(math.floor(steps * found.gpu_seconds / takes), 1)
        if takes <= found.gpu_seconds and fewer <= steps:
            break
        steps = fewer if fewer != steps else max(steps - 1, 1)  # equal: the product was rounded up
        asked = build(planned | {"tokens": str(steps * step_tokens)})
        if steps == 1:
            break
    tokens = steps * step_tokens
    flop = float(training_budget_flop(found.parameters, tokens))
    return _trained(options, round(float(planned["params"])), found.parameters, tokens, flop, found.gpu_seconds)


def notes(found: Optimum) -> tuple[str, ...]:
    """What following a law assumes."""
    law = found.laws[0]
    said = [
        f"the size follows {law.title} ({law.source}); it is the best for training alone: a model that serves for "
        "long is better smaller and trained longer"
    ]
    if not law.least_parameters <= found.parameters <= law.most_parameters:
        said.append(
            f"{format_count(found.parameters)} parameters are outside the {format_count(law.least_parameters)} to "
            f"{format_count(law.most_parameters)} of the runs behind that law: an extrapolation"
        )
    return tuple(said)
