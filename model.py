"""The chat model behind one method: any OpenAI-compatible service, through the `openai` package.

`complete` asks, tries again where that makes sense, and gives back a clean reply or raises a named error. What is odd
in the replies themselves is put right in reply.py.
"""

import asyncio
import email.utils
import json
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import httpx2
import openai
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAioHttpClient, Omit
from openai._models import FinalRequestOptions

from config import Settings
from errors import (
    ChatError,
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelTimeout,
    ModelUnauthorized,
    ModelUnavailable,
    TurnkeeperError,
)
from reply import CLOSE, BadReply, Draft, Reply, TextGate, finish

log = logging.getLogger(__name__)

RETRIES = 2
MAX_REPLY_BYTES, MAX_ERROR_BYTES = 32 * 1024 * 1024, 64 * 1024
FIRST_PAUSE_S = 0.2  # before the second try, doubled before the third, less a part left to chance
LONGEST_WAIT_S = 3600.0  # what a service may have us or our callers wait
TRANSIENT = {408, 409, 429}  # and 5xx
TOO_LONG = re.compile(
    r"context.{0,20}(length|window|limit|size)|maximum.{0,20}tokens|tokens?.{0,20}(limit|maximum)|input length"
    r"|too (long|large|many tokens)|reduce the length|超长|过长",
    re.IGNORECASE,
)


class OutOfTime(TurnkeeperError):
    """The turn's time is up while the model works: the run stops with `timeout`."""


class ContextTooLong(ModelError):
    """The model takes less than it was given. A shorter history may help."""

    detail = (
        "The message and its conversation are longer than the model takes. Shorten the message or lower HISTORY_CHARS."
    )
    detail_zh = "消息和会话超过模型可接受的长度。请缩短消息，或调低 HISTORY_CHARS。"


@dataclass
class Fault(Exception):
    """One request failed. again: another may do better. after_s: how long the service asks us to wait.

    otherwise: habits to ask it with the next time, to be kept only if that goes well.
    """

    error: ChatError
    again: bool = False
    after_s: float | None = None
    otherwise: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Habits:
    """What a model has been seen to want and do. Learned from its replies, kept for the life of the process."""

    reasoning_back: bool | None = None  # True: on every assistant message, False: never, None: not known yet
    stream: bool = True
    stream_options: bool = True
    thinks_aloud: bool = False  # begins with a thought that only its closing tag gives away


