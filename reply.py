"""From what a model service sends to a clean reply: the oddities of vendors end here.

Whole bodies and streams meet in one form, `Draft`; `finish` turns it into a `Reply`. The rule for all of it: nothing
half-understood is executed and nothing cut is an answer. docs/models.md lists what was met where.
"""

import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from run import Usage
from text import clean_text, is_blank, join_halves
from tools import ToolCall

MAX_ARGUMENT_CHARS, MAX_ARGUMENT_DEPTH = 100_000, 50

# How models write down their thoughts, where the service leaves them in the text.
THOUGHTS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
CLOSE = re.compile("(?<!`)</think>")  # in backticks it is only spoken of

# How models write down a tool call, where the service leaves it in the text, and what may follow it.
CALL_MARKS = (
    *("<tool_call>", "<function_call>", "<|tool_call|>", "<|python_tag|>"),
    *("[TOOL_CALLS]", "<function=", "<｜tool▁calls▁begin｜>"),
)
CALL = re.compile(f"(?<!`)(?:{'|'.join(map(re.escape, CALL_MARKS))})")
# And around one, if nothing else is there than calls: these may be tags of an answer, too.
WRAPPED_CALL = re.compile(r"(?<!`)<(tools|tool_calls)>(.*?)(?:</\1>|\Z)", re.DOTALL)
MARKS = (*CALL_MARKS, "<tools>", "<tool_calls>")
MARK = re.compile(f"(?<!`)(?:{'|'.join(map(re.escape, MARKS))})")
AFTER_CALL = re.compile(r"</tool_call>|</function_call>|<\|/?tool_call\|>|<\|eo[mt]_id\|>")

# What other vendors say instead of `length` and `content_filter`, and of a reply that they gave up.
FINISHES = dict.fromkeys(
    ("max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"), "length"
) | dict.fromkeys(("safety", "sensitive", "recitation", "prohibited_content", "blocklist", "spii"), "content_filter")
GIVEN_UP = {"error", "network_error", "insufficient_system_resource", "abort", "aborted"}


class BadReply(Exception):
    """The model service answered with something that cannot be used. vendor: the error object inside, if there is."""

    def __init__(self, message: str, vendor: Any = None) -> None:
        super().__init__(message)
        self.vendor = vendor


@dataclass(frozen=True)
class Reply:
    """One clean reply: a text, or tool calls with perhaps a text before them.

    finish_reason: `length` and `content_filter` mean that the reply is cut and must not be used.
    reasoning: the vendor's separate field, to be sent back within the run; None where there was none.
    """

    text: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage = Usage()
    reasoning: str | None = None
    duration_ms: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Neither calls nor anything to read."""
        return not self.tool_calls and is_blank(self.text)

    def as_dict(self) -> dict[str, Any]:
        """The message that goes back to the model before the observations."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        return message | {"tool_calls": [call.as_dict() for call in self.tool_calls]}


# ---------------------------------------------------------------------------------------- a reply taking shape


@dataclass
class RawCall:
    """A tool call as far as it has arrived."""

    id: object = None
    name: str = ""
    arguments: Any = ""


