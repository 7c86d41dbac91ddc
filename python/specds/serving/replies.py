"""Answers of OpenAI's API: whole ones, and the chunks of streams."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import uuid4

from specds.integrations.openai import count_accepted
from specds.serving.engine import BusyError
from specds.serving.job import LogProb, TextJob, Update
from specds.serving.pieces import Piece
from specds.serving.requests import ApiRequest


def status_of(failure: Exception) -> tuple[int, str]:
    """Return the status and the message of a failure."""
    if isinstance(failure, (MemoryError, BusyError)):
        return 503, str(failure)
    return (400, str(failure)) if isinstance(failure, ValueError) else (500, "a pass failed")


@dataclass
class Reply:
    """The answer of OpenAI's API to a call, which grows by updates of its jobs."""

    call: ApiRequest
    jobs: list[TextJob]
    model: str
    tokenizer: Any
    id: str = field(init=False)
    created: int = field(init=False)
    media_type: ClassVar[str] = "text/event-stream"

    def __post_init__(self) -> None:
        kind = "chatcmpl" if self.call.is_chat else "cmpl"
        self.id, self.created = f"{kind}-{uuid4().hex}", int(time.time())
        self._num_calls = [0] * len(self.jobs)
        self._is_begun = [False] * len(self.jobs)

    def parts(self, index: int, update: Update) -> bytes:
        """Return the parts of a stream for an update of a choice."""
        if update.failure is not None:
            return self.framed(self.error(*status_of(update.failure)))
        return b"".join(map(self.framed, self.chunks(index, update)))

    def last(self) -> bytes:
        """Return the end of a stream."""
        usage = {**self._head(is_chunk=True), "choices": [], "usage": self.usage()}
        return (self.framed(usage) if self.call.has_usage else b"") + b"data: [DONE]\n\n"

    def framed(self, chunk: dict[str, Any]) -> bytes:
        return b"data: " + spelled(chunk) + b"\n\n"

    @staticmethod
    def error(status: int, message: str, param: str | None = None,
              code: str | None = None) -> dict[str, Any]:  # fmt: skip
        """Return the body of an error."""
        kind = {503: "overloaded_error", 500: "server_error"}.get(status, "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def _head(self, *, is_chunk: bool) -> dict[str, Any]:
        kind = "chat.completion" + ".chunk" * is_chunk if self.call.is_chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def chunks(self, index: int, update: Update) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an update of a choice."""
        if not self._is_begun[index]:
            self._is_begun[index] = True
            if self.call.is_chat:
                yield self._chunk(index, {"role": "assistant", "content": ""})
            elif self.call.echo:
                yield self._chunk(index, self.call.echo[index // self.call.num_choices])
        log_probs = self._log_probs(update.log_probs)
        pieces = _joined(update.pieces) or ([Piece("content", "")] if log_probs else [])
        for piece in pieces:
            delta = self._delta(index, piece) if self.call.is_chat else piece.text
            chunk = self._chunk(index, delta, log_probs)
            if self.call.has_sources:
                chunk["specds_sources"], update.sources = update.sources, []
            log_probs = None
            yield chunk
        if update.finish:
            chunk = self._chunk(index, {} if self.call.is_chat else "")
            chunk["choices"][0]["finish_reason"] = update.finish
            if self.call.has_sources:
                chunk["specds_passes"] = self.jobs[index].num_steps
            yield chunk

    def _delta(self, index: int, piece: Piece) -> dict[str, Any]:
        if piece.kind != "call":
            return {"reasoning_content" if piece.kind == "reasoning" else "content": piece.text}
        number = self._num_calls[index]
        self._num_calls[index] += 1
        return {"tool_calls": [{"index": number, **_call(piece)}]}

    def _chunk(self, index: int, delta: Any, log_probs: Any = None) -> dict[str, Any]:
        content = {"delta": delta} if self.call.is_chat else {"text": delta}
        choice = {"index": index, **content, "logprobs": log_probs, "finish_reason": None}
        return {**self._head(is_chunk=True), "choices": [choice]}

    def whole(self, update: list[Update]) -> dict[str, Any]:
        """Return the answer, given one update of each choice."""
        choices = []
        for index, of in enumerate(update):
            texts = {kind: "".join(p.text for p in of.pieces if p.kind == kind)
                     for kind in ("content", "reasoning")}  # fmt: skip
            calls = [_call(piece) for piece in of.pieces if piece.kind == "call"]
            about: dict[str, Any] = {"index": index, "finish_reason": of.finish}
            about["logprobs"] = self._log_probs(of.log_probs)
            if self.call.is_chat:
                about["message"] = {
                    "role": "assistant",
                    "content": texts["content"] or (None if calls else ""),
                    "refusal": None,
                    **({"reasoning_content": texts["reasoning"]} if texts["reasoning"] else {}),
                    **({"tool_calls": calls} if calls else {}),
                }
            else:
                echo = self.call.echo[index // self.call.num_choices] if self.call.echo else ""
                about["text"] = echo + texts["content"]
            choices.append(about)
        return {**self._head(is_chunk=False), "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Return the tokens of all choices; a prompt of several counts once."""
        firsts = self.jobs[:: self.call.num_choices]
        num_prompt = sum(len(job.asked.prompt) for job in firsts)
        num_new = sum(len(job.emitted) for job in self.jobs)
        accepted, predicted = 0, 0
        for job in self.jobs:
            if job.asked.predicted and job.asked.is_predicted:
                accepted += count_accepted(job.asked.predicted, job.emitted)
                predicted += len(job.asked.predicted)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_new,
            "total_tokens": num_prompt + num_new,
            "prompt_tokens_details": {"cached_tokens": sum(job.num_cached for job in firsts)},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": predicted - accepted,
            },
        }

    def _log_probs(self, found: list[LogProb]) -> dict[str, Any] | None:
        if not found:
            return None
        spelled = [self._spelled(each.token, each.log_prob) for each in found]
        tops = [[self._spelled(*pair) for pair in each.top] for each in found]
        if self.call.is_chat:
            content = [{**one, "top_logprobs": top} for one, top in zip(spelled, tops, strict=True)]
            return {"content": content, "refusal": None}
        return {
            "tokens": [one["token"] for one in spelled],
            "token_logprobs": [one["logprob"] for one in spelled],
            "top_logprobs": [{one["token"]: one["logprob"] for one in top} for top in tops],
        }

    def _spelled(self, token: int, log_prob: float) -> dict[str, Any]:
        text = str(self.tokenizer.decode([token]))
        return {"token": text, "logprob": max(log_prob, -9999.0), "bytes": [*text.encode()]}


