"""The byte counts and floors that the lab quotes, against figures worked out by hand."""

import pytest
from gguf import GGMLQuantizationType as T

from sovereign_lab.errors import LabError
from sovereign_lab.measure.roofline import (
    GPUS,
    find_gpu,
    floor,
    matrix_bytes,
    token_bytes,
)
from sovereign_lab.notebook.seed import TINYLLAMA

BY_NAME = {gpu.name: gpu for gpu in GPUS}


def test_layers_of_tinyllama_are_545_megabytes() -> None:
    # 2 square matrices, 2 of 256 rows, 3 of 2048 x 5632; 18 bytes for 32 weights; 22 layers.
    weights = 2 * 2048 * 2048 + 2 * 256 * 2048 + 3 * 2048 * 5632
    assert token_bytes(TINYLLAMA).layers == 22 * weights * 18 // 32 == 544_997_376


@pytest.mark.parametrize(
    ("head", "megabytes"), [(T.Q6_K, 53.8), (T.Q4_0, 36.9), (T.Q8_0, 69.6), (T.F32, 262.1)]
)
def test_head_of_tinyllama_by_type(head: T, megabytes: float) -> None:
    assert token_bytes(TINYLLAMA, head).head / 1e6 == pytest.approx(megabytes, abs=0.05)


def test_kv_cache_bytes_follow_kv_heads_and_dtype() -> None:
    fp16 = token_bytes(TINYLLAMA)
    assert fp16.kv_per_position == 22 * 2 * 4 * 64 * 2 == 22_528
    assert token_bytes(TINYLLAMA, kv_dtype="fp32").kv_per_position == 45_056
    assert fp16.at(100) - fp16.at(0) == 100 * 22_528


@pytest.mark.parametrize(
    ("gpu", "head", "ms", "rate"),
    [
        ("RTX 5060 Ti", T.F32, 1.80, 555),
        ("RTX 5060 Ti", T.Q6_K, 1.34, 748),
        ("H200", T.F32, 0.19, 5290),
        ("H200", T.Q6_K, 0.140, 7131),
    ],
)
def test_floors_of_tinyllama(gpu: str, head: T, ms: float, rate: float) -> None:
    least = floor(token_bytes(TINYLLAMA, head).at(0), BY_NAME[gpu])
    assert least.ms == pytest.approx(ms, rel=0.01)
    assert least.tokens_per_second == pytest.approx(rate, rel=0.001)


def test_seed_ran_at_27_percent_of_its_floor() -> None:
    least = floor(token_bytes(TINYLLAMA).at(0), BY_NAME["RTX 5060 Ti"])
    assert 151 / least.tokens_per_second == pytest.approx(0.27, abs=0.005)


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    assert matrix_bytes(3, 64, T.Q4_0) == 3 * 2 * 18
    with pytest.raises(LabError, match="row of 48 is not whole blocks of 32"):
        matrix_bytes(3, 48, T.Q4_0)


def test_unknown_kv_dtype_is_refused_by_name() -> None:
    with pytest.raises(LabError, match="'int8'"):
        token_bytes(TINYLLAMA, kv_dtype="int8")


def test_gpu_is_found_by_the_drivers_name() -> None:
    assert find_gpu("NVIDIA H200") is BY_NAME["H200"]
    assert find_gpu("NVIDIA GeForce RTX 5060 Ti") is BY_NAME["RTX 5060 Ti"]
    assert find_gpu("NVIDIA GeForce GTX 1080") is None
