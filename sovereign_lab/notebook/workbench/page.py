"""A bench as plain values for its page: what the buttons may do, the card, marks on lines, heat by line."""

from collections.abc import Iterator
from html import escape
from typing import Any

from sovereign_lab.measure.memory_trace import LineTraffic
from sovereign_lab.measure.mine import Edit
from sovereign_lab.notebook.workbench.bench import Bench, Earlier, State


def now(state: State) -> dict[str, str]:
    """What a bench is at, or how it ended: what changes many times in an action."""
    return {name: getattr(state, name) for name in ("action", "stage", "says", "tone")}


def page(bench: Bench) -> dict[str, Any]:
    """Everything else that the page shows besides the text, as values that JSON has."""
    state = bench.state
    card = state.card
    parent = Edit(bench.op, bench.parent_text, bench.like).variant()
    return {
        "op": bench.op,
        "name": bench.name,
        "like": bench.like,
        "parentText": bench.parent_text,
        "threads": state.threads,
        "rowsPerBlock": state.rows_per_block,
        "parentThreads": parent.threads,
        "parentRowsPerBlock": parent.rows_per_block,
        "answers": {s.question: s.answer for s in card.stages} if card else {},
        "good": card.good if card else None,
        "card": _card_html(state),
        "of": {"text": card.edit.source, "threads": card.edit.threads, "rowsPerBlock": card.edit.rows_per_block}
        if card
        else None,
        "marks": list(_marks(state)),
        "heat": heat(state.heat),
        "counted": state.counted,
        "kept": state.kept,
        "texts": [_label(earlier) for earlier in state.texts],
    }  # fmt: skip


def heat(lines: tuple[LineTraffic, ...]) -> list[dict[str, Any]]:
    """What each line does to memory, an entry a line: its requests in words, and the figures of the heat gutter.

    `sectors` and `requests` are of global memory, `share` of all its sectors, `cost` and `ideal` a request; `passes`
    are the wavefronts of shared memory and `conflicts` those that a better placement would save.
    """
    everything = sum(row.sectors for row in lines) or 1
    found = []
    for number in sorted({row.line for row in lines if row.line > 0}):
        mine = [row for row in lines if row.line == number]
        outside = [row for row in mine if row.space == "global"]
        sectors, requests = (sum(getattr(r, n) for r in outside) for n in ("sectors", "requests"))
        found.append({
            "line": number,
            "requests": requests,
            "sectors": sectors,
            "share": sectors / everything,
            "cost": sectors / requests if requests else 0.0,
            "ideal": sum(r.ideal_sectors for r in outside) / requests if requests else 0.0,
            "passes": sum(r.wavefronts for r in mine),
            "conflicts": sum(r.bank_conflicts for r in mine),
            "words": "\n".join(map(_words, mine)),
        })  # fmt: skip
    return found


def _words(row: LineTraffic) -> str:
    if row.space == "shared":
        return (
            f"shared {row.kind}: {row.requests:,} requests, {row.wavefronts:,} wavefronts, "
            f"{row.bank_conflicts:,} of them bank conflicts"
        )
    return (
        f"{row.kind}: {row.requests:,} requests, {row.sectors:,} sectors, {row.sectors_per_request:.2f} a request "
        f"where {row.ideal_sectors_per_request:.2f} would do, {row.lanes:.1f} lanes"
    )


def _marks(state: State) -> Iterator[dict[str, Any]]:
    """Errors and findings on the lines that they are about."""
    for stage in state.card.stages if state.card else ():
        for remark in stage.remarks if stage.answer == "no" else ():
            if remark.line:
                yield {"line": remark.line, "says": remark.says, "source": f"{stage.question}?"}


def _card_html(state: State) -> str:
    if state.view is None:
        return ""
    entry = state.entry._repr_html_() if state.entry else ""
    counted = f"<p>Beside the lines: counted {escape(state.counted)}.</p>" if state.heat else ""
    return state.view._repr_html_() + counted + entry


def _label(earlier: Earlier) -> str:
    return f"of {earlier.at}, {len(earlier.text.splitlines())} lines"
