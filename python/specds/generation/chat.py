"""A conversation that computes and indexes each turn once."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from threading import Event, Thread
from typing import Any

import torch
from transformers import (
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    TextIteratorStreamer,
)
from transformers.generation.streamers import BaseStreamer

from specds._core import Datastore, Memory, Session
from specds.decoding.stats import GenerationStats
from specds.drafters.fused import FusedDrafter
from specds.generation.arguments import takes_past
from specds.generation.generate import generate
from specds.generation.options import Drafts, Options
from specds.models.native import NativeCache, NativeModel
from specds.models.tokenization import check_tokenizer, require_chat_template, vocab_size
from specds.verify.states import MarkedCache
from specds.verify.support import is_recurrent


class Chat:
    """A conversation with a model, by the chat template of its tokenizer.

    Each reply is what `model.generate` would write after the whole conversation. The drafter's
    session lasts for all turns, and so does the key-value cache, unless attention is chunked.

    Args:
        model: A decoder-only transformers model.
        tokenizer: Its tokenizer, with a chat template.
        drafter: As in `generate`; by default one with a request cache of earlier conversations.
        messages: First messages of each conversation, such as a system prompt: `role` and
            `content` of each.
        **settings: As in `generate`; `max_new_tokens` is 1,024 unless a length is set.

    Attributes:
        messages: All messages so far; what is removed from them is forgotten by the model.
        first_messages: What a conversation begins with after `clear`.
        stats: Counts and times of all turns together.
        last_stats: Those of the last turn.

    Raises:
        ValueError: The tokenizer has no chat template, or the datastore is of another one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        drafter: Drafts = None,
        *,
        messages: Sequence[dict[str, str]] = (),
        **settings: Any,
    ) -> None:
        require_chat_template(tokenizer)
        self.first_messages = [*messages]
        self.messages = [*messages]
        self.stats, self.last_stats = GenerationStats(), GenerationStats()
        if drafter is None:
            drafter = FusedDrafter(memory=Memory(vocab_size(tokenizer)))
        self._model = model
        self._tokenizer = tokenizer
        self._drafter = Options.of(drafter).drafter
        datastore = getattr(self._drafter, "datastore", None)
        if isinstance(datastore, Datastore) and datastore.tokenizer_fingerprint:
            check_tokenizer(datastore, tokenizer)
        self._settings = settings
        self._token_ids: list[int] = []
        self._cache = self._empty_cache()
        # The session has observed `_token_ids`.
        self._session: Session | None = None

    def send(self, text: str, streamer: BaseStreamer | None = None, **settings: Any) -> str:
        """Send a message of the user and return the reply, without special tokens.

        A turn that fails leaves the conversation as it was.

        Args:
            text: The message.
            streamer: As in `generate`: it receives the whole prompt first.
            **settings: As in `generate`, for this turn.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt: Any = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = prompt["input_ids"].to(self._model.device)
        self._roll_back(ids[0].tolist())
        if isinstance(self._cache, MarkedCache):
            # Templates may drop a reply's reasoning, or begin a reply otherwise in later turns.
            earlier: Any = self._tokenizer.apply_chat_template(messages, return_dict=True)
            self._cache.mark_at = _num_shared(earlier["input_ids"], ids[0].tolist())
        settings = {**self._settings, **settings}
        config = settings.get("generation_config")
        lengths = ("max_new_tokens", "max_length")
        if not any(name in settings or getattr(config, name, None) for name in lengths):
            settings["max_new_tokens"] = 1024
        try:
            output = generate(
                self._model,
                ids,
                self._drafter,
                session=self._session_of(ids[0].tolist()),
                cache=self._cache,
                streamer=streamer,
                tokenizer=self._tokenizer,
                **settings,
            )
        except BaseException:
            self._end_session()
            raise
        self.last_stats = output.stats
        self.stats.merge(output.stats)
        self._token_ids = output.sequences[0].tolist()
        reply: Any = self._tokenizer.decode(
            self._token_ids[ids.shape[1] :], skip_special_tokens=True
        )
        self.messages = [*messages, {"role": "assistant", "content": reply}]
        return str(reply)

    def stream(self, text: str, **settings: Any) -> Iterator[str]:
        """Sends a message and yields the pieces of the reply as they are written.

        The turn starts with the first piece. Leaving the loop early ends the reply there.

        Args:
            text: The message.
            **settings: As in `generate`, for this turn.
        """
        streamer: Any = TextIteratorStreamer(
            self._tokenizer,
            skip_prompt=True,
            skip_special_tokens=True,
        )
        left, failures = Event(), list[BaseException]()

        def is_left(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.full((len(input_ids),), left.is_set(), device=input_ids.device)

        criteria = StoppingCriteriaList(settings.pop("stopping_criteria", ()))
        criteria.append(is_left)

        def send() -> None:
            try:
                self.send(text, streamer, stopping_criteria=criteria, **settings)
            except BaseException as error:
                failures.append(error)
                streamer.end()

        thread = Thread(target=send)
        thread.start()
        try:
            yield from streamer
        finally:
            left.set()
            thread.join()
        if failures:
            raise failures[0]

    def clear(self) -> None:
        """End the conversation, which the drafter may store, and start another."""
        self._end_session()
        self.messages = [*self.first_messages]
        self._token_ids, self._cache = [], self._empty_cache()

    def _empty_cache(self) -> Any:
        if not takes_past(self._model):
            return None
        if isinstance(self._model, NativeModel):
            return NativeCache()
        return MarkedCache() if is_recurrent(self._model) else DynamicCache()

    def _roll_back(self, token_ids: list[int]) -> None:
        """Keep the states of the prompt's known beginning: a template may change earlier text."""
        shared = _num_shared(self._token_ids, token_ids[:-1])
        if shared == 0 or self._cache is None:
            self._cache = self._empty_cache()
        elif isinstance(self._cache, MarkedCache):
            self._cache = self._cache.rolled_back(shared)
        elif shared < self._cache.get_seq_length():
            self._cache.crop(shared - self._cache.get_seq_length())

    def _session_of(self, prompt_ids: list[int]) -> Session | None:
        """Return the session with a prompt; None if the drafter lacks a token of the prompt."""
        size, length = self._drafter.vocab_size, len(self._token_ids)
        if size is not None and max(prompt_ids) >= size:
            self._end_session()
        elif self._session is not None and prompt_ids[:length] == self._token_ids:
            self._session.observe(prompt_ids[length:])
        else:
            self._end_session()
            self._session = self._drafter.session(prompt_ids)
        return self._session

    def _end_session(self) -> None:
        ended, self._session = self._session, None
        if ended is not None:
            ended.finish()


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common beginning."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
