"""A conversation that computes and indexes each turn once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from specds._core import Datastore, Session
from specds.drafters.fused import FusedDrafter
from specds.generation.decode import FinishReason
from specds.generation.default_source import with_default
from specds.generation.generate import generate
from specds.generation.options import DrafterLike, Options
from specds.generation.stats import GenerationStats
from specds.generation.target import target_of
from specds.models.context import context_length_of, require_room
from specds.models.gguf_model import GgufModel
from specds.models.render import Spelling
from specds.models.spelled import SpelledPrompts
from specds.models.tokenization import check_tokenizer, require_chat_template, vocab_size
from specds.models.tool_calls import example_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.generation.streamers import BaseStreamer


ChatInput: TypeAlias = "str | Mapping[str, Any] | Sequence[Mapping[str, Any]]"
"""A text of the user, a message with its role, or several messages."""


class Chat:
    """A conversation with a model, by the chat template of its tokenizer.

    Each reply is what `model.generate` would write after the whole conversation. The drafter's
    session lasts for all turns, and so does the key-value cache, unless attention is chunked.

    Args:
        model: A decoder-only transformers model, or a `GgufModel`.
        tokenizer: Its tokenizer, with a chat template.
        drafter: As in `generate`; by default one with a request cache of earlier conversations, and
            with `specds.default_datastore` once that is built.
        messages: First messages of each conversation, such as a system prompt: `role` and
            `content` of each.
        drops_oldest: Drop the oldest turns, but no first message, of a conversation that leaves
            less than a quarter of the context to the reply.
        tools: Definitions of functions in OpenAI's format, which the template writes. Without a
            grammar, the drafter also drafts their names, arguments and enums.
        spells_control_tokens: Whether a text such as ``<|im_end|>`` in a message of the user or a
            tool stays text. By default, it is the control token, as in transformers.
        **settings: As in `generate`; `max_new_tokens` is 1,024 unless a length is set.

    Attributes:
        messages: All messages so far; what is removed from them is forgotten by the model.
        first_messages: What a conversation begins with after `clear`.
        stats: Counts and times of all turns together.
        last_stats: Those of the last turn.
        finish_reason: Why the last reply ended, as in `GenerationOutput`; None before the first.
        context_length: Most tokens of the conversation; None if the model does not limit it.

    Raises:
        ValueError: The tokenizer has no chat template, or the datastore is of another one.
    """

    def __init__(
        self,
        model: PreTrainedModel | GgufModel,
        tokenizer: PreTrainedTokenizerBase | Any,
        drafter: DrafterLike = None,
        *,
        messages: Sequence[dict[str, Any]] = (),
        drops_oldest: bool = False,
        tools: Sequence[dict[str, Any]] = (),
        spells_control_tokens: bool = False,
        **settings: Any,
    ) -> None:
        require_chat_template(tokenizer)
        self._spelled = SpelledPrompts(tokenizer) if spells_control_tokens else None
        self._target = target_of(model)
        self._target.require_settings(settings)
        self.tools = [*tools]
        self.first_messages = [*messages]
        self.messages = [*messages]
        self.stats, self.last_stats = GenerationStats(), GenerationStats()
        self.finish_reason: FinishReason | None = None
        self.context_length = context_length_of(model)
        self._drops_oldest = drops_oldest
        self._model: Any = model
        self._tokenizer: Any = tokenizer
        self._takes_default = drafter is None
        if drafter is None:
            drafter = FusedDrafter(vocab_size=vocab_size(tokenizer))
        self._drafter = Options.of(drafter).drafter
        datastore = getattr(self._drafter, "datastore", None)
        if isinstance(datastore, Datastore) and datastore.tokenizer_fingerprint:
            check_tokenizer(datastore, self._tokenizer)
        self._settings = settings
        self._token_ids: list[int] = []
        self._cache = self._target.new_cache()
        # The session has observed `_token_ids`.
        self._session: Session | None = None

    def __repr__(self) -> str:
        model = getattr(self._model, "name_or_path", "") or type(self._model).__name__
        return f"Chat({model!r}, num_messages={len(self.messages)})"

    def send(self, text: ChatInput, streamer: BaseStreamer | Any = None, **settings: Any) -> str:
        """Send a message and return the reply, without special tokens.

        A turn that fails leaves the conversation as it was. With tools, the reply keeps the special
        tokens within it, which may mark a call.

        Args:
            text: The user's message; or a message with its role, such as the result of a `tool`,
                or several.
            streamer: As in `generate`: it receives the whole prompt first.
            **settings: As in `generate`, for this turn.

        Raises:
            ContextLengthError: The conversation does not fit into the context of a GGUF file; see
                `drop_oldest`.
        """
        messages = [*self.messages, *_messages_of(text)]
        ids = self._ids(messages, is_prompt=True)
        most = self.context_length
        if self._drops_oldest and most is not None and 4 * len(ids) > 3 * most:
            # The turns that stay are read again, so that several are dropped at once.
            while 2 * len(ids) > most and (shorter := self._without_oldest(messages)):
                messages, ids = shorter, self._ids(shorter, is_prompt=True)
        if isinstance(self._model, GgufModel):
            require_room(len(ids), self._model.context_length)
        self._roll_back(ids)
        if getattr(self._cache, "mark_at", None) is not None:
            # Templates may drop a reply's reasoning, or begin a reply otherwise in later turns.
            earlier = self._ids(messages)
            self._cache.mark_at = num_shared(earlier, ids)
        settings = {**self._settings, **settings}
        config = settings.get("generation_config")
        lengths = ("max_new_tokens", "max_length")
        if not any(name in settings or getattr(config, name, None) for name in lengths):
            settings["max_new_tokens"] = 1024
        try:
            output = generate(
                self._model,
                self._target.prompt(ids),
                self._drafter,
                session=self._session_of(ids, settings),
                cache=self._cache,
                streamer=streamer,
                tokenizer=self._tokenizer,
                **settings,
            )
        except BaseException:
            self._end_session()
            raise
        self.last_stats, self.finish_reason = output.stats, output.finish_reasons[0]
        self.stats.merge(output.stats)
        self._token_ids = output.sequences[0].tolist()
        reply = self._reply(self._token_ids[len(ids) :])
        self.messages = [*messages, {"role": "assistant", "content": reply}]
        return reply

    def stream(self, text: ChatInput, **settings: Any) -> Iterator[str]:
        """Send a message and yield the pieces of the reply as they are written.

        The turn starts with the first piece. Leaving the loop early ends the reply there.

        Args:
            text: As in `send`.
            **settings: As in `generate`, for this turn.
        """
        streamer = _Pieces(self._tokenizer)
        left, failures = Event(), list[BaseException]()

        def is_left(*_: Any, **__: Any) -> bool:
            return left.is_set()

        criteria = [*settings.pop("stopping_criteria", ()), is_left]
        on_prefill = settings.pop("on_prefill", self._settings.get("on_prefill"))

        def report(num_read: int, num_tokens: int) -> None:
            if left.is_set():
                raise _LeftError
            if on_prefill is not None:
                on_prefill(num_read, num_tokens)

        settings |= {"stopping_criteria": criteria, "on_prefill": report}

        def send() -> None:
            try:
                self.send(text, streamer, **settings)
            except _LeftError:
                pass
            except BaseException as error:
                failures.append(error)
                streamer.end()

        thread = Thread(target=send)
        thread.start()
        try:
            yield from iter(streamer.pieces.get, None)
        finally:
            left.set()
            thread.join()
        if failures:
            raise failures[0]

    @property
    def tokens_left(self) -> int | None:
        """The tokens of the context that the conversation leaves; None if it is not limited."""
        if self.context_length is None or not self.messages:
            return self.context_length
        return max(self.context_length - len(self._ids(self.messages)), 0)

    def drop_oldest(self) -> bool:
        """Drop the oldest message of the user and its reply, but no first message.

        Returns:
            Whether there was one.
        """
        shorter = self._without_oldest(self.messages)
        self.messages = self.messages if shorter is None else shorter
        return shorter is not None

    def _without_oldest(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """Return messages without the oldest turn; None if there is none."""
        start = len(self.first_messages)
        if messages[:start] != self.first_messages:
            start = 0
        roles = [message["role"] for message in messages]
        turns = [place for place in range(start, len(roles)) if roles[place] == "user"]
        if not turns or len(messages) == turns[0] + 1:
            return None
        end = turns[1] if len(turns) > 1 else len(messages)
        return messages[: turns[0]] + messages[end:]

    def _ids(self, messages: list[dict[str, Any]], *, is_prompt: bool = False) -> list[int]:
        more = {"tools": self.tools} if self.tools else {}
        if self._spelled is not None:
            return self._spelled.token_ids(messages, **more, add_generation_prompt=is_prompt)
        text: Any = self._tokenizer.apply_chat_template(
            messages, **more, add_generation_prompt=is_prompt, return_dict=True
        )
        return [*text["input_ids"]]

    def clear(self) -> None:
        """End the conversation, which the drafter may store, and start another."""
        self._end_session()
        self.messages = [*self.first_messages]
        self._token_ids, self._cache = [], self._target.new_cache()

    def _roll_back(self, token_ids: list[int]) -> None:
        """Keep the states of the prompt's known beginning: a template may change earlier text."""
        shared = num_shared(self._token_ids, token_ids[:-1])
        if shared == 0 or self._cache is None:
            self._cache = self._target.new_cache()
        elif hasattr(self._cache, "rolled_back"):
            self._cache = self._cache.rolled_back(shared)
        elif shared < self._cache.get_seq_length():
            self._cache.crop(shared - self._cache.get_seq_length())

    def _session_of(self, prompt_ids: list[int], settings: dict[str, Any]) -> Session | None:
        """Return the session with a prompt; None if the drafter lacks a token of the prompt."""
        size, length = self._drafter.vocab_size, len(self._token_ids)
        if size is not None and max(prompt_ids) >= size:
            self._end_session()
        elif self._session is not None and prompt_ids[:length] == self._token_ids:
            self._session.observe(prompt_ids[length:])
        else:
            self._end_session()
            if self._takes_default:
                self._drafter = with_default(self._drafter, self._model, self._tokenizer)
            self._session = self._drafter_of(settings).session(prompt_ids)
        return self._session

    def _drafter_of(self, settings: dict[str, Any]) -> Any:
        """Return the drafter, which drafts calls of the tools where no grammar does."""
        if not self.tools or settings.get("grammar") is not None:
            return self._drafter
        if not isinstance(self._drafter, FusedDrafter):
            return self._drafter
        calls = example_tokens(self._tokenizer, self.tools)
        known = [token for token in calls if token < (self._drafter.vocab_size or token + 1)]
        return self._drafter.for_request(predicted_output=known) if known else self._drafter

    def _reply(self, token_ids: Sequence[int]) -> str:
        """Return the text of a reply; with tools, special tokens within it mark calls."""
        if not self.tools:
            return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))
        special = {*self._tokenizer.all_special_ids}
        ids = [*token_ids]
        while ids and ids[-1] in special:
            ids.pop()
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _end_session(self) -> None:
        ended, self._session = self._session, None
        if ended is not None:
            ended.finish()


class _LeftError(Exception):
    """The loop over a reply was left before its first token."""


def _messages_of(said: ChatInput) -> list[dict[str, Any]]:
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    messages = [said] if isinstance(said, Mapping) else said
    if not messages or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise ValueError("a message has `role` and `content`: send a text, a message or several")
    return [dict(message) for message in messages]


class _Pieces:
    """A streamer that takes a prompt, and puts the text of each later token into a queue.

    Attributes:
        pieces: The texts, then None.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.pieces: SimpleQueue[str | None] = SimpleQueue()
        self._spelling, self._special = Spelling(tokenizer), {*tokenizer.all_special_ids}
        self._is_prompt = True

    def put(self, value: Any) -> None:
        if self._is_prompt:
            self._is_prompt = False
            return
        for token in value.tolist():
            if token not in self._special and (piece := self._spelling.of(token)):
                self.pieces.put(piece)

    def end(self) -> None:
        if rest := self._spelling.of(None):
            self.pieces.put(rest)
        self.pieces.put(None)


def num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
