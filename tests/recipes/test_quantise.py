"""The formats in PyTorch are those of the file, bit for bit."""

from typing import Any

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recipe needs PyTorch")

from sovereign_lab.models.quants import quantise_q4_0_plain, unpack_q4_0  # noqa: E402
from sovereign_lab.recipes.storyteller import quantise  # noqa: E402


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Any:
    """Training happens on a GPU, whose arithmetic PyTorch does not promise to be the CPU's."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch was built without CUDA")
    return torch.device(request.param)


def blocks() -> np.ndarray:
    """Blocks float32 [n, 32] of every size, with ties, zeros, negative zeros and overflow."""
    random = np.random.default_rng(5)
    x = random.standard_normal((20_000, 32)) * np.exp(random.uniform(-20, 12, (20_000, 1)))
    whole = random.integers(-8, 9, (500, 32)) / 2
    special = np.zeros((3, 32))
    special[1] = -0.0
    special[2, :4] = 1e30, -1e30, 1e-30, 1
    return np.concatenate([x, whole, special]).astype(np.float32)


def assert_same_bits(ours: Any, theirs: np.ndarray) -> None:
    assert (ours.numpy().view(np.uint32) == theirs.view(np.uint32)).all()


def test_q4_0(device: Any) -> None:
    x = blocks()
    theirs = unpack_q4_0(quantise_q4_0_plain(x))
    assert_same_bits(quantise.round_trip_q4_0(torch.from_numpy(x).to(device)).cpu(), theirs)


def test_q8_0(device: Any) -> None:
    x = blocks()[:-1]  # Q8_0 has no rule for scales beyond fp16
    x = x[np.abs(x).max(axis=1) < 1e6]
    type = gguf.GGMLQuantizationType.Q8_0
    theirs = gguf.quants.dequantize(gguf.quants.quantize(x, type), type)
    assert_same_bits(quantise.round_trip_q8_0(torch.from_numpy(x).to(device)).cpu(), theirs)


def test_weights_go_through_the_type_of_their_name() -> None:
    random = torch.Generator().manual_seed(1)
    names = ["token_embd.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight"]
    names += ["blk.0.ffn_down.weight", "output_norm.weight", "output.weight"]
    shapes = [(40, 64), (64,), (64, 64), (64, 96), (64,), (40, 64)]
    weights = [torch.randn(shape, generator=random) for shape in shapes]
    stored = dict(zip(names, quantise.as_stored(names, weights), strict=True))
    for name, weight in zip(names, weights, strict=True):
        if name.endswith("norm.weight"):
            assert torch.equal(stored[name], weight)
        elif name.startswith("blk."):
            assert_same_bits(stored[name], unpack_q4_0(quantise_q4_0_plain(weight.numpy())))
        else:
            expected = quantise.round_trip_q8_0(weight.reshape(-1, 32)).view_as(weight)
            assert torch.equal(stored[name], expected)
