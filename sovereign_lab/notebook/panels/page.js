// One page for all panels: controls with labels, buttons, columns of text, and pictures that Python draws.
// What Python sends as a view is HTML that the lab made; texts of a model go in as text, never as HTML.

let instances = 0;
const WIDE = 760, NARROW = 380;

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// ---- controls: one function a kind gives the element, how to read it, and how to show a value ----

const KINDS = {
  slider(spec) {
    const input = element("input", { type: "range", min: spec.min, max: spec.max, step: spec.step });
    return { input, read: () => Number(input.value), show: (value) => { input.value = value; } };
  },
  choice(spec) {
    const input = element("select");
    fill(input, spec.options);
    return { input, read: () => input.value, show: (value) => { input.value = value; } };
  },
  steps(spec) {  // a slider over names
    const input = element("input", { type: "range", min: 0, max: spec.options.length - 1, step: 1 });
    return {
      input,
      read: () => spec.options[Number(input.value)][0],
      show: (value) => { input.value = spec.options.findIndex(([name]) => name === value); },
    };
  },
  number(spec) {
    const input = element("input", { type: "number", min: spec.min, max: spec.max, step: spec.step });
    const read = () => (input.value === "" ? null : Number(input.value));
    return { input, read, show: (value) => { if (read() !== value) input.value = value ?? ""; } };
  },
  text(spec) {
    const input = spec.lines > 1 ? element("textarea", { rows: spec.lines }) : element("input", { type: "text" });
    input.spellcheck = false;
    return { input, read: () => input.value, show: (value) => { if (input.value !== value) input.value = value; } };
  },
  toggle() {
    const input = element("input", { type: "checkbox" });
    return { input, read: () => input.checked, show: (value) => { input.checked = value; } };
  },
};

function fill(select, options) {
  const kept = select.value;
  select.replaceChildren(...options.map(([name, label]) => element("option", { value: name }, label)));
  select.value = kept;
}

function shownValue(spec, value) {
  if (spec.kind === "steps") return (spec.options.find(([name]) => name === value) ?? [value, value])[1];
  return spec.kind === "slider" ? `${Number(value).toLocaleString("en")}${spec.unit ? " " + spec.unit : ""}` : "";
}

function makeControl(spec, prefix, changed) {
  const control = KINDS[spec.kind](spec);
  const id = `${prefix}-${spec.name}`;
  control.input.id = id;
  control.input.dataset.control = spec.name;
  control.spec = spec;
  const shown = element("output", { for: id, "data-shown": spec.name });
  const label = element("label", { for: id }, spec.label);
  if (spec.help) {
    control.input.title = spec.help;
    label.title = spec.help;
  }
  control.node = element("div", { class: `sl-control sl-${spec.kind}` }, label, control.input, shown);
  control.node.classList.toggle("sl-long", spec.kind === "text" && spec.lines > 1);
  control.display = (value) => {
    control.show(value);
    shown.textContent = shownValue(control.spec, value);
    if (control.input.type === "range") control.input.setAttribute("aria-valuetext", shown.textContent);
  };
  control.respec = (next) => {
    control.spec = next;
    if (next.kind === "slider") { control.input.min = next.min; control.input.max = next.max; }
    if (next.kind === "choice") fill(control.input, next.options);
  };
  control.input.addEventListener("input", () => {
    shown.textContent = shownValue(control.spec, control.read());
    changed(spec.name, control.read());
  });
  return control;
}

function showWhen(controls, values) {
  for (const { node, spec } of Object.values(controls)) {
    if (spec.when) node.hidden = !values[spec.when];
  }
}

// ---- pictures whose parts can be picked ----

