// The workbench's page. Python holds the state (bench.py) and runs what is asked for; here it is shown and asked.
import { makeEditor, mark, replaceText } from "./editor.js";
import { METRICS, excessive, setHeat } from "./heat.js";
import { element, makeLayout } from "./layout.js";
import { forget, remember, remembered } from "./stored.js";
import { watchTheme } from "./theme.js";
import { keyTimer, measurePaint } from "./timing.js";

const TYPING_MS = 250; // a pause of so long sends what was typed
const DEAF_MS = 2000; // a kernel that has not heard by then runs another cell
const MARKS = { yes: "\u2713", no: "\u2717", unknown: "\u2013" };

function render({ model, el }) {
  const start = performance.now();
  const mac = /Mac|iP(hone|ad)/.test(navigator.platform);
  const at = makeLayout(mac);
  const { root } = at;
  const place = model.get("place");
  const pending = new Map(); // what was asked and is not done: its number, and what waits for "heard"
  let asked = 0;
  let alive = true;
  let refusal = "";
  let typing = null;
  let began = 0;
  let clock = null;
  let metric = "share";
  let offered = remembered(place);

  const view = makeEditor({ parent: at.editor, text: model.get("text"), label: `CUDA source of ${model.get("shown").op}`, changed, check: () => ask("check"), save });
  const pressed = keyTimer(view.contentDOM);
  root.workbench = { view, text: () => view.state.doc.toString(), setText: (text) => replaceText(view, text) };
  const text = root.workbench.text;

  // ---- the text ----

  function number(input) {
    const value = parseInt(input.value, 10);
    return value >= 1 ? value : null;
  }

  function changed() {
    pressed();
    clearTimeout(typing);
    typing = setTimeout(send, TYPING_MS);
    showFresh();
  }

  function send() {
    clearTimeout(typing);
    const now = text();
    if (now !== model.get("shown").parentText) {
      remember(place, { text: now, threads: number(at.threads), rows: number(at.rows), at: new Date().toISOString() });
    }
    if (!alive || now === model.get("text")) return;
    model.set("text", now);
    model.save_changes();
  }

  function take() {
    if (model.get("text") === text()) return;
    replaceText(view, model.get("text"));
    mark(view, []); // they are of the text that went
  }

  // JupyterLab's keys do not reach into the workbench, and so it passes Save on.
  function save() {
    send();
    const notebook = root.closest(".jp-NotebookPanel, .jp-Notebook");
    if (!notebook) return false;
    const key = { key: "s", code: "KeyS", keyCode: 83, which: 83, bubbles: true, cancelable: true };
    notebook.dispatchEvent(new KeyboardEvent("keydown", { ...key, ctrlKey: !mac, metaKey: mac }));
    return true;
  }

  // ---- asking ----

  function ask(what, more = {}) {
    if (!alive) return;
    const id = ++asked;
    refusal = "";
    send();
    const deaf = setTimeout(() => {
      refusal = "Waiting for the kernel, which runs another cell.";
      show();
    }, DEAF_MS);
    pending.set(id, deaf);
    model.send({ do: what, id, text: text(), threads: number(at.threads), rows_per_block: number(at.rows), ...more });
    show();
  }

  function answered(answer) {
    if (answer.heard && pending.has(answer.heard)) {
      clearTimeout(pending.get(answer.heard));
      refusal = "";
    }
    if (answer.done) pending.delete(answer.done);
    if (answer.refused) refusal = answer.refused;
    show();
  }

  function time() {
    const predict = parseFloat(at.predict.value);
    ask("time", Number.isNaN(predict) ? {} : { predict, because: at.because.value });
  }

  // ---- showing ----

  function fresh() {
    const { of } = model.get("shown");
    return of !== null && of.text === text() && of.threads === number(at.threads) && of.rowsPerBlock === number(at.rows);
  }

  function showFresh() {
    const shown = model.get("shown");
    const busy = root.dataset.busy === "true";
    const now = text();
    root.dataset.dirty = String(now !== shown.parentText);
    root.dataset.stale = String(shown.of !== null && !fresh());
    at.old.hidden = root.dataset.stale !== "true";
    at.keep.disabled = busy || !alive || !shown.good || !fresh() || shown.kept;
    at.revert.disabled = busy || !alive || (now === shown.parentText && number(at.threads) === null && number(at.rows) === null);
  }

  function show() {
    const now = model.get("now");
    const shown = model.get("shown");
    const action = alive ? now.action : "";
    const busy = alive && (action !== "" || pending.size > 0);
    root.dataset.busy = String(busy);
    root.dataset.action = action;
    root.dataset.alive = String(alive);
    root.dataset.tone = refusal ? "bad" : busy ? "plain" : now.tone;
    for (const name of ["check", "inspect", "time"]) at[name].disabled = busy || !alive;
    at.texts.disabled = busy || !alive;
    at.cancel.disabled = !busy;
    at.progress.hidden = !busy;
    const says = alive ? refusal || now.says || "Edit the kernel, then Check." : "The kernel was restarted.";
    if (at.status.textContent !== says) at.status.textContent = says;
    for (const [question, chip] of Object.entries(at.chip)) {
      const answer = busy ? "" : (shown.answers[question] ?? "");
      chip.dataset.answer = answer;
      chip.dataset.now = String(busy && now.stage === question);
      chip.textContent = (answer ? MARKS[answer] + " " : "") + question;
      chip.title = answer ? `${question}: ${answer}` : question;
    }
    tick(busy);
    showFresh();
  }

  function tick(busy) {
    if (busy && clock === null) {
      began = performance.now();
      clock = setInterval(() => (at.elapsed.textContent = `${((performance.now() - began) / 1000).toFixed(1)} s`), 100);
    } else if (!busy && clock !== null) {
      clearInterval(clock);
      clock = null;
    }
  }

  function showResult() {
    const shown = model.get("shown");
    at.title.textContent = `${shown.op}:${shown.name}`;
    at.like.textContent = `edited from ${shown.like}`;
    at.threads.placeholder = shown.parentThreads;
    at.rows.placeholder = shown.parentRowsPerBlock || "";
    at.rows.disabled = !shown.parentRowsPerBlock;
    root.dataset.card = shown.good === null ? "none" : shown.good ? "good" : "bad";
    // The card's HTML is the package's own, in which everything from elsewhere is escaped.
    if (at.card.innerHTML !== shown.card) at.card.innerHTML = shown.card;
    at.card.hidden = !shown.card;
    at.texts.replaceChildren(
      element("option", { value: "" }, shown.texts.length ? `Earlier texts (${shown.texts.length})` : "No earlier text"),
      ...shown.texts.map((label, i) => element("option", { value: i }, label)).reverse(),
    );
    at.texts.hidden = !shown.texts.length;
    // Both are of the text that was checked: one that has been edited since keeps what it has.
    if (shown.of === null || shown.of.text === text()) {
      mark(view, shown.marks);
      showHeat();
    }
    show();
  }

  function showHeat() {
    const rows = model.get("shown").heat;
    view.dispatch({ effects: setHeat.of({ rows, metric }) });
    at.beside.hidden = !rows.length;
    at.legend.hidden = !rows.some(excessive);
    at.legend.textContent = "\u25b2 more than it need be";
  }

  function showLaunch() {
    const shown = model.get("shown");
    if (number(at.threads) !== shown.threads) at.threads.value = shown.threads ?? "";
    if (number(at.rows) !== shown.rowsPerBlock) at.rows.value = shown.rowsPerBlock ?? "";
  }

  // ---- a kernel that was restarted, a text from before ----

  // Once a widget is in the page, its comm changes only by ending, and that is by a restart of the kernel.
  function lost() {
    alive = false;
    send();
    at.restarted.hidden = false;
    pending.forEach((deaf) => clearTimeout(deaf));
    pending.clear();
    show();
  }

  function showOffer() {
    if (offered !== null && offered.text === text()) offered = null;
    at.offer.hidden = offered === null;
    if (offered === null) return;
    const when = new Date(offered.at);
    at.offered.textContent = `This browser has an edited text of ${when.toLocaleDateString([], { day: "numeric", month: "short" })}, ${when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}.`;
  }

  function accept() {
    if (offered.threads) at.threads.value = offered.threads;
    if (offered.rows) at.rows.value = offered.rows;
    replaceText(view, offered.text);
    offered = null;
    showOffer();
    view.focus();
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(text());
      at.copy.textContent = "Copied";
    } catch {
      view.focus();
      view.dispatch({ selection: { anchor: 0, head: view.state.doc.length } });
      at.copy.textContent = `Selected: press ${mac ? "\u2318" : "Ctrl+"}C`;
    }
  }

  // ---- wiring ----

  for (const [name, { name: words }] of Object.entries(METRICS)) at.metric.append(element("option", { value: name }, words));
  for (const name of ["check", "inspect", "keep", "revert", "cancel"]) at[name].addEventListener("click", () => ask(name));
  at.time.addEventListener("click", time);
  at.texts.addEventListener("change", () => at.texts.value !== "" && ask("recall", { number: Number(at.texts.value) }));
  at.metric.addEventListener("change", () => {
    metric = at.metric.value;
    showHeat();
  });
  for (const input of [at.threads, at.rows]) input.addEventListener("input", () => (showFresh(), send()));
  at.copy.addEventListener("click", copy);
  at.accept.addEventListener("click", accept);
  at.forget.addEventListener("click", () => {
    forget(place);
    offered = null;
    showOffer();
  });
  root.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented) {
      event.preventDefault();
      if (!at.check.disabled) ask("check");
    }
    event.stopPropagation();
  });
  // Keys of the notebook, such as those that run or delete a cell, are not meant when a kernel is typed.
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  const unwatch = watchTheme((theme) => (root.dataset.theme = theme));
  const listeners = [
    ["change:text", take],
    ["change:now", show],
    ["change:shown", () => (showLaunch(), showResult())],
    ["msg:custom", answered],
    ["comm_live_update", lost],
  ];
  for (const [event, listener] of listeners) model.on(event, listener);

  showLaunch();
  showResult();
  showOffer();
  el.append(root);
  root.dataset.ready = "true";
  measurePaint(root, start);
  return () => {
    unwatch();
    clearInterval(clock);
    clearTimeout(typing);
    pending.forEach((deaf) => clearTimeout(deaf));
    for (const [event, listener] of listeners) model.off(event, listener);
    view.destroy();
  };
}

export default { render };
