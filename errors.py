"""What can go wrong, by who has to read it: `ConfigError` the operator, `ToolError` the model, `ChatError` the caller.

Anything else that is raised is a defect of ours: logged whole, told to nobody in detail.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class TurnkeeperError(Exception):
    """The root of all that follows."""


class ConfigError(TurnkeeperError):
    """A setting is missing or wrong. The message names it and says what is expected; it never holds a secret."""


# ---------------------------------------------------------------------------------------- for the model


class ToolError(TurnkeeperError):
    """A tool cannot do what was asked. The message becomes the observation: it says what to do next.

    code: a short word for programs and traces, such as `bad_arguments`.
    """

    def __init__(self, message: str, code: str = "tool_error") -> None:
        super().__init__(message)
        self.code = code


class StopRun(ToolError):
    """A tool ends the run with a stop reason of its own, such as `sql_recovery_stopped`. The message says why."""

    def __init__(self, stop_reason: str, message: str) -> None:
        super().__init__(message, code=stop_reason)
        self.stop_reason = stop_reason


# ---------------------------------------------------------------------------------------- for the caller


@dataclass(frozen=True)
class Bilingual:
    """A text in both languages of the callers. `str` of it is English."""

    en: str
    zh: str

    def __str__(self) -> str:
        return self.en


# What modules that know nothing of callers say in English, by its pattern.
CHINESE = {
    "path": "路径",
    "conversation": "会话",
    "run": "运行记录",
    "item": "条目",
    "stored response": "已保存的回复",
    "model of this name": "该名称的模型",
    "readable table of this name in the newest version of the catalogue": "目录最新版本中该名称的可读表",
    "such table or column in the newest version of the catalogue": "目录最新版本中的该表或该列",
    "note of a person about this": "人工填写的说明",
    "such version of the catalogue; (`.+`) makes the first one": r"目录的该版本；首个版本由 \1 生成",
    "act for the user in X-User-Id": "代表 X-User-Id 所指的用户",
    "MySQL does not answer or refuses the login; see the log and (`.+`)": r"MySQL 没有响应或拒绝登录；请查看日志和 \1",
    "tables are missing or older than this release; run (`.+`)": r"缺少数据表或其版本过旧；请运行 \1",
    r"SYSTEM_PROMPT_FILE cannot be read as UTF-8 text: (\w+)": r"SYSTEM_PROMPT_FILE 无法按 UTF-8 文本读取：\1",
    r"(\w+) not set": r"\1 未设置",
    r"(\w+) and (\w+) not set": r"\1 和 \2 未设置",
}


def in_language(text: object, language: str) -> str:
    """A text in `en` or `zh`; in English where there is no Chinese for it."""
    if isinstance(text, Bilingual):
        return text.zh if language == "zh" else text.en
    if language == "zh":
        for pattern, chinese in CHINESE.items():
            if found := re.fullmatch(pattern, str(text)):
                return found.expand(chinese)
    return str(text)


class ChatError(TurnkeeperError):
    """An error with a status and a code, told to the caller as RFC 9457 problem details.

    `detail` and `detail_zh` may hold {placeholders}, filled from the keyword arguments; {what} tells the `errors` where
    it is not given. retry_after_s: seconds after which another try makes sense; becomes the header Retry-After.
    errors: what is wrong with which field, [{"field": "message", "detail": "…"}]. `what` and each `detail` may be
    Bilingual.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    detail: ClassVar[str] = "Something went wrong on our side. The log of the service has the particulars."
    detail_zh: ClassVar[str] = "服务内部出错，详情见服务日志。"
    usual_retry_after_s: ClassVar[float | None] = None

    def __init__(
        self,
        *,
        retry_after_s: float | None = None,
        errors: Sequence[Mapping[str, str | Bilingual]] = (),
        **facts: object,
    ) -> None:
        self.retry_after_s = self.usual_retry_after_s if retry_after_s is None else retry_after_s
        self.errors, self.facts = list(errors), facts
        self.run_id: str | None = None  # set by the turn once there is a run
        super().__init__(self.text("en"))

    def errors_in(self, language: str) -> list[dict[str, str]]:
        """What is wrong with which field. language: `en` or `zh`, for each `detail`."""
        return [
            {name: in_language(text, language if name == "detail" else "en") for name, text in error.items()}
            for error in self.errors
        ]

    def text(self, language: str) -> str:
        """The error in words, `en` or `zh`."""
        colon, semicolon = ("：", "；") if language == "zh" else (": ", "; ")
        what = semicolon.join(colon.join(error.values()) for error in self.errors_in(language))[:500]
        if "what" in self.facts:
            what = in_language(self.facts["what"], language)
        return (self.detail_zh if language == "zh" else self.detail).format(**{**self.facts, "what": what})

    def problem(self, language: str = "en") -> dict[str, Any]:
        """The body of the answer. language: `en` or `zh`, for what people read."""
        body: dict[str, Any] = {
            "type": f"urn:turnkeeper:problem:{self.code}",
            "title": self.code.replace("_", " ").capitalize(),
            "status": self.status,
            "detail": self.text(language),
            "code": self.code,
        }
        if self.run_id:
            body["run_id"] = self.run_id
        if self.errors:
            body["errors"] = self.errors_in(language)
        return body


