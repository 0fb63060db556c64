"""The report in a terminal. Text of the study is never read as markup."""

from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tuner.report import rows, text, words
from tuner.report.evidence import Entry, Evidence, read
from tuner.report.levers import ABOUT_ANSWERS, Answer, Lever, answers, levers, not_tried
from tuner.report.limits import limit_rows

#: Columns before what stands below a trial's figures.
_INDENT = 7
#: Columns of text at the start of a trial's line.
_NAMES = 2

#: Columns of a lever's name, at most.
_LONGEST_LEVER = 32


def render(study: Path | Evidence, console: Console) -> None:
    """
    Print the report of a study, given by its directory or as read; made for 80 columns and more.

    Raises:
        InputError: It is no study, or nothing was measured yet.
    """
    evidence = read(study)
    result, named = evidence.result, evidence.named
    sim = " (simulated)" if result["source"] == "simulated" else ""
    console.print(Text(words.headline(result), style="bold"))
    console.print(Text(f"Study {result['study']}{sim}, {result['model']}. {words.counts(result)}."))
    console.print(Text(f"Spent: {words.spent(result)}."))
    for line in words.warm_start(result.get("warm_start")):
        console.print(Text(line))
    for warning in result["warnings"]:
        console.print(Text(f"Warning: {words.sentence(warning)}", style="yellow"))
    for line in words.relaxations(result):
        console.print(Text(f"  {words.sentence(line)}"))
    if named is not None:
        _named(evidence, named, console, sim)
    _answers(answers(result), console, sim)
    _print(console, _levers(levers(result), evidence.currency, sim))
    same = not_tried(result)
    if same:
        console.print(Text(f"Not tried, because every trial had the same value: {'; '.join(same)}.", style="dim"))
    _trials(evidence, console, sim)


def _named(evidence: Evidence, named: Entry, console: Console, sim: str) -> None:
    role, base = words.role_of_named(evidence.result), evidence.baseline
    console.print(Text(f"\n{role.capitalize()}{sim}: trial {named['trial']}: {text.knobs(named['configuration'])}"))
    commands = rows.scripts(evidence.commands(named["trial"]))
    for name, command in commands:
        console.print(Text(f"{name}:", style="dim"))
        console.print(Text(command, style="cyan"), soft_wrap=True)  # no padding: it has to survive copy and paste
    heads = ["", role] if base is None else ["", role, "baseline", f"{role} is"]
    figures = _table(f"Figures{sim}", heads, right=(1, 2, 3))
    for pair in rows.pairs(evidence):
        figures.add_row(*_plain(pair.name, pair.named, pair.baseline, pair.change)[: len(heads)])
    _print(console, figures)
    tails = evidence.measured
    for who, (entry, _) in tails.items():
        n = text.UNKNOWN if entry["n"] is None else f"{entry['n']:,}"
        title = f"Limits: {who}{sim}, n = {n} requests"
        limits = _table(title, ["limit", "promised", "measured", "margin", "verdict", "violations"], right=(1, 2, 3))
        for row in limit_rows(entry):
            style = "" if row.kept else "red"
            limits.add_row(*_plain(row.name, row.limit, row.value, row.margin, row.decision, row.counts), style=style)
        _print(console, limits)
    console.print(Text(f"A request is good when it is: {rows.good_means(evidence)}.", style="dim"))
    views = _table(
        f"Two views of the inter-token tail{sim}",
        ["view", "", "measured", "limit", "share above the limit"],
        right=(2, 3),
    )
    for tail in rows.tail_rows(tails):
        views.add_row(*_plain(tail.view, tail.who, tail.value, tail.limit, tail.over))
    _print(console, views)