class Model:
    """The connection to the model service. Nothing is opened before the first request."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._habits: dict[str, Habits] = {}  # by model name
        self._client: Client | None = None

    async def complete(
        self,
        transcript: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        time_left_s: Callable[[], float],
        name: str | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """Ask for the next reply. Raises a ChatError for the caller, OutOfTime when `time_left_s()` has run out.

        name: another model than DEFAULT_MODEL. on_text: called with each piece of text as it is written.
        """
        if not self.settings.api_key.get_secret_value():
            log.error("API_KEY is not set, so no model can be asked")
            raise ModelUnauthorized
        if not (name or self.settings.default_model):
            log.error("DEFAULT_MODEL is not set, so no model can be asked")
            raise ModelNotFound
        body: dict[str, Any] = {"model": name or self.settings.default_model, "messages": transcript}
        if tools:
            body["tools"] = tools
        started, tried = time.perf_counter(), dict[str, bool]()
        for attempt in range(RETRIES + 1):
            gate = None  # a new one each time: what a try that failed held back goes with it
            habits = replace(self._habits_of(body), **tried) if tried else self._habits_of(body)
            if on_text:
                gate = TextGate(on_text, habits.thinks_aloud)
            try:
                reply = await self._within_time(body, habits, gate, time_left_s())
                if tried:  # a refusal may only repeat words of the user: what helped is what counts
                    self._learn(body, **tried)
                return replace(reply, duration_ms=(time.perf_counter() - started) * 1000)
            except Fault as fault:
                tried |= fault.otherwise
                pause_s = fault.after_s
                if pause_s is None:
                    pause_s = FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1)
                spoken = gate is not None and gate.passed
                if not fault.again or attempt == RETRIES or spoken or pause_s >= time_left_s():
                    # What was passed on cannot be told again, as it would be after the history is shortened.
                    raise ModelError if spoken and isinstance(fault.error, ContextTooLong) else fault.error from fault
                await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def _within_time(
        self, body: dict[str, Any], habits: Habits, gate: TextGate | None, time_left_s: float
    ) -> Reply:
        """One request, ended by its own limit or the turn's, whichever comes first, however the bytes drip."""
        limit_s = self.settings.model_timeout_s
        try:
            async with asyncio.timeout(min(limit_s, time_left_s)):
                return await self._ask(body, habits, gate)
        except TimeoutError:
            if time_left_s <= limit_s:
                raise OutOfTime from None
            raise ModelTimeout from None

    async def _ask(self, body: dict[str, Any], habits: Habits, gate: TextGate | None) -> Reply:
        """One request and its reply. Raises Fault."""
        streamed = gate is not None and habits.stream
        try:
            response = await self._send(fitted(body, habits, streamed))
            try:
                draft = await self._read(
                    response, Draft({tool["function"]["name"] for tool in body.get("tools", [])}), gate
                )
                reply = finish(draft)
                if len(reply.text) > self.settings.max_answer_chars:
                    reply = replace(reply, finish_reason="length")
            finally:
                await response.aclose()
        except APIStatusError as error:
            raise refused(error.status_code, error.body, error.response.headers, habits, streamed) from error
        except BadReply as error:
            log.warning("the model service's reply cannot be used: %s", error)
            raise refused(status_inside(error.vendor), error.vendor, {}, habits, streamed) from error
        except APIConnectionError as error:  # a timeout of the transport too: the time limit is ours alone
            log.warning("the model service cannot be reached: %s", type(error.__cause__ or error).__name__)
            raise Fault(ModelUnavailable(retry_after_s=5), again=True) from error
        except Exception as error:
            # The transport lets some of its own errors through, such as a garbled status line or a body cut short.
            log.warning("the exchange with the model service broke: %s", type(error).__name__)
            raise Fault(ModelError(), again=True) from error
        if reply.reasoning is not None and habits.reasoning_back is None:
            self._learn(body, reasoning_back=True)
        if habits.thinks_aloud and draft.text.strip() and not CLOSE.search(draft.text):
            self._learn(body, thinks_aloud=False)  # it was a chance, or is over
        if gate is not None:
            if not reply.text.startswith(gate.passed.rstrip()):
                # A thought that only its closing tag gave away was passed on. It cannot be taken back, so it was said
                # on the way: what is empty is asked for once more, and from now on such a thought is waited for.
                self._learn(body, thinks_aloud=True)
                return reply if reply.tool_calls else replace(reply, text="")
            if not reply.tool_calls:
                gate.close(reply.text)
        return reply

    def _habits_of(self, body: dict[str, Any]) -> Habits:
        return self._habits.get(body["model"], Habits())

    def _learn(self, body: dict[str, Any], **habit: bool) -> None:
        self._habits[body["model"]] = replace(self._habits_of(body), **habit)

    async def _send(self, body: dict[str, Any]) -> httpx2.Response:
        """The response, its body unread. `client.post` skips the transformation that `create()` does per message."""
        if self._client is None:
            settings = self.settings
            limits = httpx2.Limits(max_connections=settings.max_in_flight, keepalive_expiry=30.0)
            self._client = Client(
                api_key=settings.api_key.get_secret_value(),
                base_url=settings.base_url or None,
                timeout=None,  # the limit is ours, over the whole of a request
                max_retries=0,
                http_client=HttpClient(limits=limits, timeout=None, event_hooks={"response": [shorten_error]}),
            )
        post: Callable[..., Awaitable[httpx2.Response]] = self._client.post
        return await post(self._client.address, body=body, cast_to=httpx2.Response, stream=True, options=OPTIONS)

    async def _read(self, response: httpx2.Response, draft: Draft, gate: TextGate | None) -> Draft:
        """Read a reply into `draft`, an event stream or one body, whatever was asked for."""
        if "text/event-stream" in response.headers.get("content-type", "").lower():
            async for data in events(bounded(response)):
                if data.event in PINGS:
                    continue
                is_error = b"error" in data.event
                if data == b"[DONE]" and not is_error:
                    draft.end()
                    break
                before = len(draft.text)
                draft.take_chunk(parsed(data), is_error)
                if gate is not None and len(draft.text) > before:
                    gate.feed(draft.text[before:])
                if len(draft.text) > self.settings.max_answer_chars:
                    draft.finish_reason, draft.complete = "length", True
                    break
        else:
            draft.take_body(parsed(b"".join([piece async for piece in bounded(response)])))
        return draft

    async def close(self) -> None:
        """Close the connections to the model service. Used again, it opens new ones."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


# By name, since the SDK copies what is left out for every request, and draws a key that it does not send.
GIVEN = {"method", "url", "json_data", "content", "files"}
FIELDS = {name: field for name, field in FinalRequestOptions.model_fields.items() if name not in GIVEN}
DEFAULTS = {name: field.default for name, field in FIELDS.items() if field.default_factory is None}
OPTIONS = {**DEFAULTS, "idempotency_key": "unused"}

PINGS = {b"ping", b"heartbeat", b"keepalive", b"keep-alive"}  # events that only show that the stream is alive


class Client(AsyncOpenAI):
    """The SDK, whose address and headers are put together once, without those that tell what machine this is."""

    @cached_property
    def address(self) -> str:
        """Where chat completions are asked for."""
        return f"{self.base_url}chat/completions"

    @cached_property
    def default_headers(self) -> dict[str, str | Omit]:
        """What every request carries."""
        given = super().default_headers
        ours = {name: value for name, value in given.items() if not name.startswith("X-Stainless")}
        return {**ours, "User-Agent": f"AsyncOpenAI/Python {openai.__version__}"}  # not the name of this class

    def _prepare_url(self, url: str) -> httpx2.URL:
        """The address as it is given; the SDK's own way parses it for every request."""
        return parsed_address(url)


