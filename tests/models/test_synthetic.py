"""Synthetic models are real GGUF files of a true shape, with activations of ordinary size."""

import errno
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

from sovereign_lab.errors import LabError
from sovereign_lab.models import reference, synthetic
from sovereign_lab.models.gguf_file import open_gguf
from sovereign_lab.models.model import load_model
from sovereign_lab.models.synthetic import SHAPES, SyntheticShape, write_synthetic

DEEP = SyntheticShape(layers=22, dim=128, ffn_dim=352, heads=8, kv_heads=1, head_dim=32, vocab=600)


def test_the_same_seed_gives_the_same_file(
    tiny: Path, tmp_path: Path, tiny_shape: SyntheticShape
) -> None:
    again = write_synthetic(tmp_path / "tiny.gguf", tiny_shape, seed=5)
    other = write_synthetic(tmp_path / "other.gguf", tiny_shape, seed=6)
    assert again.read_bytes() == tiny.read_bytes()
    assert (
        open_gguf(other).raw("output.weight").tobytes()
        != open_gguf(tiny).raw("output.weight").tobytes()
    )


@pytest.mark.parametrize("tied", [False, True])
def test_activations_stay_of_ordinary_size(tied: bool, tmp_path: Path) -> None:
    shape = SyntheticShape(**{**DEEP.__dict__, "tied": tied})
    model = load_model(write_synthetic(tmp_path / "deep.gguf", shape))
    sizes: list[float] = []

    def observe(layer: int, name: str, x: np.ndarray) -> None:
        sizes.append(float(np.sqrt(np.mean(x * x))))

    tokens = np.random.default_rng(1).integers(3, 600, 40).tolist()
    logits = reference.forward(model, tokens, observe=observe)
    assert min(sizes) > 0.2 and max(sizes) < 3
    assert 1.5 < logits.std() < 6
    assert abs(logits.mean()) < 0.5
    assert len(set(logits.argmax(axis=1).tolist())) > 5, "the argmax hardly depends on the input"


def test_tinyllama_has_its_true_size() -> None:
    shape = SHAPES["tinyllama-1.1b"]
    tensors = {tensor.name: tensor for tensor in synthetic._tensors(shape)}
    weights = sum(tensor.rows * tensor.cols for tensor in tensors.values())
    assert weights == 1_100_048_384
    assert {tensor.type for name, tensor in tensors.items() if name.startswith("blk")} == {
        Type.Q4_0,
        Type.F32,
    }
    assert tensors["output.weight"].type == tensors["token_embd.weight"].type == Type.Q8_0
    assert shape.context == 8192


def test_the_vocabulary_is_of_the_llama_family(tiny: Path) -> None:
    tokenizer = load_model(tiny).tokenizer
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, True)
    ids = tokenizer.encode("Hello, wörld!")
    assert ids[0] == 1 and ids.count(1) == 1
    assert tokenizer.decode(ids[1:]).strip() == "Hello, wörld!"
    large = synthetic._vocabulary(49152)[0]
    assert len(set(large)) == 49152


@pytest.mark.parametrize(
    "shape",
    [
        SyntheticShape(2, 96, 64, 9, 3, 32, 300, tied=True),
        SyntheticShape(2, 128, 96, 4, 2, 64, 512),
        SyntheticShape(1, 128, 64, 8, 1, 128, 400, rope_base=500000.0),
    ],
    ids=["9/3 heads of 32, tied", "4/2 heads of 64", "8/1 heads of 128"],
)
def test_llama_cpp_computes_the_same(shape: SyntheticShape, tmp_path: Path) -> None:
    import llama_cpp_oracle

    path = write_synthetic(tmp_path / "model.gguf", shape, seed=3)
    model = load_model(path)
    prompt = [1, *range(70, 110, 3), 261, 280]
    logits = reference.forward(model, prompt)[-1].astype(np.float64)
    ours = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    assert ours.argmax() not in model.tokenizer.eog_ids  # llama.cpp would say nothing of its odds
    theirs = llama_cpp_oracle.next_token_logprobs(path, prompt, shape.vocab)
    likely = np.argsort(-ours)[:50]
    # llama.cpp rounds activations to 8 bits, here they are float32.
    differences = [abs(theirs[int(token)] - ours[token]) for token in likely]
    assert np.mean(differences) < 0.08
    assert max(theirs, key=lambda token: theirs[token]) in likely[:2]


@pytest.mark.parametrize(
    "change", [{"dim": 80}, {"kv_heads": 3}, {"layers": 0}, {"head_dim": 33}, {"vocab": 100}]
)
def test_impossible_shapes_are_refused(change: dict[str, int], tmp_path: Path) -> None:
    shape = SyntheticShape(**{**DEEP.__dict__, **change})
    with pytest.raises(LabError, match="no llama model has"):
        write_synthetic(tmp_path / "no.gguf", shape)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError("6488064 requested and 642784 written"),
    ],
    ids=["disk", "quota", "NumPy's short write"],
)
def test_a_full_disk_leaves_nothing(
    error: OSError, tmp_path: Path, tiny_shape: SyntheticShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise error

    monkeypatch.setattr(GGUFWriter, "write_tensor_data", fails)
    with pytest.raises(LabError, match=r"the disk is full, so .*no.gguf could not be written"):
        write_synthetic(tmp_path / "no.gguf", tiny_shape)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_the_old_file(
    tmp_path: Path, tiny_shape: SyntheticShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_synthetic(tmp_path / "model.gguf", tiny_shape, seed=1)
    before = path.read_bytes()

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(GGUFWriter, "write_tensor_data", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_synthetic(path, tiny_shape, seed=2)
    assert [child.name for child in tmp_path.iterdir()] == ["model.gguf"]
    assert path.read_bytes() == before
