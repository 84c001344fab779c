"""Kernels as a notebook shows them: highlighted by whatever theme the reader has."""

from dataclasses import dataclass
from difflib import unified_diff
from html import escape

from IPython.display import Markdown

from sovereign_lab.kernels.registry import Variant

# Blue for what came, orange for what went: told apart by everybody, and faint enough for both themes.
BACKGROUNDS = {"+": "rgba(0,114,178,0.25)", "-": "rgba(213,94,0,0.25)"}


def show_source(variant: Variant) -> Markdown:
    """The file of a variant, and the sentence that it teaches."""
    place = f"{variant.path.parent.name}/{variant.path.name}"
    geometry = f"{variant.threads} threads a block"
    if variant.rows_per_block:
        geometry += f", {variant.rows_per_block} rows a block"
    # Of the names of the language, "c++" is the one that JupyterLab and nbconvert both know.
    return Markdown(
        f"**`{place}`**, {geometry}: *{variant.teaches}*\n\n```c++\n{variant.source}\n```"
    )


@dataclass(frozen=True)
class Diff:
    """What changes between two texts, as `diff -u` says it, with colours in a notebook."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        # Inline styles alone: JupyterLab strips <style> from notebooks that it does not trust yet.
        lines = []
        for line in self.text.splitlines():
            colour = BACKGROUNDS.get(line[:1])
            code = escape(line)
            lines.append(
                f'<span style="background-color: {colour}">{code}</span>' if colour else code
            )
        return "<pre>" + "\n".join(lines) + "</pre>"


def show_diff(before: Variant, after: Variant) -> Diff:
    """All lines of two variants of an op, leading comments left out, and which of them changed."""
    lines = unified_diff(_code(before), _code(after), n=len(_code(before)), lineterm="")
    # Without the three lines of head: there is one hunk, and the cell says which files.
    return Diff("\n".join(list(lines)[3:]))


def _code(variant: Variant) -> list[str]:
    lines = variant.source.splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("//"))
    return lines[first:]