class HttpClient(DefaultAioHttpClient):
    """The SDK's HTTP client, whose requests hold what they were given: no cookie, nothing merged header by header."""

    def build_request(self, method: str, url: httpx2.URL | str, **given: Any) -> httpx2.Request:
        """A request with a body of bytes or text."""
        headers = parsed_headers(tuple(given["headers"]))
        return httpx2.Request(method, parsed_address(url), headers=headers, content=given["content"])


parsed_address, parsed_headers = lru_cache(maxsize=8)(httpx2.URL), lru_cache(maxsize=8)(httpx2.Headers)


def fitted(body: dict[str, Any], habits: Habits, stream: bool) -> dict[str, Any]:
    """The request as this model has shown to want it."""
    back = habits.reasoning_back
    if back is not None:
        messages = []
        for message in body["messages"]:
            if message["role"] == "assistant":
                message = {**message, "reasoning_content": message.get("reasoning_content") or ""}
                if not back:
                    del message["reasoning_content"]
            messages.append(message)
        body = {**body, "messages": messages}
    if stream:
        body = {**body, "stream": True}
        if habits.stream_options:
            body["stream_options"] = {"include_usage": True}
    return body


def refused(status: int, vendor: Any, headers: Any, habits: Habits, streamed: bool) -> Fault:
    """What a refusal means, and whether to ask once more in another way. vendor: the error as it came."""
    code, text = words_of(vendor)
    known = code if re.fullmatch(r"[A-Za-z_ ]{1,60}|\d{1,6}", code) else "unknown"  # never a text or a key
    log.warning("the model service answered %d, code %s", status, known)
    if status in (400, 422):
        if "reasoning_content" in text and habits.reasoning_back is not False:
            wanted = {"reasoning_back": habits.reasoning_back is None}  # or sent and not wanted
            return Fault(ModelError(), again=True, after_s=0, otherwise=wanted)
        for habit in ("stream_options", "stream"):
            if streamed and re.search(rf"\b{habit}\b", text) and getattr(habits, habit):
                return Fault(ModelError(), again=True, after_s=0, otherwise={habit: False})
    too_long = "context_length_exceeded" in code or (status in (400, 422) and TOO_LONG.search(text))
    if status == 413 or too_long:
        return Fault(ContextTooLong())
    return fault_of(status, headers, code)


