"""Whether the ranks together read what one process reads: the same samples, labels and order of epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from toolkit.verify.parity.traces import Run


def samples(one: Run, other: Run) -> Iterator[tuple[int, str]]:
    """The ranks together read what one process reads, each of it once, and with the same labels."""
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
        order = _epochs(one, other, step)
        if order:
            yield step, order
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


def _epochs(one: Run, other: Run, step: int) -> str:
    """Whether the two part where an epoch ends, and what the several read there."""
    wanted, read = (_stream(run, step) for run in (one, other))
    epoch = _first_repeat(read)
    if epoch is None or _first_repeat(wanted) != epoch or read[:epoch] != wanted[:epoch]:
        return ""
    again = next((n for n, (a, b) in enumerate(zip(read[epoch:], read, strict=False)) if a != b), len(read) - epoch)
    if again < len(read) - epoch:
        return (
            f"the epoch of {epoch} samples is filled up with {again} of its start, which are read twice, to make it a"
            " multiple of ranks or micro-batches"
        )
    return (
        f"the second epoch begins in the order of the first ({again} samples of {epoch} so far): the sampler is not"
        " told the epoch (set_epoch), or the epoch is filled up with samples of its start"
    )


def _stream(run: Run, step: int) -> list[str]:
    """All samples up to a step in the order of the data: micro-batch by micro-batch, in each rank by rank."""
    found: list[str] = []
    ranks = {run.place(rank)["dp"]: rank for rank in reversed(range(len(run.ranks)))}
    for each in range(run.first + 1, step + 1):
        parts = {rank: run.line(rank, each)["samples"] for rank in ranks.values()}
        windows = max(1, *(len(run.line(rank, each)["micro"]) for rank in range(len(run.ranks))))
        for window in range(windows):
            for _, rank in sorted(ranks.items()):
                size = len(parts[rank]) // windows
                found += parts[rank][window * size : (window + 1) * size]
    return found


def _first_repeat(stream: list[str]) -> int | None:
    """How many samples come before one that was read before."""
    seen: set[str] = set()
    for number, sample in enumerate(stream):
        if sample in seen:
            return number
        seen.add(sample)
    return None
