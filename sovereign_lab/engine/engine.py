"""A model on a device, at a phase of the ladder: it scores texts and generates them."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Unpack

import numpy as np
from tqdm import tqdm

from sovereign_lab.devices import Device, Kernel
from sovereign_lab.devices.device import Capture, Source
from sovereign_lab.engine import batch, forward, persistent, prefill, tiled
from sovereign_lab.engine.chat import Message, render
from sovereign_lab.engine.forward import Call
from sovereign_lab.engine.generation import Generation
from sovereign_lab.engine.kv_cache import KVCache
from sovereign_lab.engine.phases import PHASES
from sovereign_lab.engine.sampling import Filters, Sampling
from sovereign_lab.engine.stops import StopStrings
from sovereign_lab.engine.stream import RUN_AHEAD, TextStream
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.persistent_op import has_ring
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.models import reference
from sovereign_lab.models.model import Model


class Engine:
    """Runs `model` on `device` with the kernels of `phase`.

    `kv_dtype` is "fp16" or "fp32". `context` bounds the positions held (the model's own by default). `graphs`:
    a token is one replay of a recording; without, one launch after the other from Python, which shows what
    launching costs. Compiles what is not in the cache; `progress` shows bars. `weights`, `split` and `tiles`: the
    model's on that device already, as another engine holds them. Raises LabError for an unknown phase or
    type, a context the model does not have, a head size or a GPU that a kernel does not support.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        phase: str = "8b",
        kv_dtype: str = "fp16",
        graphs: bool = True,
        context: int | None = None,
        progress: bool = False,
        weights: forward.DeviceWeights | None = None,
        split: tuple[prefill.SplitLayer, ...] | None = None,
        tiles: tiled.TiledWeights | None = None,
    ) -> None:
        config = model.config
        self.model = model
        self.device = device
        self.phase = PHASES.phase(phase)
        self.graphs = graphs
        self.kv_dtype = kv_dtype
        self.context = config.context if context is None else context
        if not 1 <= self.context <= config.context:
            raise LabError(
                f"{config.name} has a context of 1 to {config.context} positions; {context} was asked for."
            )
        if config.head_dim > 128:
            raise LabError(
                f"The lab's attention kernels take head sizes up to 128; {config.name} has {config.head_dim}."
            )

        # From phase 9c on a prompt goes through in blocks of tokens.
        self.in_blocks = "gemm_q4_0" in self.phase.plan
        if self.in_blocks and config.head_dim % 16:
            raise LabError(
                f"Phase {self.phase.id} takes head sizes that are a multiple of 16; {config.name} has "
                f"{config.head_dim}. Choose phase {self.phase.base}."
            )

        self.kv = KVCache.allocate(device, config, self.context, kv_dtype)
        self.kernels = self._compile(progress)
        self.weights = weights or forward.DeviceWeights.upload(model, device, progress)
        self.state = forward.State.allocate(device, config, self.context)
        self.tiles = tiles
        # From phase 10 on weights are in tiles, and activations in int8.
        self.in_tiles = any(variant.layout == "tiles" for variant, _ in self.kernels.values())
        if self.in_tiles:
            self.tiles = tiles or tiled.TiledWeights.upload(model, device, progress)
        self._list_calls()
        self.split = split
        if self.in_blocks:
            self.split = split or prefill.upload(model, device, progress)
            self._block_state = prefill.BlockState.allocate(device, config)
            self._full_block = self.block_calls(prefill.TOKENS)
        # By the list that was recorded, which is kept: another list could come to lie at its address.
        self._recordings: dict[int, tuple[Sequence[Call], Capture]] = {}
        self.batch: batch.Batch | None = None  # what `generate_batch` used last

    def _list_calls(self) -> None:
        """The launches of a token: of the prompt's, of the best one's, of a drawn one's."""
        s, plan, config = self.state, self.phase.plan, self.model.config
        best, drawn = forward.advance(s, s.best), forward.advance(s, s.drawn)
        draw = [forward.sample(config, s), drawn] if "sample" in plan else []
        self._run_ahead: list[Call] = []  # RUN_AHEAD tokens in one launch, where a phase has that
        if "persistent" in plan:
            assert self.tiles is not None
            ring = has_ring(self.kernels["persistent"][0])
            state = persistent.PersistentState.allocate(self.device, config, self.context, ring)
            launch = partial(
                persistent.tokens, config, self.weights, self.tiles, s, state, self.kv, self.context
            )
            self._run_ahead = [launch(RUN_AHEAD)]
            self.prefill_calls = self.decode_calls = [launch(1)]
            self.sampled_calls = [launch(1, advance=False), *draw] if draw else []
            return
        if self.in_tiles:
            assert self.tiles is not None
            split = None
            if "attention_split" in plan:
                split = tiled.SplitState.allocate(self.device, config, self.context)
            facts = (plan, config, self.weights, self.tiles, s)
            body = list(tiled.layers(*facts, split, self.kv, self.context))
            head = list(tiled.head(*facts))
        else:
            streams = self.phase.streams
            body = list(
                forward.layers(plan, config, self.weights, s, self.kv, self.context, streams)
            )
            head = list(forward.head(config, self.weights, s))
        # A token of the prompt needs no logits but the last one's; a drawn token needs a draw.
        self.prefill_calls = [*body, best]
        self.decode_calls = [*body, *head, best]
        self.sampled_calls = [*body, *head, *draw] if draw else []

    def with_phase(self, phase: str) -> "Engine":
        """The same model on the same device at another phase; the weights on the device are shared."""
        return Engine(
            self.model,
            self.device,
            phase,
            self.kv_dtype,
            self.graphs,
            self.context,
            weights=self.weights,
            split=self.split,
            tiles=self.tiles,
        )

    @property
    def halves(self) -> tuple[str, ...]:
        """The fields of Layer whose products this engine computes from halves in decoding: for reference.forward."""
        products = {
            "gemv_q4_0": ("wq", "wk", "wv", "wo", "w_down"),
            "ffn_swiglu": ("w_gate", "w_up"),
        }
        if self.in_tiles:
            return ()
        if "ffn_swiglu" not in self.kernels:
            products = {"gemv_q4_0": products["gemv_q4_0"] + products["ffn_swiglu"]}
        rounded = [name for name in products if self.kernels[name][0].rounded is not None]
        return tuple(field for name in rounded for field in products[name])

    @property
    def int8_inputs(self) -> tuple[str, ...]:
        """The products whose activations this engine takes as int8 in decoding: for reference.forward."""
        if not self.in_tiles:
            return ()
        return ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down", "head")

    def _compile(self, progress: bool) -> dict[str, tuple[Variant, Kernel]]:
        variants = {name: op(name).variant(chosen) for name, chosen in self.phase.plan.items()}
        self.check_arch(variants)
        sources = [
            Source(v.source, f"{name}/{v.path.name}", {"KV": self.kv.kernel_type})
            for name, v in variants.items()
        ]
        with tqdm(
            total=len(sources), desc="kernels", unit="kernel", disable=not progress, leave=False
        ) as bar:

            def report(name: str) -> None:
                bar.update()

            kernels = self.device.compile_all(sources, report)
        return {name: (v, k) for (name, v), k in zip(variants.items(), kernels, strict=True)}

    def check_arch(self, variants: Mapping[str, Variant]) -> None:
        """Raise LabError for a variant, by op, that needs a newer GPU than this engine's."""
        properties = self.device.properties
        if properties.kind != "cuda":
            return
        for name, variant in variants.items():
            if int(properties.arch.removeprefix("sm_")) < variant.arch:
                raise LabError(
                    f"{name}:{variant.name} needs sm_{variant.arch}; {properties.name} is {properties.arch}. "
                    "Choose another phase, or the SIMT device."
                )

    # ---- running launches ----

    def launch_all(self, calls: Sequence[Call]) -> None:
        """Launch `calls`, each with the phase's variant of its op: in turn, branches on streams of their own."""
        for parted, group in groupby(calls, key=lambda call: call.branch is not None):
            if not parted:
                for call in group:
                    self._launch(call)
                continue
            side_by_side = [(call, call.branch or 0) for call in group]
            with self.device.fork(1 + max(branch for _, branch in side_by_side)) as streams:
                for call, branch in side_by_side:
                    self._launch(call, streams[branch])

    def _launch(self, call: Call, stream: Any = None) -> None:
        variant, kernel = self.kernels[call.op]
        grid = op(call.op).grid(variant, call.args)
        args, shared_bytes = list(call.args.values()), variant.shared_bytes(call.args)
        self.device.launch(
            kernel, grid, variant.threads, args, shared_bytes, variant.cooperative, stream
        )

    def run(self, calls: Sequence[Call]) -> None:
        """Run one of the engine's own lists of calls once: the token at the device's position, and on to the next."""
        if not self.graphs:
            self.launch_all(calls)
            return
        if id(calls) not in self._recordings:
            with self.device.capture() as capture:
                self.launch_all(calls)
            self._recordings[id(calls)] = (calls, capture)
        self._recordings[id(calls)][1].replay()

    def decode(self, count: int) -> None:
        """Run `count` tokens from the device's position on, each one's best the next; returns at once on a GPU."""
        if self._run_ahead:
            for _ in range(count // RUN_AHEAD):
                self.run(self._run_ahead)
            count %= RUN_AHEAD
        for _ in range(count):
            self.run(self.decode_calls)

    def forget(self, *lists: Sequence[Call]) -> None:
        """Drop the recordings of lists that will not run again."""
        for calls in lists:
            self._recordings.pop(id(calls), None)

    def _begin(self, ids: Sequence[int], given: int) -> None:
        """Put tokens on the device and go to position 0."""
        device, s = self.device, self.state
        device.update(s.tokens[: len(ids)], np.asarray(ids, np.int32))
        device.update(s.position, np.zeros(1, np.int32))
        device.update(s.given, np.array([given], np.int32))

    def _check(self, ids: Sequence[int]) -> None:
        vocab = self.model.config.vocab
        if not ids:
            raise LabError("There is nothing to start from: the prompt has no tokens.")
        if len(ids) > self.context:
            raise LabError(
                f"The prompt has {len(ids)} tokens, and the context has room for {self.context}; shorten it."
            )
        if min(ids) < 0 or max(ids) >= vocab:
            raise LabError(
                f"Token ids of this model are 0 to {vocab - 1}; got {min(ids)} to {max(ids)}."
            )

    # ---- scoring ----

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits at every position of a given text: float32 [len(token_ids), vocab], teacher-forced."""
        self._check(token_ids)
        self._begin(token_ids, given=self.context + 1)
        rows = []
        for _ in token_ids:
            self.run(self.decode_calls)
            rows.append(self.device.to_host(self.state.logits))
        return np.stack(rows)

    def agreement(self, generation: Generation) -> float:
        """The share of generated positions whose argmax is also the NumPy reference's, 0 to 1."""
        if not generation.token_ids:
            return 1.0
        text = [*generation.prompt_ids, *generation.token_ids[:-1]]
        expected = reference.forward(self.model, text, self.kv.dtype)[
            len(generation.prompt_ids) - 1 :
        ].argmax(axis=1)
        return float(np.mean(expected == np.asarray(generation.argmax_ids)))

    # ---- generating ----

    def generate(
        self,
        prompt: str,
        max_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
        *,
        stop: str | Sequence[str] = (),
        **filters: Unpack[Filters],
    ) -> Generation:
        """Continue `prompt` by up to `max_tokens` tokens; see `stream` for the rest and what it raises."""
        stream = self.stream(prompt, max_tokens, temperature, seed, stop=stop, **filters)
        for _ in stream:
            pass
        return stream.result

    def generate_batch(
        self,
        prompts: Sequence[str],
        max_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
        *,
        stop: str | Sequence[str] = (),
        **filters: Unpack[Filters],
    ) -> list[Generation]:
        """Continue several prompts together, each by up to `max_tokens` tokens; see `stream` for what they mean.

        Each text ends for itself; its place in the batch stays empty until all have ended. At temperature 0 it is the
        one that `generate` gives at this phase, but where two tokens are almost equally likely. Above it the host
        draws, for prompt i with seed + i. A Generation's `tokens_per_second` counts its own text alone: all that
        run make that many each. Raises LabError as `stream` does, and before phase 9c.
        """
        sampling = Sampling(temperature=temperature, seed=seed, **filters)
        return batch.generate(self, prompts, max_tokens, sampling, stop)

    def chat(
        self,
        messages: Sequence[Message],
        max_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
        *,
        stop: str | Sequence[str] = (),
        **filters: Unpack[Filters],
    ) -> Generation:
        """The answer to `messages` ({"role": ..., "content": ...} each); see `chat_prompt` and `stream`."""
        prompt = self.chat_prompt(messages)
        return self.generate(prompt, max_tokens, temperature, seed, stop=stop, **filters)

    def chat_prompt(self, messages: Sequence[Message]) -> str:
        """The prompt that the model's own template makes of `messages`; `chat.render` says what it raises."""
        return render(self.model.tokenizer, messages)

    def stream(
        self,
        prompt: str,
        max_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
        *,
        stop: str | Sequence[str] = (),
        **filters: Unpack[Filters],
    ) -> TextStream:
        """Iterate over pieces of text as they are generated; the stream's `result` is there once it has ended.

        temperature 0 takes the most likely token. Above it, the device draws by temperature and top_p from phase 2
        on; the host draws before, and wherever another filter is asked for: the same distribution, but for a seed
        another text. `filters` are top_k, top_p, min_p, repeat_penalty and repeat_window, as `Sampling` explains
        them. The text ends before the first `stop` string that comes up. An empty prompt starts from the BOS token.
        Raises LabError for a prompt longer than the context, an empty one where the model has no BOS, a bad choice
        of sampling, or a kernel that fails.
        """
        sampling = Sampling(temperature=temperature, seed=seed, **filters)
        ids = self.prompt_ids(prompt, max_tokens)
        return TextStream(self, prompt, ids, max_tokens, sampling, StopStrings(stop))

    def prompt_ids(self, prompt: str, max_tokens: int) -> list[int]:
        """The tokens to start from; an empty prompt's is BOS. Raises LabError as `stream` says."""
        tokenizer = self.model.tokenizer
        ids = tokenizer.encode(prompt)
        if not ids and tokenizer.bos_id is not None:
            ids = [tokenizer.bos_id]
        self._check(ids)
        if max_tokens < 1:
            raise LabError(f"max_tokens is 1 or more; got {max_tokens}.")
        return ids

    def block_calls(self, count: int, kv: KVCache | None = None) -> list[Call]:
        """What runs `count` tokens at once, from the device's position on, into `kv`; it stays there."""
        assert self.split is not None
        return list(
            prefill.block(
                self.model.config,
                self.weights,
                self.split,
                self.state,
                self._block_state,
                kv or self.kv,
                count,
            )
        )

    def prefill(self, ids: Sequence[int], given: int, kv: KVCache | None = None) -> float | None:
        """Run all tokens but the last; tokens per second, None where there are none to run.

        One by one, or from phase 9c on in blocks; then also into another cache than the engine's own, `kv`.
        """
        self._begin(ids, given)
        if len(ids) == 1:
            return None
        start = time.perf_counter()
        if self.in_blocks:
            self._run_blocks(len(ids) - 1, kv)
        else:
            for _ in ids[:-1]:
                self.run(self.prefill_calls)
        self.device.synchronize()
        return (len(ids) - 1) / (time.perf_counter() - start)

    def _run_blocks(self, count: int, kv: KVCache | None) -> None:
        """The first `count` tokens. Full blocks are recorded once; the rest of a prompt has a length of its own."""
        for first in range(0, count, prefill.TOKENS):
            now = min(prefill.TOKENS, count - first)
            if now == prefill.TOKENS and kv is None:
                self.run(self._full_block)
            else:
                self.launch_all(self.block_calls(now, kv))
            self.device.update(self.state.position, np.array([first + now], np.int32))
