"""The instructor's guide names the notebooks that there are, and their exercises."""

import re
from pathlib import Path

import nbformat
import pytest


@pytest.fixture
def guide(repository: Path) -> str:
    return (repository / "notebooks/README.md").read_text(encoding="utf-8")


def test_links_lead_to_notebooks(guide: str, repository: Path) -> None:
    links = re.findall(r"\]\((\S+\.ipynb)\)", guide)
    assert links
    assert [name for name in links if not (repository / "notebooks" / name).exists()] == []


def test_every_notebook_stands_in_the_guide_with_its_exercises(
    guide: str, repository: Path
) -> None:
    for path in sorted((repository / "notebooks").glob("*.ipynb")):
        line = next((x for x in guide.splitlines() if f"({path.name})" in x), "")
        assert line, f"{path.name} has no line in notebooks/README.md"
        for cell in nbformat.read(path, as_version=4).cells:
            for tag in cell.metadata.get("tags", []):
                if tag.startswith("exercise-"):
                    assert tag.removeprefix("exercise-") in line, f"{tag} of {path.name}"
