"""What must hold of the ranks of one run, whatever the numbers: samples, copies, ties, random states, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolkit.verify.parity.order import samples
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
        ("samples", samples),
        ("copies", _copies),
        ("tied", _tied),
        ("dropout", _dropout),
        ("mode", _mode),
        ("frozen", _frozen),
        ("buffers", _buffers),
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


def _copies(_: Run, other: Run) -> Iterator[tuple[int, str]]:
    for step in range(other.first, other.steps + 1):
        drifted = list(other.disagreements("weights", step))
        ties = {name for group in other.ranks[0]["tied"] for name in group}
        drifted = [(name, ranks) for name, ranks in drifted if not (name in ties and other.axes(ranks) == {"pp"})]
        if drifted:
            axes = sorted(set().union(*(other.axes(ranks) for _, ranks in drifted)))
            names = [name for name, _ in drifted]
            if step > other.first and not list(other.disagreements("gradients", step)):
                yield (
                    step,
                    f"ranks that differ in {', '.join(axes)} no longer hold the same {_some(names)}, although their"
                    " gradients agree: what a rank updates is not gathered from it, or each has another state",
                )
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
            if other.axes(ranks) == {"pp"}:
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


def _mode(_: Run, other: Run) -> Iterator[tuple[int, str]]:
    for step in range(other.first + 1, other.steps + 1):
        for rank, facts in enumerate(other.ranks):
            matters = [*facts["dropouts"], *facts["batch_norms"]]
            if matters and other.line(rank, step).get("evaluating"):
                yield (
                    step,
                    f"rank {rank} trains with its model in evaluation mode: {_some(matters)} do nothing, or use running"
                    " statistics; call train() after each evaluation",
                )


def _frozen(one: Run, other: Run) -> Iterator[tuple[int, str]]:
    mine, theirs = (run.line(0, run.first).get("frozen", {}) for run in (one, other))
    different = [name for name in mine if theirs.get(name, mine[name]) != mine[name]]
    if different:
        first, second = (held[different[0]].split()[0] for held in (mine, theirs))
        kinds = f" ({first} in one process, {second} in several)" if first != second else ""
        yield (
            other.first,
            f"weights that are not trained are others in several processes from the start{kinds}: {_some(different)};"
            " the base is loaded or cast in another precision, or comes from elsewhere",
        )
    for step in range(other.first + 1, other.steps + 1):
        for rank in range(len(other.ranks)):
            moved = other.line(rank, step).get("moved", [])
            if moved:
                yield (
                    step,
                    f"{_some(moved)} is not trained, and moves: it is in the optimizer, whose decay or old moments"
                    " reach it, or something writes to it",
                )


def _buffers(_: Run, other: Run) -> Iterator[tuple[int, str]]:
    for step in range(other.first, other.steps + 1):
        for name, ranks in other.disagreements("buffers", step):
            axes = ", ".join(sorted(other.axes(ranks)))
            yield (
                step,
                f"ranks that differ in {axes} hold different values of the buffer {name}: it follows from each rank's"
                f" own tokens; sum over {axes} what it is made of, or send it from one rank",
            )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
