"""What callers send to be answered, from either wire format, as one thing: instructions and messages for the model.

Parameters are named as the caller wrote them (`messages[2].tool_calls[0].id`, `input[1].call_id`), so that a refusal
says what to change.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from reply import STRICT
from shapes import something_said
from tools import ToolRegistry

from .refusals import Refused

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
TEXT_PARTS = ("text", "input_text", "output_text")


class Given:
    """A caller's messages as they are read, in order. Each is checked when it is added.

    instructions: of system and developer messages, wherever they stood. messages: the others, as the model gets them.
    """

    def __init__(self) -> None:
        self.instructions: list[str] = []
        self.messages: list[dict[str, Any]] = []
        self._owed: dict[str, str] = {}  # ids of calls that still want their output, with their parameters

    @property
    def last_user(self) -> str:
        """The newest thing the user said; empty where there is none."""
        return next((str(one["content"]) for one in reversed(self.messages) if one["role"] == "user"), "")

    def user(self, param: str, text: str, name: object = None) -> None:
        """Something the user said."""
        self.all_answered()
        try:
            something_said(text)
        except ValueError as error:
            raise Refused(param, str(error)) from error
        message = {"role": "user", "content": text}
        self.messages.append(message | ({"name": name} if isinstance(name, str) and NAME.fullmatch(name) else {}))

    def assistant(self, text: str) -> None:
        """Something the model said. What is empty, such as the answer of a run that was stopped, is left out."""
        self.all_answered()
        if text.strip():
            self.messages.append({"role": "assistant", "content": text})

    def call(self, param: str, number: object, function: Mapping[str, Any], joined: bool) -> None:
        """A call that the model asked for. joined: it belongs to the assistant message before it."""
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(number, str) or not number or number in self._owed:
            raise Refused(param, "a call needs an id of its own")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise Refused(param, "a call needs the name of a function")
        if not isinstance(arguments, str):
            raise Refused(param, "the arguments of a call should be a string")
        last = self.messages[-1] if self.messages else {}
        if not joined or last.get("role") != "assistant":
            self.all_answered()
            last = {"role": "assistant", "content": None}
            self.messages.append(last)
        legal = arguments if is_object(arguments) else "{}"  # no service takes others, though its own model wrote them
        made = {"id": number, "type": "function", "function": {"name": name, "arguments": legal}}
        last.setdefault("tool_calls", []).append(made)
        self._owed[number] = param

    def output(self, param: str, number: object, text: str) -> None:
        """What the caller's own function returned."""
        if not isinstance(number, str) or self._owed.pop(number, None) is None:
            raise Refused(param, "there is no call of this id just before it that wants an output")
        self.messages.append({"role": "tool", "tool_call_id": number, "content": text})

    def all_answered(self) -> None:
        """Raise Refused where a call has no output: no model accepts that."""
        for param in self._owed.values():
            raise Refused(param, "this call has no output; each call needs exactly one, before anything else is said")


