// A gutter that shows what each line does to memory: a bar, its number, and a mark where it costs more than it need.
import { RangeSet, StateEffect, StateField } from "@codemirror/state";
import { GutterMarker, gutter } from "@codemirror/view";

export const METRICS = {
  share: { name: "share of all sectors", value: (row) => row.share, shown: (v) => `${(100 * v).toFixed(v < 0.0995 ? 1 : 0)} %` },
  cost: { name: "sectors a request", value: (row) => row.cost, shown: short, ideal: (row) => ` of ${short(row.ideal)}` },
  requests: { name: "requests", value: (row) => row.requests, shown: (v) => v.toLocaleString("en") },
  conflicts: { name: "bank conflicts", value: (row) => row.conflicts, shown: (v) => v.toLocaleString("en") },
};

export const setHeat = StateEffect.define(); // { rows, metric }

function short(value) {
  return String(Math.round(100 * value) / 100);
}

export function excessive(row) {
  return row.cost > 1.05 * row.ideal || row.conflicts > 0;
}

class HeatMarker extends GutterMarker {
  constructor(row, metric, most) {
    super();
    Object.assign(this, { row, metric, most });
  }
  eq(other) {
    return other.row === this.row && other.metric === this.metric && other.most === this.most;
  }
  toDOM() {
    const { value, shown, ideal } = METRICS[this.metric];
    const amount = value(this.row);
    const cell = document.createElement("div");
    cell.className = "sl-heat" + (excessive(this.row) ? " sl-heat-more" : "");
    cell.dataset.heatLine = this.row.line;
    cell.dataset.value = amount;
    cell.title = this.row.words;
    const bar = cell.appendChild(document.createElement("span"));
    bar.className = "sl-heat-bar";
    bar.style.width = `${this.most ? Math.max(2, (100 * amount) / this.most) : 0}%`;
    const number = cell.appendChild(document.createElement("span"));
    number.className = "sl-heat-number";
    number.textContent = (excessive(this.row) ? "\u25b2 " : "") + shown(amount);
    if (ideal) {
      const rest = number.appendChild(document.createElement("span"));
      rest.className = "sl-heat-ideal";
      rest.textContent = ideal(this.row);
    }
    return cell;
  }
}

function markers(state, { rows, metric }) {
  const { value } = METRICS[metric];
  const seen = rows.filter((row) => row.line <= state.doc.lines && value(row) > 0);
  const most = Math.max(0, ...seen.map(value));
  return RangeSet.of(seen.map((row) => new HeatMarker(row, metric, most).range(state.doc.line(row.line).from)));
}

const field = StateField.define({
  create: () => RangeSet.empty,
  update(found, tr) {
    found = found.map(tr.changes);
    for (const effect of tr.effects) if (effect.is(setHeat)) found = markers(tr.state, effect.value);
    return found;
  },
});

export const heatGutter = [
  field,
  gutter({
    class: "sl-heat-gutter",
    markers: (view) => view.state.field(field),
    // Without it the gutter would be as wide as its widest cell, and appear with the first one.
    renderEmptyElements: false,
  }),
];
