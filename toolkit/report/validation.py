"""Tables of a validation: errors by group, intervals, choices, verdicts, fits, and what was skipped.

Draws what the document says.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from toolkit.report.tables import Column, draw, fits

LONGEST = 26  # characters of a word in a name
_COLUMNS = ("runs", "median", "p90", "worst", "bias", "rank", "held")


def show(out: Console, found: dict[str, Any], brief: bool = False) -> None:
    """Coverage, the summary, the reasons of skipped rows, and what else was asked for."""
    coverage, summary = found["coverage"], found["summary"]
    complete, scored = coverage["complete_rows"], coverage["complete_rows_scored"]
    share = f"{scored / complete:.1%}" if complete else "none"
    out.print(
        f"{coverage['scored']:,} of {coverage['rows']:,} rows scored; {share} of the {complete:,} that state model, "
        f"GPUs, strategy, batch, sequence and a measurement; calibration '{found['calibration']}'",
        markup=False,
    )
    _table(out, "", {"all": summary["all"], "recommended": summary["recommended"]})
    if not brief:
        for title in ("by_framework", "by_accelerator", "by_source"):
            _table(out, title.replace("_", " "), summary[title])
        _skipped(out, summary["all"]["skipped"]["reasons"])
    out.print(
        "error: (predicted - measured) / measured; bias: its median; rank: Spearman's coefficient within groups that "
        "differ only in strategy;\nheld: share of measurements inside the 80% interval, made without the run's source",
        markup=False,
    )
    for name, values in (("all", summary["all"]), ("recommended", summary["recommended"])):
        _sentences(out, name, values)
    if "fit" in found:
        _fits(out, found["fit"])
    if "experts" in found:
        _experts(out, found["experts"], brief)


def _sentences(out: Console, name: str, values: dict[str, Any]) -> None:
    time, memory = values["step_time"], values["peak_memory"]
    parts = []
    for what, errors in (("time", time), ("memory", memory)):
        bars = errors["interval80"]
        if bars["rows"]:
            parts.append(
                f"80% intervals of {what} hold {bars['share_held']:.1%} of {bars['rows']:,} runs in source-wise "
                f"cross-validation, {bars['share_held_by_runs_of_all_sources']:.1%} in run-wise"
            )
    choice = time["choice"]
    if choice["groups"]:
        parts.append(
            f"the strategy picked in each of {choice['groups']:,} groups is {choice['mean_regret']:.1%} slower than "
            f"the best measured (worst {choice['max_regret']:.0%})"
        )
    if choice["pairs"]:
        parts.append(f"{choice['pairs_in_order']:.0%} of {choice['pairs']:,} pairs are in the right order")
    verdicts = values["verdicts"]
    if verdicts["called_fit"]:
        parts.append(
            f"{verdicts['share_of_fits_contradicted']:.1%} of {verdicts['called_fit']:,} 'fits' went out of memory"
        )
    if parts:
        out.print(f"{name}: {'; '.join(parts)}", markup=False)


def _table(out: Console, title: str, groups: dict[str, Any]) -> None:
    """Time, memory and verdicts in one table, or one under the other where a line is too short for all."""
    name = Column(title, "left", wraps=True)
    parts = [
        [Column(f"{kind}\n{head}" if not index else f"\n{head}") for index, head in enumerate(_COLUMNS)]
        for kind in ("time", "memory")
    ]
    parts.append([Column("verdicts\nwrong"), Column("rows\nskipped")])
    rows: list[tuple[str, list[list[str]]]] = []
    for group, values in groups.items():
        verdicts = values["verdicts"]
        wrong = verdicts["oom_called_fit"] + verdicts["fit_called_no"]
        judged = f"{wrong} of {verdicts['rows']}" if verdicts["rows"] else "-"
        last = [judged, str(values["skipped"]["rows"] or "-")]
        rows.append((_named(group), [_cells(values["step_time"]), _cells(values["peak_memory"]), last]))
    together = [name, *(column for part in parts for column in part)]
    lines = [[group, *(cell for part in cells for cell in part)] for group, cells in rows]
    if fits(out, together, lines):
        draw(out, together, lines)
        return
    for place, part in enumerate(parts):
        draw(out, [name, *part], [[group, *cells[place]] for group, cells in rows])


def _named(group: str) -> str:
    """The name of a group in words that a column takes: long ones are parted after a stroke or a hyphen."""
    words = []
    for word in (group or "(not stated)").split():
        while len(word) > LONGEST:
            cut = max(word.rfind(mark, 8, LONGEST) for mark in "-/_,") + 1 or LONGEST
            words.append(word[:cut])
            word = word[cut:]
        words.append(word)
    return " ".join(words)


def _cells(errors: dict[str, Any]) -> list[str]:
    if not errors["rows"]:
        return ["-"] * len(_COLUMNS)
    rank, held = errors["rank_correlation"], errors["interval80"]["share_held"]
    return [
        f"{errors['rows']:,}",
        f"{errors['median_abs_relative_error']:.1%}",
        f"{errors['p90_abs_relative_error']:.1%}",
        f"{errors['worst_abs_relative_error']:.0%}",
        f"{errors['bias']:+.1%}",
        "-" if rank is None else f"{rank:.2f}",
        "-" if held is None else f"{held:.0%}",
    ]


def _skipped(out: Console, reasons: dict[str, int]) -> None:
    if not reasons:
        return
    out.print(Text("skipped", style="bold"))
    for reason, count in reasons.items():
        out.print(f"  {count:,}: {reason}", markup=False)


def _fits(out: Console, fits: dict[str, Any]) -> None:
    for subject, found in fits.items():
        words = subject.replace("_", " ")
        columns = [Column("left out", "left", wraps=True), Column("runs")]
        for way in ("stated", "fitted", "fitted without it"):
            columns += [Column(f"{way}\nmedian"), Column("\np90")]
        rows = [
            [
                _named(name),
                f"{errors['rows']:,}",
                *(
                    f"{errors[way][f'{share}_abs_relative_error']:.1%}"
                    for way in ("stated", "fitted", "left_out")
                    for share in ("median", "p90")
                ),
            ]
            for name, errors in ({"each in turn": found["all"]} | found["by_source"]).items()
        ]
        draw(out, columns, rows, f"fit of {words}")
        columns = [Column("", "left", called="coefficient")]
        columns += [Column(head) for head in ("stated", "fitted")]
        columns += [
            Column("error"),
            Column("low", spare=2),
            Column("high", spare=1),
            Column("runs"),
            Column("sources", spare=3),
        ]
        rows = [
            [
                name,
                *(f"{each[key]:.4g}" for key in ("stated", "fitted", "standard_error", "low", "high")),
                f"{each['rows']:,}",
                str(len(each["sources"])),
            ]
            for name, each in found["coefficients"].items()
        ]
        draw(out, columns, rows, f"coefficients of {words}")


def _experts(out: Console, found: dict[str, Any], brief: bool) -> None:
    out.print(
        f"{found['strategies']:,} published strategies of {found['jobs']:,} jobs: the planner's best of the same "
        f"family is predicted no slower than {found['no_slower']:,}, slower than {found['slower_without_excuse']:,}, "
        f"slower than {found['slower_with_excuse']:,} that it does not allow; {found['nothing_fits']:,} "
        "where nothing fits by its estimates and rules, although they ran",
        markup=False,
    )
    for cause, count in found["nothing_fits_because"].items():
        out.print(f"  {count:,}: {cause}", markup=False)
    if brief:
        return
    for each in found["list"]:
        published, chosen = each["published"], each["chosen"]
        head = f"{each['model']}, {each['gpus']:,} x {each['accelerator']}, batch {each['global_batch_size']:,}"
        out.print(Text(f"{head} ({each['ids'][0]}, {each['source']})", style="bold"))
        out.print(
            f"  published  {published['strategy']}: {published['predicted_seconds']:.3g} s predicted, "
            f"{each['measured_seconds']:.3g} s measured",
            markup=False,
        )
        if chosen is None:
            out.print("  chosen     nothing fits", markup=False)
        elif not each["differs"]:
            out.print("  chosen     the same", markup=False)
        else:
            reasons = ", ".join(each["why"]) or "no part by more than 0.2%"
            out.print(
                f"  chosen     {chosen['strategy']}: {chosen['predicted_seconds']:.3g} s ({-each['gain']:+.1%}): "
                f"{reasons}",
                markup=False,
            )
        if each["excuse"]:
            out.print(f"  note       {each['excuse']}", markup=False)
