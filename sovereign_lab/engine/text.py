"""A text that grows token by token: what of it can be shown, and whether and why it has ended."""

from collections.abc import Sequence

from sovereign_lab.engine.generation import FinishReason, Generation
from sovereign_lab.engine.stops import StopStrings
from sovereign_lab.models.tokenizer import Tokenizer


class Text:
    """Continues `prompt` (its tokens are `ids`) by at most `limit` tokens.

    `limit` is `max_tokens`, or what `context` has room for where that is less. `reason` is None until the text has
    ended: at a token that ends texts, a stop string, or the limit.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: str,
        ids: Sequence[int],
        max_tokens: int,
        context: int,
        stops: StopStrings,
    ) -> None:
        self.prompt, self.ids = prompt, tuple(ids)
        # The last position can still be run, and its token is one more than the context holds.
        room = context - len(ids) + 1
        self.limit: int = min(max_tokens, room)
        self.reason: FinishReason | None = None
        self._at_limit: FinishReason = "length" if max_tokens <= room else "context"
        self._ends, self._decoder, self._stops = tokenizer.eog_ids, tokenizer.stream(), stops
        self._token_ids: list[int] = []
        self._argmax_ids: list[int] = []
        self._pieces: list[str] = []

    def push(self, token: int, best: int) -> str:
        """Take the next token, and the most likely one beside it; returns the text that can be shown now."""
        stops = self._stops
        if token in self._ends:
            self.reason, piece = "stop", self._held_back()
        else:
            self._token_ids.append(token)
            self._argmax_ids.append(best)
            piece = stops.push(self._decoder.push(token))
            if stops.found is None and len(self._token_ids) == self.limit:
                self.reason = self._at_limit
                piece += self._held_back()
        if stops.found is not None:
            self.reason = "stop"
        self._pieces.append(piece)
        return piece

    def _held_back(self) -> str:
        return self._stops.push(self._decoder.finish()) + self._stops.finish()

    def generation(self, forwards: int, seconds: float, prefill: float | None) -> Generation:
        """The text that has ended, with the time that `forwards` forward passes took, and its prefill's tokens/s."""
        assert self.reason is not None
        return Generation(
            prompt=self.prompt,
            text="".join(self._pieces),
            prompt_ids=self.ids,
            token_ids=tuple(self._token_ids),
            argmax_ids=tuple(self._argmax_ids),
            finish_reason=self.reason,
            tokens_per_second=forwards / seconds,
            ms_per_forward=seconds / forwards * 1e3,
            prefill_tokens_per_second=prefill,
            stop=self._stops.found,
        )