def _answers(found: Sequence[Answer], console: Console, sim: str) -> None:
    """A sentence for each question; below it both configurations and how the one differs from the other."""
    if not found:
        return
    console.print(Text(f"\nDoes each lever pay?{sim}", style="bold"))
    console.print(Text(ABOUT_ANSWERS, style="dim"))
    for answer in found:
        console.print(Text(answer.said, style="" if answer.tried else "dim"))
        for side in answer.sides:
            below = f"{side.who}: {side.cost}; {side.basis}; {side.distinct}"
            console.print(Padding(Text(below, style="dim"), (0, 0, 0, _NAMES)))
        known = [f"{name} {text.tight(change)}" for name, change in answer.changes if change != text.UNKNOWN]
        if known:
            console.print(Padding(Text(", ".join(known)), (0, 0, 0, _NAMES)))


def _levers(found: Sequence[Lever], currency: str, sim: str) -> Table:
    """A row for each lever, which takes the room of its long name once, and below it one for each value."""
    heads = ["lever, value", "trials", "best", f"{currency} per 1,000 good", "than the best other", "n"]
    table = _table(f"What each lever is worth{sim}", heads, right=(1, 2, 5))
    # Fixed, so that only the two columns of words give way where there is little room.
    table.columns[0].width = min(_LONGEST_LEVER, max((len(row.knob) for row in found), default=1))
    table.columns[-1].width = max((len(row.n) for row in found), default=1)
    for place, row in enumerate(found):
        if place == 0 or row.knob != found[place - 1].knob:
            table.add_row(*_plain(row.knob, "", "", "", "", ""))
        best = text.UNKNOWN if row.trial is None else str(row.trial)
        table.add_row(*_plain(f"  {row.value}", str(row.trials), best, row.cost, row.difference, row.n))
    return table


def _trials(evidence: Evidence, console: Console, sim: str) -> None:
    """One line of figures a trial; below it its configuration, wrapped, and why it ended so, cut to one line."""
    found = rows.trial_rows(evidence)
    if not found:
        return
    heads = ["trial", "outcome", f"{evidence.currency}/1,000", "good/s", "load", "margin", "n"]
    lines = [heads, *([r.trial, _ending(r), r.cost, r.goodput, r.load, r.margin, r.n] for r in found)]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(heads))]
    console.print(Text(f"\nAll trials{sim}", style="bold"))
    unit = evidence.result["load"]["unit"]
    about = f"cost per 1,000 good requests; load in {unit}; margin: worst limit, below 0 is kept"
    console.print(Text(about, style="dim"))
    same = rows.shared(evidence.outcomes)
    if same:
        console.print(Text(f"Same in all: {text.knobs(same)}.", style="dim"))
    console.print(_line(heads, widths, "dim"))
    for row, line in zip(found, lines[1:], strict=True):
        style = "dim" if row.cost == text.UNKNOWN else "bold" if row.mark else ""
        console.print(_line(line, widths, style))
        mark = f"{row.mark}: " if row.mark else ""
        below = [Text(f"{mark}{row.distinct}", style=style)]
        if row.reason:
            reason = " ".join(row.reason.split())
            below.append(Text(reason, style=style, no_wrap=True, overflow="ellipsis"))
        for each in below:
            console.print(Padding(each, (0, 0, 0, _INDENT)))


def _ending(row: rows.TrialRow) -> str:
    return f"{row.outcome}, {row.sure}" if row.sure == "verified" else row.outcome


def _line(cells: Sequence[str], widths: Sequence[int], style: str) -> Text:
    """Trial and outcome to the left, figures to the right."""
    padded = []
    for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        room = " " * (width - cell_len(cell))
        padded.append(cell + room if place < _NAMES else room + cell)
    return Text("  ".join(padded).rstrip(), style=style, no_wrap=True, overflow="ellipsis")


def _table(title: str, heads: Sequence[str], right: Sequence[int]) -> Table:
    table = Table(
        title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for place, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if place in right else "left", overflow="fold", header_style="dim")
    return table


def _plain(*words: str) -> list[Text]:
    return [Text(word) for word in words]


def _print(console: Console, table: Table) -> None:
    if table.row_count:
        console.print()
        console.print(table)
