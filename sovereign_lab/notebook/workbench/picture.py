"""The workbench where no script runs: its source with colours, and its last card."""

from html import escape

from pygments.lexers import CudaLexer
from pygments.token import Comment, Keyword, Literal, Name, Token

from sovereign_lab.notebook.workbench.bench import Bench

# JupyterLab's own colours of the reader's theme; elsewhere such as can be read on white and on black.
COLOURS = {
    Comment: "var(--jp-mirror-editor-comment-color, #6a8a8a)",
    Comment.Preproc: "var(--jp-mirror-editor-meta-color, #9a7ad0)",
    Keyword: "var(--jp-mirror-editor-keyword-color, #2a8f4a)",
    Literal.Number: "var(--jp-mirror-editor-number-color, #3c8f8f)",
    Literal.String: "var(--jp-mirror-editor-string-color, #c05040)",
    Name.Builtin: "var(--jp-mirror-editor-builtin-color, #2a7fc0)",
}


def picture(bench: Bench) -> str:
    """HTML with inline styles alone: JupyterLab strips <style> from notebooks that it does not trust yet."""
    state = bench.state
    card = state.view._repr_html_() if state.view else ""
    head = (
        f"<p><b>{escape(bench.op)}:{escape(bench.name)}</b>, edited from {escape(bench.like)}</p>"
    )
    return f"<div>{head}<pre style='overflow-x:auto'>{_coloured(state.text)}</pre>{card}</div>"


def _coloured(source: str) -> str:
    parts = []
    for token, text in CudaLexer(stripnl=False).get_tokens(source):
        colour = _colour(token)
        word = escape(text)
        parts.append(f"<span style='color:{colour}'>{word}</span>" if colour else word)
    return "".join(parts)


def _colour(token: object) -> str | None:
    while token is not None and token is not Token:
        if token in COLOURS:
            return COLOURS[token]
        token = token.parent  # type: ignore[attr-defined]
    return None
