"""What must hold of the ranks of one run, whatever the numbers: samples, copies, ties, random states, batch norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolkit.verify.parity.traces import Run

SHOWN = 3  # names in a sentence


@dataclass(frozen=True)
class Check:
    """One rule and, where it is broken, what was found."""

    name: str
    problem: str = ""
    step: int = 0

    @property
    def holds(self) -> bool:
        """Nothing was found."""
        return not self.problem


def checks(one: Run, other: Run) -> list[Check]:
    """Every rule, once; ``one`` is the reference of a single process."""
    rules: tuple[tuple[str, Callable[[Run, Run], Iterator[tuple[int, str]]]], ...] = (
        ("steps", _steps),
        ("batch_norm", _batch_norm),
        ("samples", _samples),
        ("copies", _copies),
        ("tied", _tied),
        ("dropout", _dropout),
    )
    found = []
    for name, rule in rules:
        step, problem = next(rule(one, other), (0, ""))
        found.append(Check(name, problem, step))
    return found


def _steps(one: Run, other: Run) -> Iterator[tuple[int, str]]:
    if one.steps != other.steps:
        yield (
            min(one.steps, other.steps) + 1,
            f"one process takes {one.steps} optimizer steps, {len(other.ranks)} take {other.steps}: a last window of"
            " accumulation that is not full is dropped or stepped on in one of them; count steps with ceil, and divide"
            " by the tokens that the window has",
        )


def _batch_norm(_: Run, other: Run) -> Iterator[tuple[int, str]]:
    names = other.ranks[0]["batch_norms"]  # those that are not synchronised
    if names and len(other.samples(1)) > 1:
        yield (
            0,
            f"BatchNorm in {_some(names)} normalises over the samples of its own rank, so one process and several are"
            " not expected to agree: use SyncBatchNorm (--sync-batch-norm of the program, also for ranks with unequal"
            " numbers of samples), or GroupNorm, and compare again",
        )


def _samples(one: Run, other: Run) -> Iterator[tuple[int, str]]:
    for step in range(other.first + 1, min(one.steps, other.steps) + 1):
        wanted = Counter(each for part in one.samples(step).values() for each in part)
        parts = other.samples(step)
        for rank in range(len(other.ranks)):
            place = other.place(rank)
            if Counter(other.line(rank, step)["samples"]) != Counter(parts[place["dp"]]):
                yield step, f"rank {rank} reads other samples than the ranks of its tensor, pipeline or context group"
        read = Counter(each for part in parts.values() for each in part)
        foreign, missing, total = sum((read - wanted).values()), sum((wanted - read).values()), sum(read.values())
        if read == wanted:
            continue
        what = _labels_alone(wanted, read)
        if what:
            yield step, what
        if not set(read) - set(wanted) and foreign:
            yield (
                step,
                f"{foreign} of {total} samples are read by several ranks, and {missing} of the single process's by"
                " none: the sampler does not know its rank, or the number of ranks",
            )
        yield (
            step,
            f"the ranks together read {total} samples, {foreign} of them not in the single process's batch"
            f" of {sum(wanted.values())}, {missing} of which are missing: another seed or order, a data set cut to a"
            " multiple of the ranks before it is shuffled, or another global batch",
        )


def _labels_alone(wanted: Counter[str], read: Counter[str]) -> str:
    """The same tokens with other labels, or with other positions or another attention mask."""

    def parts(samples: Counter[str], number: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for each, count in samples.items():
            found[".".join(each.split(".")[:number])] += count
        return found

    if parts(wanted, 1) != parts(read, 1):
        return ""
    if parts(wanted, 2) != parts(read, 2):
        return (
            "the ranks read the same tokens with other labels: tokens are masked in one of the runs and learnt in the"
            " other (padding that is the end token, prompts, padding on another side)"
        )
    return (
        "the ranks read the same tokens and labels with other positions or another attention mask: documents that are"
        " packed into one sequence see one another in one of the runs, or padding is seen"
    )


def _copies(_: Run, other: Run) -> Iterator[tuple[int, str]]:
    for step in range(other.first, other.steps + 1):
        drifted = list(other.disagreements("weights", step))
        ties = {name for group in other.ranks[0]["tied"] for name in group}
        drifted = [(name, ranks) for name, ranks in drifted if not (name in ties and _over(other, ranks) == {"pp"})]
        if drifted:
            axes = sorted(set().union(*(_over(other, ranks) for _, ranks in drifted)))
            names = [name for name, _ in drifted]
            yield (
                step,
                f"ranks that differ in {', '.join(axes)} no longer hold the same {_some(names)}: gradients of"
                f" {'all' if len(names) == len(other.line(0, step)['weights']) else 'these'} are not reduced over"
                f" {', '.join(axes)}" + (", or the ranks start from different weights" if step == 0 else ""),
            )


def _tied(_: Run, other: Run) -> Iterator[tuple[int, str]]:
    if not other.ranks[0]["tied"]:
        return
    for step in range(other.first, other.steps + 1):
        for name, ranks in other.disagreements("weights", step):
            if _over(other, ranks) == {"pp"}:
                yield (
                    step,
                    f"{name} is tied to the output layer, and the first and the last pipeline stage hold different"
                    " values of it: their gradients are not summed over the embedding group",
                )


def _dropout(_: Run, other: Run) -> Iterator[tuple[int, str]]:
    ranks = range(len(other.ranks))
    for a in ranks:
        for b in range(a):
            apart = {axis for axis, place in other.place(a).items() if place != other.place(b)[axis]}
            first, second = other.ranks[a]["draws"], other.ranks[b]["draws"]
            if apart == {"tp"}:
                if first["outside"] != second["outside"]:
                    yield (
                        0,
                        f"tensor-parallel ranks {b} and {a} draw different random numbers outside of tensor-parallel"
                        " regions, where they hold the same activations and must drop the same: seed them alike",
                    )
                if first["inside"] == second["inside"]:
                    yield (
                        0,
                        f"tensor-parallel ranks {b} and {a} draw the same random numbers inside of tensor-parallel"
                        " regions, where each has its own heads: seed them with the tensor-parallel rank"
                        " (model_parallel_cuda_manual_seed)",
                    )
            elif "dp" in apart and other.ranks[a]["dropouts"] and first["outside"] == second["outside"]:
                yield (
                    0,
                    f"data-parallel ranks {b} and {a} draw the same random numbers for the dropout of"
                    f" {_some(other.ranks[a]['dropouts'])}: their samples are different and lose the same units; add"
                    " the data-parallel rank to the seed after the weights are initialised",
                )


def _over(run: Run, ranks: list[int]) -> set[str]:
    """The axes along which these ranks differ and hold different values."""
    places = [run.place(rank) for rank in ranks]
    return {axis for axis in places[0] if len({place[axis] for place in places}) > 1 and axis != "ep"} or {"ep"}


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