@dataclass
class Draft:
    """What has arrived of one reply. known: the names of the tools that were offered."""

    known: set[str]
    text: str = ""
    reasoning: str | None = None
    calls: list[RawCall] = field(default_factory=list)
    by_index: dict[object, RawCall] = field(default_factory=dict)  # of a stream: the call last spoken of at each index
    latest: RawCall | None = None  # of a stream: the call last spoken of
    index: object = None  # of the choice that is taken: 0, or the first that was seen
    finish_reason: str | None = None
    usage: Usage = Usage()
    heard: bool = False  # a message or a piece of one was seen
    complete: bool = False  # a whole body, a finish reason or [DONE] was seen
    doubtful: bool = False  # words that are no piece of a message were seen: [DONE] alone does not make it complete
    half: str = ""  # of a character that was cut between two pieces

    def take_body(self, body: Any) -> None:
        """A whole answer. Raises BadReply."""
        choice = self._choice(body)
        if choice is None or not isinstance(choice.get("message"), dict):
            raise BadReply("the body holds no message")
        self._take(choice["message"], choice.get("finish_reason"), whole=True)
        self.complete = True

    def take_chunk(self, chunk: Any, is_error: bool = False) -> None:
        """One event of a stream. is_error: the stream calls it one, whatever it holds. Raises BadReply."""
        if is_error:
            raise BadReply("the stream ends with an error", (isinstance(chunk, dict) and chunk.get("error")) or chunk)
        if chunk is None:
            return
        choice = self._choice(chunk)
        if choice is not None:  # filter reports and usage come without a choice
            delta = choice.get("delta")
            if not delta and not self.text and not self.calls:
                delta = choice.get("message")  # a whole answer as one event; after deltas it only repeats them
            self._take(delta if isinstance(delta, dict) else {}, choice.get("finish_reason"), whole=False)

    def end(self) -> None:
        """[DONE] was seen."""
        self.complete = self.complete or not self.doubtful

    def _choice(self, body: Any) -> dict[str, Any] | None:
        if not isinstance(body, dict):
            raise BadReply("the body is not an object")
        if error := body.get("error"):
            raise BadReply("an error inside a success", error)
        if (usage := usage_of(body.get("usage"))).known:
            self.usage = usage
        choices = body.get("choices")
        if not choices:
            if is_error(body):
                raise BadReply("an error inside a success", body)
            self.doubtful = self.doubtful or has_words(body)
        found = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        wanted = (None, 0 if self.index is None else self.index)
        taken = next((choice for choice in found if choice.get("index") in wanted), None)
        if taken is None and self.index is None and found:
            taken = found[0]
        if taken is not None and self.index is None:
            self.index = taken.get("index")
        return taken

    def _take(self, message: dict[str, Any], finish_reason: object, whole: bool) -> None:
        """A message or a delta: null and what is missing mean no news."""
        self.heard = True
        text = self.half + (text_of(message.get("content")) or text_of(message.get("refusal")))
        end = len(text) - ("\ud800" <= text[-1:] <= "\udbff")
        self.half = text[end:]
        self.text += clean_text(text[:end])
        for name in ("reasoning_content", "reasoning"):
            if isinstance(thought := message.get(name), str):
                self.reasoning = (self.reasoning or "") + thought
                break
        calls = message.get("tool_calls")
        for part in calls if isinstance(calls, list) else []:
            if isinstance(part, dict):
                self._take_call(part, whole)
        if isinstance(old := message.get("function_call"), dict):  # the field before tool_calls
            self._take_call({"index": "function_call", "function": old}, whole)
        if isinstance(finish_reason, str) and finish_reason:
            reason = finish_reason.lower().partition(":")[0]
            self.finish_reason, self.complete = FINISHES.get(reason, reason), True

    def _take_call(self, part: dict[str, Any], whole: bool) -> None:
        function = part.get("function")
        function = function if isinstance(function, dict) else {}
        name, arguments = function.get("name"), function.get("arguments")
        call = None if whole else self._goes_on(part, name, arguments)
        if call is None:
            call = RawCall()
            self.calls.append(call)
        self.latest = call
        if isinstance(part.get("index"), int | str):
            self.by_index[part["index"]] = call
        call.id = call.id or part.get("id")
        if isinstance(name, str) and name:
            # A name comes once, or again and again, or in two pieces: only pieces of a tool that exists are joined.
            if not call.name:
                call.name = name
            elif self._is_piece(call.name, name):
                call.name += name
        if isinstance(arguments, str) and isinstance(call.arguments, str):
            if len(call.arguments) <= MAX_ARGUMENT_CHARS:  # more of them would not be read anyway
                call.arguments += arguments
        elif arguments is not None:
            call.arguments = arguments

    def _goes_on(self, part: dict[str, Any], name: object, arguments: object) -> RawCall | None:
        """The call that this part of a stream goes on with. Some vendors give every call index 0, or none at all.

        An id that is known says which call it is, whatever the index. Else it is the last one there, unless another id
        with a name, another name, or arguments after complete ones show that a new call begins.
        """
        index, call_id = part.get("index"), part.get("id")
        indexed = isinstance(index, int | str)
        last = self.by_index.get(index) if indexed else self.latest
        meant = last is not None and last.id == call_id
        if call_id and not meant and not (indexed and last is None and name):  # ids that come again are other calls
            named = next((call for call in reversed(self.calls) if call.id == call_id), None)
            last, meant = named or last, named is not None
        if last is None or not name:
            return last
        if isinstance(name, str) and last.name and not self._is_piece(last.name, name):
            if clean_name(name, self.known) != clean_name(last.name, self.known):
                return None
        if call_id and (meant or last.id):
            return last if meant else None
        return None if not is_nothing(arguments) and is_whole(last.arguments) else last

    def _is_piece(self, begun: str, name: str) -> bool:
        """Whether a name goes on with one that is begun and is none yet, towards a tool that exists."""
        return begun not in self.known and begun != name and any(tool.startswith(begun + name) for tool in self.known)


