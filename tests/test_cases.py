"""The known ways in which engines like this one go wrong, and the test that keeps each from us.

Gathered from public bug reports. A kind of fault that is found in the wild belongs here, with the name of a
test that would have found it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

# kind of fault -> file below tests/, and test functions in it
CASES: dict[str, dict[str, tuple[str, ...]]] = {
    # -- model and numbers --
    "`llama` rotates pairs (2i, 2i+1); Q and K are not un-permuted": {
        "models/test_reference.py": (
            "test_rope_turns_neighbours_by_the_position",
            "test_forward_is_what_plain_loops_compute",
        ),
        "models/test_smollm2.py": ("test_the_real_model_is_llama_cpps",),
        "models/test_synthetic.py": ("test_llama_cpp_computes_the_same",),
    },
    "another architecture is refused by name": {
        "models/test_model.py": ("test_metadata_that_cannot_be_followed",),
    },
    "Q4_0: low nibbles are elements 0..15, shown by position-coded blocks": {
        "models/test_quants.py": (
            "test_every_weight_comes_from_its_own_nibble",
            "test_unpacking_is_what_gguf_does",
        ),
        "models/test_properties.py": ("test_unpacking_any_finite_blocks_is_what_gguf_does",),
    },
    "a Q4_0 file is mixed: each tensor by its own type, an unsupported one by a named error": {
        "models/test_model.py": (
            "test_other_types_are_requantised_with_a_notice",
            "test_k_quants_are_decoded",
            "test_tensors_that_cannot_be_run",
        ),
    },
    "no output.weight: the head is the embedding": {
        "models/test_model.py": ("test_the_head_is_the_embedding_where_the_file_ties_them",),
    },
    "GQA: query head h uses KV head h // (heads / kv_heads)": {
        "models/test_reference.py": ("test_a_query_head_reads_the_kv_head_of_its_group",),
        "kernels/test_kernels.py": ("test_variant_equals_reference",),
    },
    "the KV position advances by one a token; prefill equals token by token": {
        "engine/test_engine.py": (
            "test_prefill_fills_the_cache_position_by_position",
            "test_every_phase_equals_the_reference",
        ),
        "models/test_reference.py": ("test_a_longer_sequence_does_not_change_what_came_before",),
    },
    "sums are fp32: fp16 V sums and int8 block sums overflow": {
        "kernels/test_kernels.py": ("test_variant_equals_reference",),
    },
    "a full context ends with a clear reason": {
        "engine/test_engine.py": ("test_full_context_ends_with_its_reason",),
    },
    # -- text --
    "exactly one BOS where the metadata asks for it, none otherwise": {
        "models/test_tokenizer.py": ("test_exactly_one_bos", "test_bos_and_eos_equal_llama_cpp"),
        "models/test_properties.py": ("test_ids_are_in_the_vocabulary_and_bos_is_there_once",),
    },
    "SentencePiece: known ids of the Llama vocabulary; byte tokens are bytes": {
        "models/test_tokenizer.py": (
            "test_llama_vocabulary_known_ids",
            "test_ids_equal_llama_cpp_on_the_llama_vocabulary",
            "test_ids_equal_llama_cpp_on_the_storyteller",
            "test_sentencepiece_equals_llama_cpp",
        ),
    },
    "a character split over tokens is held until it is whole": {
        "models/test_tokenizer.py": (
            "test_a_stream_never_shows_half_a_character",
            "test_a_character_that_never_ends_shows_at_the_end_only",
        ),
        "models/test_properties.py": ("test_a_stream_is_the_text_in_whole_characters",),
    },
    "byte-level BPE: the pre-tokeniser of the file matters": {
        "models/test_tokenizer.py": (
            "test_each_pre_tokeniser_equals_llama_cpp",
            "test_everyday_ids_equal_llama_cpp_on_smollm2",
            "test_damaged_metadata_is_named",
        ),
    },
    "temperature 0 is argmax": {
        "engine/test_sampling.py": ("test_temperature_0_is_the_argmax",),
    },
    "top-p works on unsorted input and with top-k off": {
        "engine/test_sampling.py": (
            "test_top_p_takes_the_token_that_reaches_it_and_works_without_top_k",
            "test_the_order_of_the_vocabulary_is_no_matter",
        ),
    },
    "one generator, seeded once": {
        "engine/test_sampling.py": ("test_one_generator_is_seeded_once",),
    },
    # -- kernels and launches --
    "a Python float or a wrong dtype passed to a kernel; a view's strides": {
        "devices/test_signature.py": ("test_wrong_arguments_are_refused",),
    },
    "shuffles in divergent code, full masks in half warps": {
        "devices/test_simt.py": (
            "test_full_mask_in_half_a_warp_is_a_deadlock_with_names",
            "test_shuffle_in_two_branches",
            "test_mask_without_the_caller",
        ),
    },
    "a missing barrier between a write and a read of shared memory": {
        "devices/test_simt.py": (
            "test_lane_order_shows_what_relies_on_it",
            "test_shared_memory_starts_poisoned",
        ),
    },
    "block sizes that are no power of two; tails of rows": {
        "devices/test_simt.py": ("test_barriers_and_shared_memory_at_every_size_and_order",),
        "kernels/test_kernels.py": ("test_variant_equals_reference",),
    },
    "a wrong kernel passes on constant inputs, round sizes and clean outputs": {
        "kernels/test_kernels.py": ("test_variant_equals_reference",),
    },
    "a stale graph": {
        "devices/test_simt.py": ("test_recording_replays_in_order_with_its_arguments",),
        "engine/test_engine.py": (
            "test_without_graphs_the_numbers_are_the_same",
            "test_engine_is_used_again_without_traces_of_the_last_text",
        ),
    },
    # -- files --
    "truncated, at every length": {
        "models/test_gguf_file.py": ("test_every_length_that_cuts_the_file_short",),
    },
    "zero length, wrong magic, huge counts, offsets past the end or not aligned, duplicate names, a "
    "string length near 2^64": {
        "models/test_gguf_file.py": ("test_a_header_that_does_not_hold_together",),
    },
    "alignment is read as given": {
        "models/test_gguf_file.py": ("test_alignment_is_read_as_given",),
    },
    "shapes that do not match the config": {
        "models/test_model.py": (
            "test_metadata_that_cannot_be_followed",
            "test_a_vocabulary_of_another_size_than_the_embedding",
        ),
    },
    "NaN or infinite scales": {
        "models/test_model.py": ("test_a_scale_that_is_not_finite_is_found_where_it_is",),
    },
    "quickly, with no large allocation": {
        "models/test_gguf_file.py": (
            "test_a_damaged_file_takes_little_memory",
            "test_too_many_elements_in_all",
        ),
        "models/test_model.py": (
            "test_a_fault_in_the_last_tensor_is_found_before_anything_is_requantised",
        ),
        "models/test_fuzz_gguf.py": ("test_damaged_files_are_refused_in_a_sentence",),
    },
}

# What a test on any machine cannot show.
NOT_TESTED = {
    "an illegal access surfaces at a later call": "only on a GPU; the SIMT device raises at once",
    "timing: first call, warm L2, two students on one GPU": "`make bench` guards against these",
}


@pytest.mark.parametrize("fault", CASES)
def test_the_tests_against_a_known_fault_exist(fault: str) -> None:
    for file, names in CASES[fault].items():
        tree = ast.parse((TESTS / file).read_text())
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        missing = set(names) - defined
        assert not missing, f"tests/{file} lacks {', '.join(missing)}, which guards: {fault}"
