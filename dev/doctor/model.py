"""The layer `model`: the service of the model can be reached, takes the key and has the model."""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dev.doctor.case import Case, Finding, fail, ok

if TYPE_CHECKING:
    from openai import AsyncOpenAI

PATIENCE_S = 10.0  # for each answer; a chat has MODEL_TIMEOUT_S
KEEP_CHECKING = "Do not switch off the check of certificates."
HANGS_UP = "Is it https:// where BASE_URL says http://? A proxy, VPN or firewall may cut it, too."
CUT_OFF = "Something on the way cuts it: a proxy, a VPN that is off (or on), a firewall. Try another network."
OUR_OWN = "Is the clock right, and the host? For an authority of your own or your company's, set SSL_CERT_FILE."
LOCAL = "http://127.0.0.1"


def check_model(case: Case) -> Finding:
    """The model service is there, takes the key and has the model."""
    if case.demo:
        found = "the demo model, which `up` starts; BASE_URL, API_KEY and DEFAULT_MODEL bring a real one"
        return ok(found, *(("but not past a proxy", hint) for hint in proxy_hint(LOCAL)))
    if missing := case.settings.missing_for_model():
        return fail(f"{' and '.join(missing)} not set", "Set it in .env or the environment; .env.example shows how.")
    try:
        return asyncio.run(consult(case))
    except Exception as error:
        return no_model(case, error)


async def consult(case: Case) -> Finding:
    """Ask for the list of models, or one short question, by the way that the service goes."""
    from openai import AsyncOpenAI, DefaultAioHttpClient

    settings = case.settings
    limit_s = settings.model_timeout_s if case.ask else min(PATIENCE_S, settings.model_timeout_s)
    key, base_url = settings.api_key.get_secret_value(), settings.base_url or None
    http = DefaultAioHttpClient(timeout=limit_s)
    async with asyncio.timeout(3 * limit_s), http:
        client = AsyncOpenAI(api_key=key, base_url=base_url, timeout=limit_s, max_retries=0, http_client=http)
        url = shown_url(str(client.base_url))
        if case.ask:
            status, body = await chat(client, settings.default_model)
            if status != 404:
                return answered(case, url, body) if status == 200 else refused(case, url, status)
        status, body = await request(client, "/models")
        if status == 404:
            return await wrong_path(case, client, url)
        return listed(case, url, body) if status == 200 else refused(case, url, status)