# Where an error without the key `error` has its words, and codes that are none of an error.
WORDS = ("message", "msg", "detail", "error_msg", "error_message")
WELL = {"none", "", "0", "200", "ok", "success", "false"}


def is_error(body: dict[str, Any]) -> bool:
    """Whether an object without choices is an error: it says so, or has words with a code. Usage and pings are none."""
    kinds = (body.get(name) for name in ("object", "type", "status"))
    if body.get("errors") or any(
        isinstance(kind, str) and re.search("error|fail", kind, re.IGNORECASE) for kind in kinds
    ):
        return True
    codes = (str(body.get(name)).lower() for name in ("code", "error_code", "status_code"))
    return str(body.get("error_code")).lower() not in WELL or (
        has_words(body) and any(code not in WELL for code in codes)
    )


def has_words(body: dict[str, Any]) -> bool:
    """Whether an object without choices has something to say that is no piece of a message."""
    return (
        "error" in body
        and body["error"] is not None
        or any(isinstance(body.get(name), str) and body[name] for name in WORDS)
    )


def is_nothing(arguments: Any) -> bool:
    """Whether arguments are left out, in one of the ways in which that is done."""
    return arguments is None or arguments == [] or (isinstance(arguments, str) and arguments.strip() in NOTHING)


NOTHING = ("", "[]", "null")


def is_whole(arguments: Any) -> bool:
    """Whether the arguments that came so far are a complete JSON object already."""
    return isinstance(arguments, dict) or (
        isinstance(arguments, str) and arguments.rstrip().endswith("}") and parse_arguments(arguments)[0] is not None
    )


def usage_of(raw: Any) -> Usage:
    """The token counts in `usage`; what is no whole number from 0 up is unknown."""

    def count(*names: str) -> int | None:
        values = (raw.get(name) for name in names)
        return next((value for value in values if type(value) is int and 0 <= value < 10**12), None)

    if not isinstance(raw, dict):
        return Usage()
    return Usage(
        count("prompt_tokens", "input_tokens"), count("completion_tokens", "output_tokens"), count("total_tokens")
    )


def text_of(content: Any) -> str:
    """The text of a content field: text, a part, or a list of parts; thoughts are none of it."""
    if isinstance(content, list):
        return "".join(map(text_of, content))
    if isinstance(content, dict):
        thought = content.get("type") in ("thinking", "reasoning", "thought")
        return "" if thought else text_of(content.get("text") or content.get("refusal"))
    return content if isinstance(content, str) else ""


# ---------------------------------------------------------------------------------------- the clean reply


def finish(draft: Draft) -> Reply:
    """The reply that a draft amounts to. Raises BadReply for one that was cut off or holds a garbled call."""
    if not draft.heard:
        raise BadReply("it holds no message")
    if not draft.complete or draft.finish_reason in GIVEN_UP:
        raise BadReply("the reply broke off")
    text, old = without_thought(draft.text + clean_text(draft.half)), draft.by_index.get("function_call")
    raw_calls = [call for call in draft.calls if call is not old] or draft.calls  # not what stands in both fields twice
    cut = draft.finish_reason in ("length", "content_filter")
    if not raw_calls and not cut:  # where no tool was offered, it is a call all the same: one that is not permitted
        text, raw_calls = calls_in_text(text, draft.known)
    reasoning = clean_text(draft.reasoning) if draft.reasoning is not None else None
    return Reply(text, clean_calls(raw_calls, draft.known), draft.finish_reason, draft.usage, reasoning)


def without_thought(text: str, whole: bool = True) -> str:
    """The text without the thoughts that some models write in front of it. whole: nothing more will come.

    Only at the beginning: `<think>…</think>`, an opening tag that never closes, or a closing tag whose opening the
    vendor's template swallowed. Further on, a tag belongs to the answer.
    """
    for _ in range(10):
        tag = next((tag for tag in THOUGHTS if text.lstrip().startswith(tag)), None)
        if tag is None:
            break
        text = text[end_of_thought(text, tag, whole) :].lstrip()
    ending = CLOSE.search(text)
    if ending and "<think>" not in text[: ending.start()]:
        return text[ending.end() :].lstrip()
    return text


