// The workbench's elements, made once; main.js fills them.
const QUESTIONS = ["compiles", "safe", "right", "faster"];

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function button(name, label, title, kind = "") {
  return element("button", { type: "button", class: `slw-button ${kind}`, "data-testid": `workbench-${name}`, title }, label);
}

function field(label, input) {
  return element("label", { class: "slw-field" }, element("span", {}, label), input);
}

export function makeLayout(mac) {
  const id = `slw-${Math.random().toString(36).slice(2)}`;
  const at = {};
  at.title = element("span", { class: "slw-title" });
  at.like = element("span", { class: "slw-like" });
  at.threads = element("input", { type: "number", min: 1, step: 1, "data-testid": "workbench-threads" });
  at.rows = element("input", { type: "number", min: 1, step: 1, "data-testid": "workbench-rows" });
  at.texts = element("select", { "data-testid": "workbench-texts", "aria-label": "Earlier texts" });
  const key = mac ? "\u2318\u21a9" : "Ctrl \u21a9";
  at.check = button("check", element("span", {}, "Check"), "Does it compile, is it safe, is it right?", "slw-primary");
  at.check.append(element("kbd", { "aria-hidden": "true" }, key));
  at.inspect = button("inspect", "Inspect", "Count requests and sectors, by line and against the parent");
  at.time = button("time", "Time", "Time it in turn with its parent; with a prediction in the engine too");
  at.keep = button("keep", "Keep", "Keep it under its name, once it is checked");
  at.revert = button("revert", "Revert", "Put the parent's source back; your text stays in the list of earlier ones");
  at.cancel = button("cancel", "Cancel", "End what runs", "slw-cancel");
  at.metric = element("select", { "data-testid": "workbench-metric", "aria-label": "What is shown beside the lines" });
  at.legend = element("span", { class: "slw-legend", hidden: "" });
  at.predict = element("input", { type: "number", min: 0, step: 0.01, placeholder: "1.10", "data-testid": "workbench-predict", "aria-label": "Predicted speed-up: time before over time after" });
  at.because = element("input", { type: "text", placeholder: "your reason", "data-testid": "workbench-because", "aria-label": "Because" });
  at.editor = element("div", { class: "slw-editor", "data-testid": "workbench-editor" });
  at.status = element("span", { class: "slw-says", "data-testid": "workbench-status", role: "status", "aria-live": "polite" });
  at.elapsed = element("span", { class: "slw-elapsed", "aria-hidden": "true" });
  at.progress = element("div", { class: "slw-progress", "data-testid": "workbench-progress", role: "progressbar", "aria-label": "At work", hidden: "" }, element("i"));
  at.chips = element("span", { class: "slw-chips" });
  at.chip = {};
  for (const question of QUESTIONS) {
    at.chip[question] = element("span", { class: "slw-chip", "data-question": question });
    at.chips.append(at.chip[question]);
  }
  at.card = element("div", { class: "slw-card", "data-testid": "workbench-card", tabindex: "0", role: "region", "aria-label": "Card", hidden: "" });
  at.old = element("p", { class: "slw-old", hidden: "" }, "The text has changed since this card: Check it again.");
  at.restarted = element("div", { class: "slw-notice slw-restarted", "data-testid": "workbench-restarted", role: "alert", hidden: "" });
  at.copy = button("copy", "Copy the text", "Copy the kernel to the clipboard");
  at.restarted.append(
    element("span", {}, "The kernel was restarted, so nobody is behind these buttons. Run the cell above again: your text is still here, and the new workbench offers to bring it back."),
    at.copy,
  );
  at.offer = element("div", { class: "slw-notice", "data-testid": "workbench-offer", role: "status", hidden: "" });
  at.offered = element("span", {});
  at.accept = button("accept", "Bring it back", "Put that text into the editor; Undo takes it away again");
  at.forget = button("forget", "Forget it", "Delete that text from this browser");
  at.offer.append(at.offered, at.accept, at.forget);
  at.root = element(
    "div",
    { class: "slw", "data-testid": "workbench", role: "group", "aria-label": "Kernel workbench" },
    element("div", { class: "slw-head" }, element("div", { class: "slw-name" }, at.title, at.like), element("div", { class: "slw-launch" }, field("threads a block", at.threads), field("rows a block", at.rows), at.texts)),
    at.restarted,
    at.offer,
    element(
      "div",
      { class: "slw-bar", role: "toolbar", "aria-label": "What to do with the kernel" },
      element("span", { class: "slw-group" }, at.check, at.inspect, at.time),
      element("span", { class: "slw-group" }, at.keep, at.revert),
      at.cancel,
      element("span", { class: "slw-prediction" }, "I predict", at.predict, "times as fast, because", at.because),
    ),
    at.editor,
    element("div", { class: "slw-beside", hidden: "" }, element("span", {}, "Beside the lines:"), at.metric, at.legend),
    element("div", { class: "slw-foot" }, at.progress, element("div", { class: "slw-line" }, at.chips, at.status, at.elapsed)),
    element("div", { class: "slw-result" }, at.old, at.card),
  );
  at.beside = at.root.querySelector(".slw-beside");
  at.root.id = id;
  return at;
}
