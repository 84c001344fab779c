"""The cache, what an interrupted download left in it, and the model files."""

import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from sovereign_lab.checkup.report import Check
from sovereign_lab.errors import LabError

SET_CACHE = "Set XDG_CACHE_HOME to a directory that you can write to, on a disk with space."


def check_cache(name: str) -> Iterator[Check]:
    """Whether models and compiled kernels can be kept."""
    from sovereign_lab.models.cache import cache_dir
    from sovereign_lab.models.smollm2 import MAKING_BYTES

    folder = cache_dir()
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
        space = shutil.disk_usage(there).free
    except OSError as error:
        yield Check(name, "broken", f"{folder} cannot be written: {error.strerror}", SET_CACHE)
        return
    found = f"{folder}, {space / 1e9:.1f} GB free"
    if space < MAKING_BYTES:
        todo = f"Free some space: making smollm2-135m takes {MAKING_BYTES / 1e6:.0f} MB."
        yield Check(name, "note", found, todo)
    else:
        yield Check(name, "works", found)


def check_unfinished(name: str) -> Iterator[Check]:
    """What downloads that broke off have left; nothing where all is well."""
    from sovereign_lab.models.cache import cache_dir

    parts = [path for pattern in (".*.part", ".*.making-*") for path in cache_dir().rglob(pattern)]
    if parts:
        found = f"left behind, or being written now, {_size(parts)}: "
        found += ", ".join(sorted(part.name for part in parts))
        todo = f"If no download is running: rm -r {' '.join(sorted(map(str, parts)))}"
        yield Check(name, "note", found, todo)
    half = _half_of_tinyllama()
    if half:
        found = f"tinyllama-1.1b is downloaded in part, {_size(half)}"
        yield Check(name, "note", found, "Run: sovereign-lab models pull tinyllama-1.1b")


def _half_of_tinyllama() -> list[Path]:
    """What huggingface_hub has of it, where it is not whole yet."""
    if find_spec("huggingface_hub") is None:
        return []
    from huggingface_hub.constants import HF_HUB_CACHE

    from sovereign_lab.models.tinyllama import REPOSITORY

    blobs = Path(HF_HUB_CACHE) / f"models--{REPOSITORY.replace('/', '--')}" / "blobs"
    return list(blobs.glob("*.incomplete"))


def _size(paths: list[Path]) -> str:
    files = [f for path in paths for f in ([path] if path.is_file() else path.rglob("*"))]
    return f"{sum(f.stat().st_size for f in files if f.is_file()) / 1e6:.1f} MB"


def check_models(name: str) -> Iterator[Check]:
    """Which models of the catalog are here and whole."""
    from sovereign_lab.models import catalog
    from sovereign_lab.models.gguf_file import open_gguf

    good, absent = [], []
    for entry in catalog.entries():
        if not entry.present:
            absent.append(entry.name)
            continue
        path = catalog.resolve(entry.name)
        try:
            open_gguf(path)
            good.append(entry.name)
        except (LabError, OSError) as error:
            todo = f"Delete it and run: sovereign-lab models pull {entry.name}"
            yield Check(f"model {entry.name}", "broken", str(error), todo)
    found = f"{', '.join(good) or 'none'} on this machine"
    if catalog.DEFAULT in absent:
        todo = f"To have the default: sovereign-lab models pull {catalog.DEFAULT}"
        yield Check(name, "note", f"{found}, not {catalog.DEFAULT}", todo)
    elif good:
        yield Check(name, "works", found)