def end_of_thought(text: str, tag: str, whole: bool) -> int:
    """Where the thought that begins with `tag` ends: with its own closing tag, though another lies within it.

    Without one, what is only spoken of in the thought may have been taken for a tag: then with the first.
    """
    close = THOUGHTS[tag]
    first = at = text.find(close)
    while at >= 0 and text.count(tag, 0, at) > text.count(close, 0, at) + 1:
        at = text.find(close, at + 1)
    if at < 0 and whole:
        at = first
    return at + len(close) if at >= 0 else len(text)


def calls_in_text(text: str, known: set[str]) -> tuple[str, list[RawCall]]:
    """Tool calls that a model wrote as text: behind a mark such as `<tool_call>`, in a tag such as `<tools>`, or
    nothing but the JSON of calls.

    Returns the text before them and the calls. Raises BadReply for a mark with anything else behind it.
    """
    before, *blocks = CALL.split(text)
    if blocks:
        found = [call_of(value) for block in blocks for value in json_values(AFTER_CALL.split(block, 1)[0])]
        calls = [call for call in found if call]
        if not calls or len(calls) < len(found):
            raise BadReply("a tool call written as text cannot be read")
        return before.rstrip(), calls
    if wrapped := list(WRAPPED_CALL.finditer(text)):
        found = [call_of(value, known) for block in wrapped for value in json_values(block[2])]
        calls = [call for call in found if call]
        if calls and len(calls) == len(found):
            return text[: wrapped[0].start()].rstrip(), calls
    bare = unfence(text)
    if bare.startswith(("{", "[")):
        found = [call_of(value, known) for value in json_values(bare)]
        calls = [call for call in found if call]
        if calls and len(calls) == len(found):
            return "", calls
    return text, []  # an answer, though it may happen to be JSON


def json_values(text: str) -> list[Any]:
    """The JSON values that stand one after the other in a text, lists taken apart; [None] where it is anything else.

    An object in doubled braces is one too: Qwen's template of calls shows them so, and small models copy it.
    """
    values: list[Any] = []
    text, at = unfence(text), 0
    try:
        while at < len(text):
            doubled = text.startswith("{{", at)
            value, at = STRICT.raw_decode(text, at + doubled)
            if isinstance(value, dict) and set(value) == {"tool_calls"}:
                value = value["tool_calls"]
            values += value if isinstance(value, list) else [value]
            while at < len(text) and text[at] in (" \t\r\n,;}" if doubled else " \t\r\n,;"):
                at += 1
    except (ValueError, RecursionError):
        return [None]
    return values


def call_of(value: Any, known: set[str] | None = None) -> RawCall | None:
    """The call in `{"name": …, "arguments": {…}}`. known: the names of the tools, if nothing else marks it as a call.

    Exactly this shape is a call then too, whatever it names: small models make tools up, and are told so.
    """
    if isinstance(value, dict) and isinstance(value.get("function"), dict):  # the shape of the field tool_calls
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {} if known is None else None))
    if not isinstance(arguments, dict | str):
        return None
    if known is not None and set(value) != {"name", "arguments"}:
        strange = set(value) - {"name", "arguments", "parameters", "type", "id"}
        if strange or value["name"] not in known:
            return None
    return RawCall(None, value["name"], arguments)


def unfence(text: str) -> str:
    """The inside of a text that is one Markdown code block; other text as it is."""
    text = text.strip()
    if len(text) < 6 or not (text.startswith("```") and text.endswith("```")):
        return text
    return re.sub(r"\A\w*\s", "", text[3:-3]).strip()


def clean_calls(raw_calls: list[RawCall], known: set[str]) -> list[ToolCall]:
    """Calls with distinct ids, the names of the registry where they can be told, and arguments or what is wrong."""
    calls: list[ToolCall] = []
    used: set[str] = set()
    ours = (f"call_{number}" for number in itertools.count(1))
    for raw in raw_calls:
        call_id = raw.id if isinstance(raw.id, str) and raw.id.isprintable() and len(raw.id) <= 200 else ""
        if not call_id or call_id in used:
            call_id = next(one for one in ours if one not in used)
        used.add(call_id)
        arguments, problem = parse_arguments(raw.arguments)
        written = written_down(raw.arguments) if problem else ""
        calls.append(ToolCall(call_id, clean_name(raw.name, known), arguments, problem, written))
    return calls


def clean_name(name: str, known: set[str]) -> str:
    """` functions.calculator\\n` -> `calculator`, where that is a tool. Never a guess at another tool."""
    name = clean_text(name.strip())
    last = re.split(r"[.:/]", name)[-1]
    return last if name not in known and last in known else name


