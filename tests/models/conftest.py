"""Small models to test with, and a way to change a GGUF file."""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import stand_in
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType
from stand_in import Server

from sovereign_lab.models import catalog
from sovereign_lab.models.gguf_file import open_gguf
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

TINY = SyntheticShape(
    layers=2, dim=64, ffn_dim=96, heads=4, kv_heads=2, head_dim=32, vocab=400, context=1024
)

Rewrite = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_shape() -> SyntheticShape:
    return TINY


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TINY, seed=5)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model: from the user's cache, where it is made if need be."""
    return catalog.resolve("smollm2-135m")


@pytest.fixture
def rewrite(tiny: Path, tmp_path: Path) -> Rewrite:
    """rewrite(metadata, tensors, types): the tiny model with these changes, as a new file.

    metadata None and tensors None remove; tensors are (type, data); types converts a tensor.
    """
    return functools.partial(_rewrite, target=tmp_path / "changed.gguf", source=tiny)


def _rewrite(
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[Type, np.ndarray] | None] | None = None,
    types: Mapping[str, Type] | None = None,
    *,
    source: Path,
    target: Path,
) -> Path:
    file = open_gguf(source)
    metadata, tensors = dict(metadata or {}), dict(tensors or {})
    for name, type in (types or {}).items():
        tensors[name] = type, gguf.quants.quantize(file.float32(name), type)

    writer = gguf.GGUFWriter(target, metadata.pop("general.architecture", "llama"))
    for key, value in (file.metadata | metadata).items():
        if key == "general.architecture" or value is None:
            continue
        if key in file.value_types:
            writer.add_key_value(key, value, *file.value_types[key])
        else:
            writer.add_key_value(key, value, GGUFValueType.get_type(value))
    for name, info in file.tensors.items():
        data = file.raw(name).reshape(*info.shape[:-1], -1)
        tensors.setdefault(name, (info.type, data))
    for name, tensor in tensors.items():
        if tensor is not None:
            type, data = tensor
            writer.add_tensor(name, data.view(np.uint8), raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A stand-in for a package index or a model hub, reached past any proxy."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with stand_in.running() as server:
        yield server