function pickable(view, changed) {
  // By number where values are numbers, else as they stand in the picture.
  const items = (kind) => [...view.querySelectorAll(`[data-pick="${CSS.escape(kind)}"]`)]
    .sort((a, b) => a.dataset.value - b.dataset.value || 0);
  const pick = (item) => {
    view.picked = [item.dataset.pick, item.dataset.value];
    for (const other of items(item.dataset.pick)) other.setAttribute("aria-pressed", String(other === item));
    item.focus({ preventScroll: true });
    changed(item.dataset.pick, item.dataset.value);
  };
  view.addEventListener("click", (event) => {
    const item = event.target.closest("[data-pick]");
    if (item) pick(item);
  });
  view.addEventListener("keydown", (event) => {
    const item = event.target.closest("[data-pick]");
    if (!item) return;
    const all = items(item.dataset.pick);
    const across = Number(item.dataset.across ?? 1);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    const at = all.findIndex((other) => other.dataset.value === item.dataset.value);
    if (event.key === "Enter" || event.key === " ") pick(item);
    else if (event.key === "Home") pick(all[0]);
    else if (event.key === "End") pick(all[all.length - 1]);
    else if (step !== undefined) { if (all[at + step]) pick(all[at + step]); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

function showView(view, html) {
  const focused = view.contains(document.activeElement) && view.picked;
  view.innerHTML = html;
  if (focused) {
    const [kind, value] = view.picked;
    const item = view.querySelector(`[data-pick="${CSS.escape(kind)}"][data-value="${CSS.escape(value)}"]`);
    item?.focus({ preventScroll: true });
  }
}

// ---- columns of text that grows ----

function showColumns(holder, columns) {
  while (holder.children.length > columns.length) holder.lastChild.remove();
  columns.forEach((column, i) => {
    let node = holder.children[i];
    if (!node) {
      node = element("section", { class: "sl-column", "data-column": i },
        element("h4"), element("div", { "data-part": "text", tabindex: 0, role: "region" }),
        element("div", { "data-part": "speed" }));
      holder.append(node);
    }
    const [title, text, speed] = node.children;
    title.textContent = column.title;
    text.setAttribute("aria-label", `Text of ${column.title}`);
    const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
    if (text.dataset.prompt !== column.prompt || !text.children.length) {
      text.dataset.prompt = column.prompt;
      text.replaceChildren(element("span", { class: "sl-prompt" }, column.prompt), element("span"));
    }
    if (text.lastChild.textContent !== column.text) text.lastChild.textContent = column.text;
    if (atEnd) text.scrollTop = text.scrollHeight;
    speed.textContent = column.speed;
  });
}

function isDark(node) {
  const colour = getComputedStyle(node).color.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0];
  return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 140;  // light text stands on a dark page
}

export default {
  render({ model, el }) {
    const name = model.get("name");
    const start = `sl-${name}:render-start-${instances}`;
    const prefix = `sl-${name}-${instances++}`;
    performance.mark(start);

    const heading = element("h3", { id: `${prefix}-title` }, model.get("title"));
    const restarted = element("div", { class: "sl-notice", "data-part": "restarted", role: "alert", hidden: true },
      "The kernel was restarted or the connection to it is gone: run this cell again, after those before it.");
    const form = element("div", { class: "sl-controls", role: "group", "aria-labelledby": `${prefix}-title` });
    const buttons = element("div", { class: "sl-buttons" });
    const status = element("div", { class: "sl-status", "data-part": "status", role: "status", "aria-live": "polite" });
    const error = element("div", { class: "sl-notice", "data-part": "error", role: "alert", hidden: true });
    const columns = element("div", { class: "sl-columns" });
    const view = element("div", { class: "sl-view", "data-part": "view" });
    const root = element("div",
      { class: `sovereign-panel sovereign-${name}`, "data-testid": name, "data-alive": "true", "data-busy": "false",
        "data-error": "false", role: "region", "aria-labelledby": `${prefix}-title` },
      heading, restarted, form, buttons, error, status, columns, view);
    // JupyterLab takes keys for its own shortcuts unless they stay in here.
    root.addEventListener("keydown", (event) => {
      if (!(event.key === "Enter" && (event.shiftKey || event.ctrlKey))) event.stopPropagation();
    });

    let waiting = null;
    const send = () => { waiting = null; model.save_changes(); };
    const changed = (control, value) => {
      model.set("values", { ...model.get("values"), [control]: value });
      controls[control]?.display(value);
      showWhen(controls, model.get("values"));
      waiting ??= requestAnimationFrame(send);
    };
    const controls = {};
    for (const spec of model.get("controls")) {
      controls[spec.name] = makeControl(spec, prefix, changed);
      form.append(controls[spec.name].node);
    }
    for (const { name: action, label, help } of model.get("buttons")) {
      const button = element("button", { type: "button", "data-action": action, title: help }, label);
      button.addEventListener("click", () => {
        if (waiting) { cancelAnimationFrame(waiting); send(); }
        model.send({ action });
      });
      buttons.append(button);
    }
    pickable(view, changed);

    const show = {
      values: () => {
        for (const [control, value] of Object.entries(model.get("values"))) controls[control]?.display(value);
        showWhen(controls, model.get("values"));
      },
      controls: () => {
        for (const spec of model.get("controls")) controls[spec.name]?.respec(spec);
        show.values();
      },
      view: () => showView(view, model.get("view")),
      columns: () => showColumns(columns, model.get("columns")),
      status: () => { status.textContent = model.get("status"); },
      error: () => {
        error.textContent = model.get("error");
        error.hidden = !model.get("error");
        root.dataset.error = String(Boolean(model.get("error")));
      },
      enabled: () => {
        const enabled = model.get("enabled");
        for (const button of buttons.children) button.disabled = !enabled.includes(button.dataset.action);
      },
      busy: () => { root.dataset.busy = String(model.get("busy")); },
    };
    for (const [trait, update] of Object.entries(show)) {
      update();
      model.on(`change:${trait}`, update);
    }
    const lost = () => {
      root.dataset.alive = "false";
      restarted.hidden = false;
      for (const input of root.querySelectorAll("input, select, button")) input.disabled = true;
    };
    model.on("comm_live_update", lost);
    el.append(root);

    const theme = () => { root.dataset.theme = isDark(el) ? "dark" : "light"; };
    theme();
    const themes = new MutationObserver(theme);
    themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
    const resized = new ResizeObserver(() => {
      theme();  // in the page only now, in some notebooks
      const width = root.clientWidth;
      if (!width) return;
      const wanted = width < 640 ? NARROW : WIDE;
      root.dataset.width = wanted === WIDE ? "wide" : "narrow";
      if (wanted !== model.get("width") && root.dataset.alive === "true") {
        model.set("width", wanted);
        model.save_changes();
      }
    });
    resized.observe(root);
    // Two frames on, the first one has been painted.
    requestAnimationFrame(() => requestAnimationFrame(() => {
      root.dataset.ready = "true";
      performance.measure(`sl-${name}:paint`, start);
    }));
    return () => {
      themes.disconnect();
      resized.disconnect();
      for (const [trait, update] of Object.entries(show)) model.off(`change:${trait}`, update);
      model.off("comm_live_update", lost);
    };
  },
};
