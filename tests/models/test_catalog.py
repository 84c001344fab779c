"""A name or a path becomes a file, and a name that is neither becomes a sentence."""

from pathlib import Path

import pytest

from sovereign_lab.errors import LabError
from sovereign_lab.models import catalog
from sovereign_lab.models.model import load_model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sovereign-lab"


def test_the_cache_follows_xdg(cache: Path) -> None:
    assert catalog.cache_dir() == cache


def test_a_synthetic_name_is_written_once(cache: Path) -> None:
    assert not present("synthetic:tiny")
    path = catalog.resolve("synthetic:tiny")
    assert path == cache / "synthetic-tiny.gguf"
    assert present("synthetic:tiny")
    written = path.stat().st_mtime_ns
    assert catalog.resolve("synthetic:tiny") == path and path.stat().st_mtime_ns == written
    assert [child.name for child in cache.iterdir()] == [path.name]
    config = load_model("synthetic:tiny").config
    assert (config.layers, config.dim, config.vocab, config.context) == (2, 128, 512, 8192)


def present(name: str) -> bool:
    return {entry.name: entry.present for entry in catalog.entries()}[name]


def test_the_catalog_lists_every_model(cache: Path) -> None:
    names = [entry.name for entry in catalog.entries()]
    assert names[0] == catalog.DEFAULT == "storyteller"
    assert {"tinyllama-1.1b", "synthetic:tinyllama-1.1b", "synthetic:tiny"} < set(names)
    assert all(entry.description and entry.where for entry in catalog.entries())
    assert not cache.exists(), "a look at the catalog wrote into the cache"


def test_a_path_is_itself(tiny: Path) -> None:
    assert catalog.resolve(str(tiny)) == tiny


def test_what_is_neither_name_nor_file() -> None:
    with pytest.raises(
        LabError, match=r"no model 'gpt-5'; the catalog has storyteller, smollm2-135m, tiny"
    ):
        catalog.resolve("gpt-5")
    for missing in ("missing.gguf", "some/where/model"):
        with pytest.raises(LabError, match=f"there is no file {missing}"):
            catalog.resolve(missing)


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the cache should be")
    with pytest.raises(LabError, match=r"synthetic-tiny.gguf could not be written: "):
        catalog.resolve("synthetic:tiny")
