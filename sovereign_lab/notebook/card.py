"""The card of a trial: what was found about an edited kernel, as text and as HTML for light and dark themes."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from sovereign_lab.measure.trial.card import Card, Remark, Stage
from sovereign_lab.notebook.table import Table

MARKS = {"yes": "yes", "no": "NO", "unknown": "-"}
# Blue and orange, told apart by everybody, and faint enough for the text's own colour in both themes.
TINTS = {"yes": "rgba(0,114,178,0.25)", "no": "rgba(213,94,0,0.30)", "unknown": "transparent"}
CELL = "text-align:left; vertical-align:top; padding:3px 10px 3px 6px"
CODE = "white-space:pre-wrap; margin:2px 0 4px 0; padding:2px 6px; border-left:3px solid rgba(213,94,0,0.8)"


@dataclass(frozen=True)
class CardView:
    """A card as a notebook shows it; `note` is a last sentence, such as where the kernel was kept."""

    card: Card
    note: str = ""

    def __repr__(self) -> str:
        lines = [self._title, *(f"  {line}" for line in self._text_stages())]
        for caption, table in _tables(self.card):
            lines += ["", caption, *repr(table).splitlines()]
        return "\n".join([*lines, "", f"Verdict: {self.card.verdict}", *filter(None, [self.note])])

    @property
    def _title(self) -> str:
        made, device = self.card.edit, self.card.device
        where = f", on {'the ' * device.startswith('SIMT')}{device}" if device else ""
        return f"{made.op}:{made.name}, edited from {made.like}{where}: {self.card.launch}"

    def _text_stages(self) -> Iterator[str]:
        for stage in self.card.stages:
            yield f"{stage.question + '?':<10} {MARKS[stage.answer]:<4} {stage.says}"
            for remark in stage.remarks:
                if remark.says not in stage.says:
                    yield from (f"{'':<16}{line}" for line in remark.says.splitlines())
                if remark.line:
                    yield f"{'':<16}{remark.line:>4} | {remark.code}"

    def _repr_html_(self) -> str:
        # Inline styles alone: JupyterLab strips <style> from notebooks that it does not trust yet.
        rows = "".join(_stage_html(stage) for stage in self.card.stages)
        tables = "".join(
            f"<p style='margin:8px 0 2px 0'>{escape(caption)}</p>{table._repr_html_()}"
            for caption, table in _tables(self.card)
        )
        answer = "yes" if self.card.good else "no"
        note = f"<br>{escape(self.note)}" if self.note else ""
        return (
            f"<div><p style='margin:2px 0 6px 0'>{escape(self._title)}</p>"
            f"<table style='border-collapse:collapse'>{rows}</table>{tables}"
            f"<p style='margin:8px 0 2px 0; padding:5px 8px; background-color:{TINTS[answer]}'>"
            f"<b>{escape(self.card.verdict)}</b>{note}</p></div>"
        )


def _stage_html(stage: Stage) -> str:
    remarks = "".join(_remark_html(r, told=r.says in stage.says) for r in stage.remarks)
    mark = escape(MARKS[stage.answer])
    return (
        f"<tr style='background-color:transparent'><td style='{CELL}'><b>{escape(stage.question)}?</b></td>"
        f"<td style='{CELL}; background-color:{TINTS[stage.answer]}'><b>{mark}</b></td>"
        f"<td style='{CELL}'>{escape(stage.says)}{remarks}</td></tr>"
    )


def _remark_html(remark: Remark, told: bool) -> str:
    """The sentence, unless the stage has told it, and the line."""
    says = f"<div style='white-space:pre-wrap; margin-top:4px'>{escape(remark.says)}</div>"
    says = "" if told else says
    if not remark.line:
        return says
    return f"{says}<pre style='{CODE}'>{remark.line:>4} | {escape(remark.code)}</pre>"


def _tables(card: Card) -> Iterator[tuple[str, Table]]:
    """The measurements that there are, each with what it is of."""
    made = card.edit
    head = ["", made.like, made.name]
    if card.counts:
        rows = [[c.what, _count(c.parent), _count(c.mine)] for c in card.counts]
        yield f"Counted {card.counted}", Table(head, rows)
    if card.alone is not None:
        a = card.alone
        rows = [
            _pair("us a launch", a.microseconds, "{:.4g}"),
            _pair(f"GB/s of {a.least_bytes:,} bytes at least", a.gigabytes_per_second, "{:,.4g}"),
        ]
        rows += _floor(a.shares_of_floor)
        yield f"Alone, at the size of {a.model}", Table(head, rows)
    if card.engine is not None:
        e = card.engine
        ms = [float(np.median(x)) for x in (e.comparison.base_ms, e.comparison.change_ms)]
        rows = [
            _pair("ms a forward pass", (ms[0], ms[1]), "{:.4g}"),
            _pair("tokens/s", e.tokens_per_second, "{:.4g}"),
            *_floor(e.shares_of_floor),
            ["logits, distance from the parent's", "", f"{e.logits_distance:.2g} of their norm"],
            ["greedy tokens equal", "", f"{e.same_tokens} of {e.tokens}"],
        ]
        yield f"In phase {e.phase} of {e.model}", Table(head, rows)


def _pair(what: str, values: tuple[float, float], form: str) -> list[str]:
    return [what, *(form.format(v) for v in values)]


def _floor(shares: tuple[float, float] | None) -> list[list[str]]:
    return [] if shares is None else [_pair("share of the bandwidth's floor", shares, "{:.1%}")]


def _count(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")