def is_object(text: str) -> bool:
    """Whether it is a JSON object for the strictest of readers."""
    try:
        value = STRICT.decode(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # UnicodeError is a ValueError
        return False
    return isinstance(value, dict)


def text_of(param: str, content: object) -> str:
    """The text of a message: a string, or parts of text, joined. Raises Refused for what is not text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused(param, "a string is expected, or a list of parts that are text")
    pieces = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in (*TEXT_PARTS, "refusal"):
            raise Refused(f"{param}[{at}].type", "only parts of text are understood here")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise Refused(f"{param}[{at}].text", "a string is expected")
        pieces.append(text)
    return "".join(pieces)


def read_messages(messages: list[dict[str, Any]]) -> Given:
    """The `messages` of a chat completion."""
    given = Given()
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            given.instructions.append(text_of(f"{where}.content", content))
        elif role == "user":
            given.user(f"{where}.content", text_of(f"{where}.content", content), message.get("name"))
        elif role == "assistant":
            read_assistant(given, where, message)
        elif role == "tool":
            given.output(f"{where}.tool_call_id", message.get("tool_call_id"), text_of(f"{where}.content", content))
        else:
            raise Refused(f"{where}.role", "it should be system, developer, user, assistant or tool")
    given.all_answered()
    if not given.last_user:
        raise Refused("messages", "a message of the user is needed")
    return given


def read_assistant(given: Given, where: str, message: dict[str, Any]) -> None:
    """A message of the model with the calls it asked for."""
    if message.get("function_call") is not None:
        raise Refused(f"{where}.function_call", "this is not supported; send tool_calls")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Refused(f"{where}.tool_calls", "a list is expected")
    content = message.get("content")
    said = text_of(f"{where}.content", content) if content is not None else ""
    given.assistant(said)
    for at, call in enumerate(calls):
        param = f"{where}.tool_calls[{at}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise Refused(param, "a call of a function is expected")
        given.call(param, call.get("id"), function, joined=bool(at or said.strip()))


def read_items(items: object) -> Given:
    """The `input` of a response: one text, or items."""
    given = Given()
    if isinstance(items, str):
        given.user("input", items)
        return given
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise Refused("input", "a string is expected, or a list of items")
    for at, item in enumerate(items):
        where = f"input[{at}]"
        kind, role = item.get("type", "message"), item.get("role")
        if kind == "message" and role in ("system", "developer"):
            given.instructions.append(text_of(f"{where}.content", item.get("content")))
        elif kind == "message" and role == "user":
            given.user(f"{where}.content", text_of(f"{where}.content", item.get("content")))
        elif kind == "message" and role == "assistant":
            given.assistant(text_of(f"{where}.content", item.get("content")))
        elif kind == "message":
            raise Refused(f"{where}.role", "it should be system, developer, user or assistant")
        elif kind == "function_call":
            given.call(where, item.get("call_id"), item, joined=True)
        elif kind == "function_call_output":
            given.output(f"{where}.call_id", item.get("call_id"), text_of(f"{where}.output", item.get("output")))
        elif kind != "reasoning":  # a model's thoughts: nobody here can read them, and nothing is lost
            raise Refused(f"{where}.type", "it should be message, function_call or function_call_output")
    given.all_answered()
    if not given.messages:
        raise Refused("input", "a message of the user is needed")
    return given


def read_tools(
    described: Iterable[Mapping[str, Any]], registry: ToolRegistry, inner: str
) -> tuple[dict[str, Any], ...]:
    """The functions of the caller's own, in the wire format of the model. Raises Refused.

    inner: the field that holds name and parameters, `function` in chat completions; empty where the tool itself does.
    """
    found: dict[str, dict[str, Any]] = {}
    for at, tool in enumerate(described):
        where = f"tools[{at}]"
        function = tool.get(inner) if inner else tool
        if tool.get("type") != "function":
            raise Refused(f"{where}.type", "only function is supported; the tools of this service need no mention")
        where = f"{where}.{inner}" if inner else where
        if not isinstance(function, Mapping):
            raise Refused(where, "an object is expected")
        name = function.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in found:
            raise Refused(f"{where}.name", "a name of its own is needed: letters, digits, _ and -, at most 64")
        if registry.get(name):
            raise Refused(f"{where}.name", f"{name} is a tool of this service; take another name")
        found[name] = {"type": "function", "function": read_function(where, function)}
    return tuple(found.values())


def read_function(where: str, function: Mapping[str, Any]) -> dict[str, Any]:
    """One function as the model is told of it."""
    parameters = function.get("parameters")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise Refused(f"{where}.description", "a string is expected")
    if parameters is None or parameters == {}:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise Refused(f"{where}.parameters", "a JSON schema of the type object is expected")
    made = {"name": function["name"], "description": description, "parameters": parameters}
    return made | ({"strict": True} if function.get("strict") is True else {})