def parse_arguments(raw: Any) -> tuple[dict[str, Any] | None, str]:
    """The arguments of a call, or None and what is wrong with them, for the model.

    Nothing at all means none. JSON within JSON is unwrapped once. NaN, infinities and lone surrogates are refused.
    """
    if is_nothing(raw):
        return {}, ""
    try:
        text = raw if isinstance(raw, str) else json.dumps(raw)
        if len(text) > MAX_ARGUMENT_CHARS:
            return None, f"they are longer than {MAX_ARGUMENT_CHARS} characters. Send less."
        value = STRICT.decode(unfence(join_halves(text)))
        if isinstance(value, str):
            value = {} if is_nothing(value) else STRICT.decode(value)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError, TypeError):  # UnicodeError and JSONDecodeError are ValueErrors
        return None, "they are not valid JSON. Send one JSON object."
    if not isinstance(value, dict):
        return None, "they are not a JSON object. Send one JSON object."
    if is_deeper_than(MAX_ARGUMENT_DEPTH, value):
        return None, f"they are nested more than {MAX_ARGUMENT_DEPTH} levels deep. Send something flatter."
    return value, ""


def written_down(arguments: Any) -> str:
    """Arguments that could not be read, as the text that came; null where they cannot be text at all."""
    try:
        return clean_text(arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))
    except (ValueError, RecursionError):
        return "null"


def is_deeper_than(limit: int, value: Any) -> bool:
    """Whether objects and lists lie within one another more than `limit` times."""
    level = [value]
    for _ in range(limit):
        if not level:
            return False
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [value for values in inner for value in values]
    return any(isinstance(one, dict | list) for one in level)


def finite(number: str) -> float:
    """A number of JSON, without the NaN and infinities that Python takes too. Raises ValueError."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no JSON number")
    return value


STRICT = json.JSONDecoder(parse_float=finite, parse_constant=finite)


# ---------------------------------------------------------------------------------------- text while it is written


# A beginning that may turn out to be the JSON of a call, fenced or not; and one that may still become that.
MAYBE_CALL = re.compile(r"(?:```\w*\s*)?(?:\[\s*)?\{")
NOT_YET_CLEAR = re.compile(r"``?|```\w*\s*(?:\[\s*)?|\[\s*")
BEGINNINGS = (*THOUGHTS, "</think>")


class TextGate:
    """Passes the text of a reply on while it is being written, except what will not belong to the answer.

    Held back until it is clear: thoughts, and what may be a tool call written as text. `close` brings what is missing,
    so that all pieces together are the answer. after_thought: this model begins with a thought and no tag to tell so.
    """

    def __init__(self, pass_on: Callable[[str], None], after_thought: bool = False) -> None:
        self._pass_on, self._after_thought = pass_on, after_thought
        self.passed = ""
        self._waiting, self._begun, self._held = "", False, False

    def feed(self, piece: str) -> None:
        """The next piece of the text."""
        self._waiting += piece
        if not self._held and (self._begun or self._begins()):
            end = self._before_call()
            self._send(self._waiting[:end])
            self._waiting = self._waiting[end:]

    def _begins(self) -> bool:
        """Whether the beginning is clear, and is neither a thought nor perhaps a call."""
        if self._after_thought and not CLOSE.search(self._waiting):
            return False
        shown = without_thought(self._waiting, whole=False)
        start = shown.lstrip()
        if not start or any(tag.startswith(start[: len(tag)]) for tag in BEGINNINGS):
            return False
        self._held = MAYBE_CALL.match(start) is not None
        if self._held or NOT_YET_CLEAR.fullmatch(start):
            return False
        self._waiting, self._begun = shown, True
        return True

    def _before_call(self) -> int:
        """Where the mark of a call begins, or what may be a piece of one at the end."""
        before = self.passed[-1:]  # a backtick there makes it one that is only spoken of
        if found := MARK.search(before + self._waiting):
            self._held = True
            return found.start() - len(before)
        at = max(self._waiting.rfind("<"), self._waiting.rfind("["))
        piece = self._waiting[at:] if at >= 0 else ""
        return at if piece and any(mark.startswith(piece) for mark in MARKS) else len(self._waiting)

    def _send(self, text: str) -> None:
        if text:
            self.passed += text
            self._pass_on(text)

    def close(self, answer: str) -> None:
        """The reply is whole: pass on what is missing of its text."""
        self._send(answer[len(self.passed) :])