def words_of(vendor: Any) -> tuple[str, str]:
    """The code and the text of an error, in whatever shape it came. For us to read, for nobody else."""
    if isinstance(vendor, list) and vendor:  # [{"error": {…}}]
        vendor = vendor[0]
    if isinstance(vendor, dict) and isinstance(vendor.get("error"), dict | str):
        vendor = vendor["error"]
    if not isinstance(vendor, dict):
        return "", str(vendor)[:5000]
    code = " ".join(str(vendor[name]) for name in ("code", "type") if vendor.get(name))
    return code, str(vendor.get("message") or vendor.get("detail") or "")[:5000]


def status_inside(vendor: Any) -> int:
    """The status that an error under 200 names, 502 where it names none."""
    named = str(vendor.get("code") or vendor.get("status")) if isinstance(vendor, dict) else ""
    return int(named) if re.fullmatch(r"[45]\d\d", named) else 502


def fault_of(status: int, headers: Any, code: str = "") -> Fault:
    """The fault that a status stands for. code: the vendor's own word for it."""
    after_s = retry_after(headers)
    if status in (401, 403):
        return Fault(ModelUnauthorized())
    if status == 404 or "model_not_found" in code or "invalid_model" in code:
        return Fault(ModelNotFound())
    if status == 402 or "quota" in code or "billing" in code:  # waiting does not help
        return Fault(ModelRateLimited(retry_after_s=after_s or LONGEST_WAIT_S))
    if status == 429:
        return Fault(ModelRateLimited(retry_after_s=after_s or 10), again=True, after_s=after_s)
    if status == 503:
        return Fault(ModelUnavailable(retry_after_s=after_s or 5), again=True, after_s=after_s)
    return Fault(ModelError(), again=status in TRANSIENT or status >= 500, after_s=after_s)


def retry_after(headers: Any) -> float | None:
    """Seconds from Retry-After, an hour at most: a number of them, or a date. None where there is neither."""
    text = str(headers.get("retry-after", "")).strip()
    if re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text):
        return min(float(text), LONGEST_WAIT_S)
    try:
        return min(max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time()), LONGEST_WAIT_S)
    except (ValueError, OverflowError):
        return None


def parsed(data: bytes) -> Any:
    """The JSON of a body or event. Raises BadReply."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadReply("it is not JSON") from error


async def bounded(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body piece by piece, up to a size that no reply needs. Raises BadReply."""
    size = 0
    packed = "content-encoding" in response.headers
    async for piece in response.aiter_bytes() if packed else response.aiter_raw():
        size += len(piece)
        if size > MAX_REPLY_BYTES:
            raise BadReply("the body does not end")
        yield piece


class Beginning(httpx2.AsyncByteStream):
    """The first bytes of a body; what follows is not read."""

    def __init__(self, body: Any, limit: int) -> None:
        self._body, self._limit = body, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._body:
            yield piece
            size += len(piece)
            if size > self._limit:
                return

    async def aclose(self) -> None:
        await self._body.aclose()


async def shorten_error(response: httpx2.Response) -> None:
    """Let no more be read of an error's body than its words, which come first: the SDK reads it to its end."""
    if response.status_code >= 400:
        response.stream = Beginning(response.stream, MAX_ERROR_BYTES)


class Data(bytes):
    """The data of an event. event: its name in lower case, empty where it has none."""

    event = b""


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Data]:
    """The data of each event of a text/event-stream, as it arrives. Lines end at LF, CR LF or CR, and nowhere else.

    An event without data is none, except one that is called an error.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """
    begun, name, data, after_cr = list[bytes](), b"", list[bytes](), False

    def take(line: bytes) -> Data | None:
        """Read one line; the data of the event that ends with it."""
        nonlocal name
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif line.startswith(b"event:"):
            name = line[6:].strip().lower()
        elif not line:
            whole = Data(b"\n".join(data))
            whole.event, name = name, b""
            data.clear()
            return whole if whole or b"error" in whole.event else None
        return None

    async for piece in pieces:
        if after_cr and piece.startswith(b"\n"):  # the second half of CR LF
            piece, after_cr = piece[1:], False
        if piece:
            after_cr = piece.endswith(b"\r")
        rest, *lines = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        begun.append(rest)
        for following in lines:
            line, begun = b"".join(begun), [following]
            if (event := take(line.removeprefix(b"\xef\xbb\xbf"))) is not None:
                yield event
    take(b"".join(begun))
    if (event := take(b"")) is not None:
        yield event
