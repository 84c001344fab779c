// The editor: C++ with CUDA's words, search, brackets, undo, errors on their lines, the heat gutter.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { cpp } from "@codemirror/lang-cpp";
import { HighlightStyle, bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { EditorView, drawSelection, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, keymap, lineNumbers } from "@codemirror/view";
import { tags as t } from "@lezer/highlight";
import { cudaWords } from "./cuda.js";
import { heatGutter } from "./heat.js";

// JupyterLab's own colours of the theme, so that a kernel looks here as it does in a cell.
const style = HighlightStyle.define([
  { tag: [t.keyword, t.modifier, t.operatorKeyword], class: "slw-keyword" },
  { tag: [t.typeName, t.standard(t.typeName), t.className, t.namespace], class: "slw-type" },
  { tag: [t.number, t.bool, t.null], class: "slw-number" },
  { tag: [t.string, t.character], class: "slw-string" },
  { tag: t.comment, class: "slw-comment" },
  { tag: [t.meta, t.processingInstruction, t.macroName], class: "slw-meta" },
  { tag: [t.function(t.variableName), t.function(t.definition(t.variableName))], class: "slw-function" },
  { tag: [t.operator, t.punctuation], class: "slw-operator" },
]);

const KEYS = "Escape and then Tab leaves the editor. Control Enter, or Command Enter, checks the kernel. F8 goes to the next error.";

export function makeEditor({ parent, text, label, changed, check, save }) {
  return new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        lintGutter(),
        lineNumbers(),
        heatGutter,
        highlightActiveLine(),
        highlightActiveLineGutter(),
        highlightSpecialChars(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        highlightSelectionMatches(),
        search({ top: true }),
        indentUnit.of("    "),
        EditorState.tabSize.of(4),
        cpp(),
        syntaxHighlighting(style),
        cudaWords,
        EditorView.contentAttributes.of({ "aria-label": label, "aria-description": KEYS, spellcheck: "false" }),
        keymap.of([
          { key: "Mod-Enter", run: () => (check(), true) },
          { key: "Mod-s", run: (view) => save(view) },
          indentWithTab,
          ...defaultKeymap.filter((binding) => binding.key !== "Mod-Enter"),
          ...historyKeymap,
          ...searchKeymap,
          ...lintKeymap,
        ]),
        EditorView.updateListener.of((update) => update.docChanged && changed(update)),
      ],
    }),
  });
}

// As one change that Undo takes back; the part that stays the same is left alone, with what is marked on it.
export function replaceText(view, text) {
  const old = view.state.doc.toString();
  if (old === text) return;
  let from = 0;
  let end = 0;
  const most = Math.min(old.length, text.length);
  while (from < most && old[from] === text[from]) from += 1;
  while (end < most - from && old[old.length - 1 - end] === text[text.length - 1 - end]) end += 1;
  view.dispatch({ changes: { from, to: old.length - end, insert: text.slice(from, text.length - end) } });
}

export function mark(view, marks) {
  const { doc } = view.state;
  const diagnostics = marks
    .filter(({ line }) => line <= doc.lines)
    .map(({ line, says, source }) => {
      const at = doc.line(line);
      const indent = at.text.length - at.text.trimStart().length;
      return { from: at.from + indent, to: at.to, severity: "error", message: says, source };
    });
  view.dispatch(setDiagnostics(view.state, diagnostics));
}
