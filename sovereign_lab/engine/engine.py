"""A model on a device, at a phase of the ladder: it scores texts and generates them."""

import time
from collections.abc import Generator, Iterator, Sequence

import numpy as np
from tqdm import tqdm

from sovereign_lab.devices import Device, Kernel
from sovereign_lab.devices.device import Capture, Source
from sovereign_lab.engine import forward
from sovereign_lab.engine.forward import Call
from sovereign_lab.engine.generation import FinishReason, Generation
from sovereign_lab.engine.kv_cache import KVCache
from sovereign_lab.engine.phases import PHASES
from sovereign_lab.engine.sampling import Sampler
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.models import reference
from sovereign_lab.models.model import Model

# How many tokens a GPU runs ahead before the host looks at them: it never waits for the host between tokens.
RUN_AHEAD = 16


class Engine:
    """Runs `model` on `device` with the kernels of `phase`.

    `kv_dtype` is "fp16" or "fp32". `context` bounds the positions held (the model's own by default). `graphs`:
    a token is one replay of a recording; without, one launch after the other from Python, which shows what
    launching costs. Compiles what is not in the cache; `progress` shows bars. Raises LabError for an unknown
    phase or type, a context the model does not have, a head size or device that a kernel does not support.
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
    ) -> None:
        config = model.config
        self.model, self.device, self.phase, self.graphs = (
            model,
            device,
            PHASES.phase(phase),
            graphs,
        )
        self.context = config.context if context is None else context
        if not 1 <= self.context <= config.context:
            raise LabError(
                f"{config.name} has a context of 1 to {config.context} positions; {context} was asked for."
            )
        if config.head_dim > 128:
            raise LabError(
                f"The lab's attention kernels take head sizes up to 128; {config.name} has {config.head_dim}."
            )

        self.kv = KVCache.allocate(device, config, self.context, kv_dtype)
        self.kernels = self._compile(progress)
        self.weights = forward.DeviceWeights.upload(model, device, progress)
        self.state = forward.State.allocate(device, config, self.context)
        body = list(
            forward.layers(self.phase.plan, config, self.weights, self.state, self.kv, self.context)
        )
        advance = forward.advance(self.state)
        # Two sequences: a token of the prompt needs no logits but the last one's.
        self.prefill_calls = [*body, advance]
        self.decode_calls = [*body, *forward.head(config, self.weights, self.state), advance]
        self._recordings: dict[str, Capture] = {}

    def _compile(self, progress: bool) -> dict[str, tuple[Variant, Kernel]]:
        variants = {name: op(name).variant(chosen) for name, chosen in self.phase.plan.items()}
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

    # ---- running launches ----

    def _launch_all(self, calls: Sequence[Call]) -> None:
        for name, args in calls:
            variant, kernel = self.kernels[name]
            grid = op(name).grid(variant, args)
            self.device.launch(
                kernel, grid, variant.threads, list(args.values()), variant.shared_bytes(args)
            )

    def _run(self, calls: Sequence[Call]) -> None:
        if not self.graphs:
            self._launch_all(calls)
            return
        which = "prefill" if calls is self.prefill_calls else "decode"
        if which not in self._recordings:
            with self.device.capture() as capture:
                self._launch_all(calls)
            self._recordings[which] = capture
        self._recordings[which].replay()

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
            self._run(self.decode_calls)
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
        self, prompt: str, max_tokens: int = 64, temperature: float = 0.0, seed: int = 0
    ) -> Generation:
        """Continue `prompt` by up to `max_tokens` tokens; see `stream` for what it raises."""
        stream = self.stream(prompt, max_tokens, temperature, seed)
        for _ in stream:
            pass
        return stream.result

    def stream(
        self, prompt: str, max_tokens: int = 64, temperature: float = 0.0, seed: int = 0
    ) -> "TextStream":
        """Iterate over pieces of text as they are generated; the stream's `result` is there once it has ended.

        temperature 0 takes the most likely token. An empty prompt starts from the BOS token. Raises LabError
        for a prompt longer than the context, an empty one where the model has no BOS, a bad temperature, or a
        kernel that fails.
        """
        tokenizer = self.model.tokenizer
        ids = tokenizer.encode(prompt)
        if not ids and tokenizer.bos_id is not None:
            ids = [tokenizer.bos_id]
        self._check(ids)
        if max_tokens < 1:
            raise LabError(f"max_tokens is 1 or more; got {max_tokens}.")
        return TextStream(
            self, prompt, ids, max_tokens, Sampler(temperature, seed) if temperature else None
        )

    def _prefill(self, ids: Sequence[int], given: int) -> float | None:
        """Run all tokens but the last, one by one; tokens per second, None where there are none to run."""
        self._begin(ids, given)
        if len(ids) == 1:
            return None
        start = time.perf_counter()
        for _ in ids[:-1]:
            self._run(self.prefill_calls)
        self.device.synchronize()
        return (len(ids) - 1) / (time.perf_counter() - start)


class TextStream(Iterator[str]):
    """Pieces of text as they come; `result` once the stream has ended."""

    result: Generation

    def __init__(
        self, engine: Engine, prompt: str, ids: list[int], max_tokens: int, sampler: Sampler | None
    ) -> None:
        self._engine, self._prompt, self._ids, self._sampler = engine, prompt, ids, sampler
        # The last position can still be run, and its token is one more than the context holds.
        room = engine.context - len(ids) + 1
        self._limit: int = min(max_tokens, room)
        self._at_limit: FinishReason = "length" if max_tokens <= room else "context"
        self._seconds = 0.0
        self._forwards = 0
        self._pieces = self._generate()

    def __next__(self) -> str:
        return next(self._pieces)

    def _generate(self) -> Generator[str, None, None]:
        tokenizer = self._engine.model.tokenizer
        text, pieces = tokenizer.stream(), []
        token_ids: list[int] = []
        argmax_ids: list[int] = []
        reason = self._at_limit
        given = len(self._ids) if self._sampler is None else self._engine.context + 1
        prefill = self._engine._prefill(self._ids, given)
        for token, best in self._tokens():
            if token in tokenizer.eog_ids:
                reason = "stop"
                break
            token_ids.append(token)
            argmax_ids.append(best)
            pieces.append(text.push(token))
            if pieces[-1]:
                yield pieces[-1]
        pieces.append(text.finish())
        if pieces[-1]:
            yield pieces[-1]
        self.result = Generation(
            prompt=self._prompt,
            text="".join(pieces),
            prompt_ids=tuple(self._ids),
            token_ids=tuple(token_ids),
            argmax_ids=tuple(argmax_ids),
            finish_reason=reason,
            tokens_per_second=self._forwards / self._seconds,
            ms_per_forward=self._seconds / self._forwards * 1e3,
            prefill_tokens_per_second=prefill,
        )

    def _tokens(self) -> Iterator[tuple[int, int]]:
        """(token, argmax) for up to the limit; the clock runs only while the device or the sampler works."""
        engine, state = self._engine, self._engine.state
        first = len(self._ids)
        ahead = (
            RUN_AHEAD if self._sampler is None and engine.device.properties.kind == "cuda" else 1
        )
        done = 0
        while done < self._limit:
            count = min(ahead, self._limit - done)
            start = time.perf_counter()
            for _ in range(count):
                engine._run(engine.decode_calls)
            if self._sampler is None:
                new = [
                    (int(t), int(t))
                    for t in engine.device.to_host(
                        state.tokens[first + done : first + done + count]
                    )
                ]
            else:
                logits = engine.device.to_host(state.logits)
                new = [(self._sampler.pick(logits), int(np.argmax(logits)))]
                engine.device.update(
                    state.tokens[first + done : first + done + 1], np.array([new[0][0]], np.int32)
                )
            self._seconds += time.perf_counter() - start
            self._forwards += count
            done += count
            yield from new