class InvalidRequest(ChatError):
    """The request does not have the shape that the service reads."""

    status, code = 422, "invalid_request"
    detail = "The request cannot be used: {what}"
    detail_zh = "请求无效：{what}"


class Forbidden(ChatError):
    """The caller is not one whom this service serves."""

    status, code = 403, "forbidden"
    detail = (
        "Without keys this service answers only callers on its own machine, under a loopback name such as 127.0.0.1 "
        "or localhost. To serve others, set API_KEYS or API_KEYS_FILE."
    )
    detail_zh = "未配置密钥时，只接受本机（127.0.0.1 或 localhost）的请求。如需对外服务，请设置 API_KEYS。"


class MayNot(Forbidden):
    """The caller is known, and may not do this."""

    detail = "This key may not do that: {what}."
    detail_zh = "该密钥无权执行此操作：{what}。"


class NotFound(ChatError):
    """There is no such thing, or it is not the caller's."""

    status, code = 404, "not_found"
    detail = "There is no {what} here."
    detail_zh = "此处没有该资源（{what}）。"


class MethodNotAllowed(ChatError):
    """The path exists, the method does not."""

    status, code = 405, "method_not_allowed"
    detail = "This path does not take {method}; see /docs."
    detail_zh = "该路径不支持 {method}，请查看 /docs。"


class TurnConflict(ChatError):
    """Another turn of this conversation was stored first, or the conversation was deleted meanwhile. Nothing stored."""

    status, code = 409, "turn_conflict"
    detail = (
        "The conversation changed while this turn was being answered; nothing of it was stored. "
        "Read the conversation and send the message again if it is still wanted."
    )
    detail_zh = "回答期间该会话已被改动，本轮未保存。请重新读取会话，如仍需要请再次发送。"


class ConversationBusy(TurnConflict):
    """The conversation is answering another message and the service is set to reject instead of wait."""

    detail = "The conversation is still answering another message. Wait for it and send again."
    detail_zh = "该会话正在回答上一条消息，请等待完成后再发送。"


class ConversationDeleted(TurnConflict):
    """The request came before, and its conversation has been deleted since."""

    detail = "This request came before, and its conversation has been deleted since; it is not done again."
    detail_zh = "该请求此前已提交，其会话后来被删除，不会再次执行。"


class RequestInProgress(ChatError):
    """The same request, by its Idempotency-Key, is being answered at this moment."""

    status, code = 409, "request_in_progress"
    detail = "The request with this Idempotency-Key is still being answered. Send it again a little later."
    detail_zh = "带有该 Idempotency-Key 的请求仍在处理中，请稍后再试。"
    usual_retry_after_s = 1