async def request(client: AsyncOpenAI, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    """Status and body of one exchange; POST when there is something to send."""
    import httpx2
    from openai import APIStatusError

    try:
        if body is None:
            response = await client.get(path, cast_to=httpx2.Response)
        else:
            response = await client.post(path, body=body, cast_to=httpx2.Response)
    except APIStatusError as error:
        response = error.response
    return response.status_code, response.content


async def chat(client: AsyncOpenAI, model: str) -> tuple[int, bytes]:
    """One question with an answer of one token; without that limit for models that know it by another name."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Say OK."}]}
    status, answer = await request(client, "/chat/completions", {**body, "max_tokens": 1})
    return await request(client, "/chat/completions", body) if status == 400 else (status, answer)


def answered(case: Case, url: str, body: bytes) -> Finding:
    """Whether what came back with status 200 is an answer of a model."""
    try:
        json.loads(body)["choices"][0]["message"]["role"]
    except (ValueError, LookupError, TypeError):
        hint = f"Check {case.origin('BASE_URL')}: it usually ends with /v1."
        return fail(f"{url} answers, but not as a chat model does", hint)
    return ok(f"{case.settings.default_model} at {url} answers")


def listed(case: Case, url: str, body: bytes) -> Finding:
    """Whether what came back with status 200 is a list of models, and ours is in it."""
    model = case.settings.default_model
    try:
        names = [str(entry["id"]) for entry in json.loads(body)["data"]]
    except (ValueError, LookupError, TypeError):
        hint = f"Check {case.origin('BASE_URL')}: it usually ends with /v1."
        return fail(f"{url}/models is no list of models, another kind of service answers", hint)
    if model in names or model in [name.partition(":")[0] for name in names]:
        return ok(f"{url} has {model}")
    near = ", ".join(difflib.get_close_matches(model, names, n=3, cutoff=0.4))
    hint = f"Check {case.origin('DEFAULT_MODEL')}." + (f" Near it: {near}." if near else "")
    if case.ask:
        return fail(f"{url} has no model {model}", hint)
    complete = "Some lists are not complete; `--ask` tells for certain."
    return ok(url, (f"{model} is not on its list of {len(names)} models", f"{hint} {complete}"))


async def wrong_path(case: Case, client: AsyncOpenAI, url: str) -> Finding:
    """There is no list of models. What is wrong with the URL, if anything."""
    found, origin = f"{url}/models: not found (404)", case.origin("BASE_URL")
    if "/chat/completions" in url:
        return fail(found, f"Let {origin} end before /chat/completions.")
    status, _ = await request(client, "/chat/completions", {})  # asks nothing, and so is refused where there is one
    if status not in (404, 405):
        return ok(url, ("it has no list of models, so key and model were not tried", "`--ask` tries both."))
    status, _ = await request(client, "/v1/models")
    lacks = f"{origin} lacks /v1 at its end: {url}/v1."
    return fail(found, lacks if status != 404 else f"Check {origin}: it usually ends with /v1.")


def refused(case: Case, url: str, status: int) -> Finding:
    """What a status other than 200 and 404 means."""
    key = f"Is the key whole, still valid, and of this service? Check {case.origin('API_KEY', 'BASE_URL')}."
    ways = {
        401: ("the key is refused", key),
        403: ("the key is refused", f"{key} Or it may not be used from here, or not for this model."),
        402: ("the service wants to be paid", "Top up the account of this key."),
        407: ("the proxy wants a login", "Give the proxy's user and password in the variable."),
        429: ("too many requests, or the quota is spent", "Wait a little; else look at the account of this key."),
    }
    trouble = ("the service is in trouble", "Try later.") if status >= 500 else ("the request is refused", HANGS_UP)
    found, hint = ways.get(status, trouble)
    return fail(f"{url}: {found} ({status})", *proxy_hint(url), hint)


def no_model(case: Case, error: BaseException) -> Finding:
    """The service cannot be reached. The kinds of the errors beneath say why; the outermost is a timeout for all."""
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or step.__context__
    url = shown_url(case.settings.base_url or "https://api.openai.com/v1")
    hints, mend = proxy_hint(url), f"Mend {case.origin('BASE_URL')}, or start the service there."
    if type(error) in (ValueError, ImportError):  # before anything was sent
        return fail("a proxy variable cannot be used", *hints, "Unset it, or let it name an http:// proxy.")
    for one in reversed(chain):  # errors of the client are of this kind, too, without its particulars
        if isinstance(one, ssl.SSLError):
            return no_tls(url, one, hints)
    ways: list[tuple[type[BaseException], str, str]] = [
        (FileNotFoundError, "a file of certificates is not there", "Mend or unset SSL_CERT_FILE, SSL_CERT_DIR."),
        (socket.gaierror, "there is no host of this name", mend),
        (ConnectionRefusedError, "connection refused, nothing listens there", mend),
        (ConnectionError, "it takes the connection and hangs up", HANGS_UP),
        (TimeoutError, "no answer, a timeout", "A firewall, VPN or proxy may stand between; try another network."),
    ]
    for kind, found, hint in ways:
        if any(isinstance(one, kind) for one in chain):
            return fail(f"{url}: {found}", *hints, hint)
    return fail(f"{url}: the exchange broke ({type(chain[-1]).__name__})", *hints, HANGS_UP)


def no_tls(url: str, error: ssl.SSLError, hints: tuple[str, ...]) -> Finding:
    """Why there is no secure connection. The way out is never to switch the check of certificates off."""
    if isinstance(error, ssl.SSLCertVerificationError):
        found = f"the certificate is not trusted ({error.verify_message})"
        return fail(f"{url}: {found}", *hints, OUR_OWN, KEEP_CHECKING)
    reason = str(error.reason or error)
    if any(word in reason for word in ("WRONG_VERSION", "RECORD_LAYER", "HTTP_REQUEST")):
        return fail(f"{url}: no TLS is spoken there ({reason})", *hints, "Does BASE_URL have to begin with http://?")
    return fail(f"{url}: the TLS handshake breaks off ({reason})", *hints, CUT_OFF, KEEP_CHECKING)


def shown_url(url: str) -> str:
    """A URL without what may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def proxy_hint(url: str) -> tuple[str, ...]:
    """What to do about the proxy, where a URL is sent through one."""
    parts, proxies = urlsplit(url), getproxies()
    scheme = next((scheme for scheme in (parts.scheme, "all") if proxies.get(scheme)), None)
    if scheme is None or proxy_bypass(parts.hostname or ""):
        return ()
    name = next((name for name in os.environ if name.lower() == f"{scheme}_proxy"), "the system")
    proxy = proxies[scheme]
    where = shown_url(proxy if "://" in proxy else f"http://{proxy}")
    socks = " It has to be an http:// proxy: socks is not spoken here." if where.startswith("socks") else ""
    unset = f"start that, unset {name}, or set NO_PROXY={parts.hostname}"
    return (f"{name} sends this through the proxy {where}: {unset}.{socks}",)