def _call(piece: Piece) -> dict[str, Any]:
    function = {"name": piece.name, "arguments": piece.text}
    return {"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Join texts of a kind that follow each other."""
    found: list[Piece] = []
    for piece in pieces:
        if found and piece.kind == found[-1].kind != "call":
            found[-1] = Piece(piece.kind, found[-1].text + piece.text)
        else:
            found.append(piece)
    return found


class InfillReply(Reply):
    """The answer of llama.cpp's `/infill`."""

    def chunks(self, index: int, update: Update) -> Iterator[dict[str, Any]]:
        text = "".join(piece.text for piece in update.pieces)
        if update.finish:
            yield self.whole([update])
        elif text:
            yield {"content": text, "stop": False}

    def last(self) -> bytes:
        return b""

    def whole(self, updates: list[Update]) -> dict[str, Any]:
        """Return the answer, or the fields of it that were asked for."""
        (update,), (job,) = updates, self.jobs
        num_read, num_new = len(job.asked.prompt) - job.num_cached, len(job.emitted)
        read_s, written_s = job.seconds
        timings = {
            "cache_n": job.num_cached,
            **_timings("prompt", num_read, read_s),
            **_timings("predicted", num_new, written_s),
        }
        answer = {
            "content": "".join(piece.text for piece in update.pieces),
            "stop": True,
            "stop_type": "limit" if update.finish == "length" else "eos",
            "tokens_predicted": num_new,
            "tokens_evaluated": len(job.asked.prompt),
            "tokens_cached": job.num_cached,
            "truncated": False,
            "timings": timings,
        }
        flat = {**answer, **{f"timings/{name}": value for name, value in timings.items()}}
        wanted = self.call.fields or answer
        return {name: flat[name] for name in wanted if name in flat}


def _timings(name: str, number: int, seconds: float) -> dict[str, float]:
    per_token = 1000 * seconds / number if number else 0.0
    return {
        f"{name}_n": number,
        f"{name}_ms": 1000 * seconds,
        f"{name}_per_token_ms": per_token,
        f"{name}_per_second": number / seconds if seconds else 0.0,
    }


def spelled(chunk: Any) -> bytes:
    """Return the JSON of a chunk."""
    return json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