class IdempotencyMismatch(ChatError):
    """The Idempotency-Key was used before, for another request."""

    status, code = 422, "idempotency_mismatch"
    detail = "This Idempotency-Key was used for another request. Take a new key for each request."
    detail_zh = "该 Idempotency-Key 已用于另一请求，请为每个请求使用新的键。"


class Unauthorized(ChatError):
    """There is no key with the request, or none of ours."""

    status, code = 401, "unauthorized"
    detail = "A key is needed: send the header Authorization: Bearer <key>."
    detail_zh = "需要密钥：请发送请求头 Authorization: Bearer <key>。"


class RateLimited(ChatError):
    """This caller sends more than it may."""

    status, code = 429, "rate_limited"
    detail = "You are sending more requests than you may. Wait for Retry-After and go on more slowly."
    detail_zh = "请求过于频繁，请按 Retry-After 等待后放慢速度。"
    usual_retry_after_s = 1


class BodyTooLarge(ChatError):
    """The body is larger than any request can be."""

    status, code = 413, "body_too_large"
    detail = "The body is larger than {limit} bytes; no request needs as much. Send a shorter message."
    detail_zh = "请求体超过 {limit} 字节，请缩短消息。"


class ModelNotFound(ChatError):
    """The model's service does not know the model, or there is no chat endpoint at BASE_URL."""

    status, code = 400, "model_not_found"
    detail = "The model service has no model of this name. Ask for another, or check DEFAULT_MODEL and BASE_URL."
    detail_zh = "模型服务没有该模型。请换一个模型，或检查 DEFAULT_MODEL 和 BASE_URL。"


class ModelRateLimited(ChatError):
    """The model's service refuses more requests for now, or its quota is used up."""

    status, code = 429, "model_rate_limited"
    detail = "The model service takes no more requests at the moment. Nothing was stored; try again later."
    detail_zh = "模型服务当前限流，本轮未保存，请稍后重试。"


class ModelUnauthorized(ChatError):
    """The model's service refuses our key, or none is set."""

    status, code = 500, "model_unauthorized"
    detail = "The model service refuses this service's key. The operator has to check API_KEY and BASE_URL."
    detail_zh = "模型服务拒绝了本服务的密钥，请运维人员检查 API_KEY 和 BASE_URL。"


class ModelError(ChatError):
    """The model's service answered with something that cannot be used."""

    status, code = 502, "model_error"
    detail = "The model service gave an answer that cannot be used. Nothing was stored; try again."
    detail_zh = "模型服务的回复无法使用，本轮未保存，请重试。"


class ModelUnavailable(ChatError):
    """The model's service cannot be reached."""

    status, code = 503, "model_unavailable"
    detail = "The model service cannot be reached. Nothing was stored; try again later."
    detail_zh = "无法连接模型服务，本轮未保存，请稍后重试。"


class ModelTimeout(ChatError):
    """One request to the model took longer than MODEL_TIMEOUT_S."""

    status, code = 504, "model_timeout"
    detail = "The model did not answer in time. Nothing was stored; try again."
    detail_zh = "模型未能及时回复，本轮未保存，请重试。"


class StoreUnavailable(ChatError):
    """MySQL did not answer. Read the history before sending again: it shows whether the turn was stored."""

    status, code = 503, "store_unavailable"
    detail = "The database does not answer. Read the conversation before sending again: it shows what was stored."
    detail_zh = "数据库没有响应。重新发送前请先读取会话，以确认本轮是否已保存。"
    usual_retry_after_s = 2


class Overloaded(ChatError):
    """As many turns are under way as this process takes."""

    status, code = 503, "overloaded"
    detail = "The service is answering as many messages as it can. Nothing was stored; try again shortly."
    detail_zh = "服务当前处理的消息已达上限，本轮未保存，请稍后重试。"
    usual_retry_after_s = 1


class NotReady(ChatError):
    """The service cannot answer yet."""

    status, code = 503, "store_unavailable"
    detail = "Not ready: {what}."
    detail_zh = "尚未就绪：{what}。"
