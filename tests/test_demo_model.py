"""The demo model over real HTTP, with the small loop that a newcomer's service would run around it."""

import http.client
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from text2sql.routes import DRAFT

ROOT = Path(__file__).resolve().parents[1]

Json = dict[str, Any]
Call = tuple[float, float, str]


def tool(name: str, required: list[str], **properties: Json) -> Json:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


NUMBER, TEXT = {"type": "number"}, {"type": "string"}
OPERATIONS = {"type": "string", "enum": ["add", "subtract", "multiply", "divide"]}
CALCULATOR = tool("calculator", ["a", "b", "operation"], a=NUMBER, b=NUMBER, operation=OPERATIONS)
CLOCK = tool("current_time", [], time_zone=TEXT)


def calculator(a: float, b: float, operation: str) -> str:
    if operation == "divide" and b == 0:
        return "The tool calculator failed: division by zero."
    results: dict[str, Callable[[], float]] = {
        "add": lambda: a + b,
        "subtract": lambda: a - b,
        "multiply": lambda: a * b,
        "divide": lambda: a / b,
    }
    return str(results[operation]())


def current_time(time_zone: str = "UTC") -> str:
    return f"2031-05-06 07:08:09 {time_zone}"


def start(*arguments: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "dev.demo_model", "--port", "0", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    ready = re.fullmatch(r"ready http://127\.0\.0\.1:(\d+)/v1\n", process.stdout.readline())
    assert ready
    return process, int(ready[1])


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    process, number = start()
    yield number
    process.terminate()
    rest, _ = process.communicate(timeout=10)
    assert rest == ""  # nothing but the one line


def post(port: int, body: object, path: str = "/v1/chat/completions") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, raw, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(text) if is_json else text
    finally:
        connection.close()


@dataclass
class Conversation:
    """Asks, runs the tools, and keeps only questions and answers, as the service does."""

    port: int
    tools: list[Json] = field(default_factory=lambda: [CALCULATOR, CLOCK])
    stream: bool = False
    history: list[Json] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    clock_calls: list[Json] = field(default_factory=list)

    def ask(self, question: str) -> str:
        transcript: list[Json] = [{"role": "system", "content": "Be brief."}, *self.history]
        transcript.append({"role": "user", "content": question})
        self.calls, self.clock_calls = [], []
        for _ in range(20):
            message = self.complete(transcript)
            if not message.get("tool_calls"):
                self.history += [{"role": "user", "content": question}, message]
                answer = message["content"]
                assert isinstance(answer, str) and answer
                return answer
            (call,) = message["tool_calls"]  # one at a time
            observation = self.run(call["function"]["name"], json.loads(call["function"]["arguments"]))
            transcript += [message, {"role": "tool", "tool_call_id": call["id"], "content": observation}]
        raise AssertionError("the model asks for tools for ever")

    def run(self, name: str, arguments: Json) -> str:
        if name == "current_time":
            self.clock_calls.append(arguments)
            return current_time(**arguments)
        self.calls.append((arguments["a"], arguments["b"], arguments["operation"]))
        return calculator(**arguments)

    def complete(self, transcript: list[Json]) -> Json:
        body: Json = {"model": "demo", "messages": transcript}
        if self.tools:
            body["tools"] = self.tools
        if not self.stream:
            status, completion = post(self.port, body)
            assert status == 200, completion
            message: Json = completion["choices"][0]["message"]
            return message
        status, text = post(self.port, {**body, "stream": True, "stream_options": {"include_usage": True}})
        assert status == 200, text
        return joined(text)


def joined(stream: str) -> Json:
    """The message of an event stream."""
    *events, last = [event.removeprefix("data: ") for event in stream.strip().split("\n\n")]
    assert last == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] > 0
    message: Json = {"role": "assistant", "content": ""}
    for delta in (chunk["choices"][0]["delta"] for chunk in chunks[:-1]):
        message["content"] += delta.get("content") or ""
        for part in delta.get("tool_calls", []):
            if "id" in part:
                message.setdefault("tool_calls", []).append({"id": part["id"], "type": "function", "function": {}})
            function = message["tool_calls"][part["index"]]["function"]
            for key, value in part["function"].items():
                function[key] = function.get(key, "") + value
    return message


ARITHMETIC: list[tuple[str, list[Call], str]] = [
    ("请使用计算器,先计算12乘以8,再把结果除以4。", [(12, 8, "multiply"), (96, 4, "divide")], "24.0"),
    ("请使用计算器，先计算１２乘以８，再把结果除以４。", [(12, 8, "multiply"), (96, 4, "divide")], "24.0"),
    ("12乘以8的结果除以4", [(12, 8, "multiply"), (96, 4, "divide")], "24.0"),
    ("12×8÷4", [(12, 8, "multiply"), (96, 4, "divide")], "24.0"),
    ("12 * 8 / 4", [(12, 8, "multiply"), (96, 4, "divide")], "24.0"),
    ("12 x 8", [(12, 8, "multiply")], "96"),
    ("12×8=?", [(12, 8, "multiply")], "96"),
    ("十二乘以八", [(12, 8, "multiply")], "96"),
    ("十二加八等于多少？", [(12, 8, "add")], "20"),
    ("一百零五减去二十", [(105, 20, "subtract")], "85"),
    ("三万五千加两百零五", [(35000, 205, "add")], "35205"),
    ("三点五乘以二", [(3.5, 2, "multiply")], "7.0"),
    ("负五加三", [(-5, 3, "add")], "-2"),
    ("20加上5再减去3", [(20, 5, "add"), (25, 3, "subtract")], "22"),
    ("2加3，再乘以4", [(2, 3, "add"), (5, 4, "multiply")], "20"),
    ("二加三乘四", [(3, 4, "multiply"), (2, 12, "add")], "14"),
    ("（1＋2）×3", [(1, 2, "add"), (3, 3, "multiply")], "9"),
    ("2和3的和", [(2, 3, "add")], "5"),
    ("12和8相乘，然后减去6", [(12, 8, "multiply"), (96, 6, "subtract")], "90"),
    ("从20里减去5", [(20, 5, "subtract")], "15"),
    ("把96除以4", [(96, 4, "divide")], "24.0"),
    ("第一步12乘以8，第二步除以4", [(12, 8, "multiply"), (96, 4, "divide")], "24.0"),
    ("12个苹果加上8个苹果一共多少", [(12, 8, "add")], "20"),
    ("50的20%是多少", [(20, 100, "divide"), (50, 0.2, "multiply")], "10.0"),
    ("What is 12 times 8, then divided by 4?", [(12, 8, "multiply"), (96, 4, "divide")], "24.0"),
    ("Please multiply 12 by 8 and then divide the result by 4.", [(12, 8, "multiply"), (96, 4, "divide")], "24.0"),
    ("add 2 and 3", [(2, 3, "add")], "5"),
    ("Add 2, 3 and 4", [(2, 3, "add"), (5, 4, "add")], "9"),
    ("subtract 5 from 20", [(20, 5, "subtract")], "15"),
    ("the sum of 2 and 3", [(2, 3, "add")], "5"),
    ("What is the sum of 2 and 3 divided by 5?", [(2, 3, "add"), (5, 5, "divide")], "1.0"),
    ("12 plus 8 minus 3", [(12, 8, "add"), (20, 3, "subtract")], "17"),
    ("three plus four, then times two", [(3, 4, "add"), (7, 2, "multiply")], "14"),
    ("two hundred and fifty divided by five", [(250, 5, "divide")], "50.0"),
    ("1+2*3", [(2, 3, "multiply"), (1, 6, "add")], "7"),
    ("(1+2)*3", [(1, 2, "add"), (3, 3, "multiply")], "9"),
    ("((2+3)*(4-1))/5", [(2, 3, "add"), (4, 1, "subtract"), (5, 3, "multiply"), (15, 5, "divide")], "3.0"),
    ("-5 + 3", [(-5, 3, "add")], "-2"),
    ("3 * -2.5", [(3, -2.5, "multiply")], "-7.5"),
    ("1,000 + 2,500", [(1000, 2500, "add")], "3500"),
    ("100 - 20 - 30", [(100, 20, "subtract"), (80, 30, "subtract")], "50"),
    ("Take 12, multiply it by 8, then divide by 4", [(12, 8, "multiply"), (96, 4, "divide")], "24.0"),
    ("Calculate 12*8 and 5+3", [(12, 8, "multiply"), (5, 3, "add")], "8"),
    ("5 subtracted from 20", [(20, 5, "subtract")], "15"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "calls", "result"), ARITHMETIC, ids=[case[0] for case in ARITHMETIC])
def test_arithmetic_becomes_one_call_after_another(port: int, question: str, calls: list[Call], result: str) -> None:
    conversation = Conversation(port)
    answer = conversation.ask(question)
    assert conversation.calls == calls
    assert answer.rstrip("。.").endswith(result)


def test_the_answer_shows_every_operation_in_the_language_of_the_question(port: int) -> None:
    assert Conversation(port).ask("先计算12乘以8,再把结果除以4。") == "12 × 8 = 96，96 ÷ 4 = 24.0，最终结果是 24.0。"
    assert Conversation(port).ask("12 times 8, then divided by 4?") == "12 × 8 = 96, 96 ÷ 4 = 24.0. The result is 24.0."


def test_operands_after_the_first_call_come_from_the_observations(port: int) -> None:
    class WrongCalculator(Conversation):
        def run(self, name: str, arguments: Json) -> str:
            super().run(name, arguments)
            return "1000" if arguments["operation"] == "multiply" else "7.5"

    conversation = WrongCalculator(port)
    assert conversation.ask("12 * 8 / 4") == "12 × 8 = 1000, 1000 ÷ 4 = 7.5. The result is 7.5."
    assert conversation.calls == [(12, 8, "multiply"), (1000, 4, "divide")]


@pytest.mark.parametrize(
    ("question", "calls"),
    [
        ("再把刚才的结果除以2", [(24.0, 2, "divide")]),
        ("再加3", [(24.0, 3, "add")]),
        ("用100减去刚才的结果", [(100, 24.0, "subtract")]),
        ("把它乘以2，再减去1", [(24.0, 2, "multiply"), (48.0, 1, "subtract")]),
        ("divide the previous result by 2", [(24.0, 2, "divide")]),
        ("Now subtract 4 from that.", [(24.0, 4, "subtract")]),
        ("What is 100 minus the last result?", [(100, 24.0, "subtract")]),
        ("÷ 4", [(24.0, 4, "divide")]),
    ],
)
def test_a_question_may_go_on_from_the_result_in_the_history(port: int, question: str, calls: list[Call]) -> None:
    first = Conversation(port)
    first.ask("请先计算12乘以8,再把结果除以4。")
    restarted = Conversation(port, history=first.history)
    restarted.ask(question)
    assert restarted.calls == calls


def test_a_result_that_was_never_there_is_not_invented(port: int) -> None:
    conversation = Conversation(port)
    assert conversation.ask("再把刚才的结果除以2") == "在这个会话里还没有算出过结果。"
    assert conversation.ask("What was the result?") == "There is no result in this conversation yet."
    assert conversation.calls == []


@pytest.mark.parametrize(
    "question", ["刚才最终算出来是多少?", "结果是多少？", "what was the result?", "Repeat the answer."]
)
def test_a_follow_up_is_answered_from_the_newest_answer_with_a_result(port: int, question: str) -> None:
    conversation = Conversation(port)
    conversation.ask("5 + 6")
    conversation.ask("12 * 8 / 4")
    for between in ("你好", "我叫岭西", "现在几点?", "10 / 0"):
        conversation.ask(between)
    assert "24.0" in conversation.ask(question)
    assert conversation.calls == []


@pytest.mark.parametrize(
    ("statement", "name", "question"),
    [
        ("我叫岭西", "岭西", "我叫什么名字?"),
        ("你好，我的名字叫岭西，请记住", "岭西", "你还记得我的名字吗？"),
        ("我是小明。", "小明", "我是谁？"),
        ("my name is Ada", "Ada", "What is my name?"),
        ("Hi, I'm Ada Lovelace.", "Ada Lovelace", "Do you remember my name?"),
        ("Please call me Zoë!", "Zoë", "who am I?"),
    ],
)
def test_the_name_is_greeted_and_remembered(port: int, statement: str, name: str, question: str) -> None:
    conversation = Conversation(port)
    assert conversation.ask(statement) in (f"你好，{name}！很高兴认识你。", f"Hello, {name}! Nice to meet you.")
    assert name in conversation.ask(question)


def test_the_latest_name_wins_and_an_unknown_one_is_not_invented(port: int) -> None:
    conversation = Conversation(port)
    assert conversation.ask("我叫什么名字?") == "你还没有告诉我你的名字。"
    conversation.ask("我叫岭西")
    conversation.ask("my name is Ada")
    assert conversation.ask("我叫什么名字?") == "你叫Ada。"
    assert conversation.ask("Call me Bo. What is my name?") == "Your name is Bo."


@pytest.mark.parametrize(
    ("question", "arguments", "answer"),
    [
        ("现在几点?", {}, "现在的时间是 2031-05-06 07:08:09 UTC。"),
        ("上海现在几点？", {"time_zone": "Asia/Shanghai"}, "现在的时间是 2031-05-06 07:08:09 Asia/Shanghai。"),
        ("What time is it in Tokyo?", {"time_zone": "Asia/Tokyo"}, "The time is 2031-05-06 07:08:09 Asia/Tokyo."),
        ("What's the time?", {}, "The time is 2031-05-06 07:08:09 UTC."),
    ],
)  # fmt: skip
def test_the_time_comes_from_the_tool(port: int, question: str, arguments: Json, answer: str) -> None:
    conversation = Conversation(port)
    assert conversation.ask(question) == answer
    assert conversation.clock_calls == [arguments]


def test_a_tool_that_fails_is_explained(port: int) -> None:
    conversation = Conversation(port)
    assert "除数不能为零" in conversation.ask("先计算5加3，再除以0")
    assert "divided by zero" in conversation.ask("10 / 0")
    assert conversation.calls == [(10, 0, "divide")]


def test_without_tools_it_says_that_it_cannot(port: int) -> None:
    conversation = Conversation(port, tools=[])
    assert "calculator" in conversation.ask("12乘以8")
    assert "cannot calculate" in conversation.ask("12 times 8")
    assert "current_time" in conversation.ask("What time is it?")


@pytest.mark.parametrize("question", ["2^10", "9的平方根是多少", "10 % 3", "12 * (8 +"])
def test_what_the_calculator_cannot_do_is_said(port: int, question: str) -> None:
    conversation = Conversation(port)
    answer = conversation.ask(question)
    assert ("could not be calculated" in answer or "算不出来" in answer) and conversation.calls == []


@pytest.mark.parametrize(
    "question",
    [
        "你好",
        "Hello!",
        "帮助",
        "call me at 555-1234",
        "2024-01 的净收入",
        "我参加了3次考试",
        "order 66 - cancelled",
        "🙂",
    ],
)
def test_anything_else_gets_a_short_introduction(port: int, question: str) -> None:
    conversation = Conversation(port)
    answer = conversation.ask(question)
    assert all(word in answer for word in ("demo", "BASE_URL", "API_KEY", "DEFAULT_MODEL"))
    assert ("你好" in answer) == bool(re.search("[\u4e00-\u9fff]", question))
    assert conversation.calls == []


def test_a_stream_says_the_same(port: int) -> None:
    whole, streamed = Conversation(port), Conversation(port, stream=True)
    for question in ("请先计算12乘以8,再把结果除以4。", "刚才最终算出来是多少?", "Hello!", "现在几点?"):
        assert streamed.ask(question) == whole.ask(question)
        assert streamed.calls == whole.calls


def test_usage_is_counted_and_the_same_request_gets_the_same_answer(port: int) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "12 * 8"}], "tools": [CALCULATOR]}
    first, second = (post(port, body)[1] for _ in range(2))
    assert first["usage"]["total_tokens"] == first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert math.isclose(first["created"], second["created"], abs_tol=5)
    assert {**first, "created": 0} == {**second, "created": 0}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not json", 400),
        (b'"\xff"', 400),
        (b"[" * 100_000, 400),
        ([], 400),
        ({}, 400),
        ({"model": "demo"}, 400),
        ({"model": "demo", "messages": []}, 400),
        ({"model": "demo", "messages": ["hi"]}, 400),
        ({"model": "demo", "messages": [{"role": "king", "content": "hi"}]}, 400),
        ({"model": "demo", "messages": [{"role": "user", "content": 5}]}, 400),
        ({"model": "demo", "messages": [{"role": "user", "content": 5}], "stream": True}, 400),
        ({"model": "demo", "messages": [{"role": "user", "content": "\ud800"}]}, 400),
        ({"model": "demo", "messages": [{"role": "assistant", "tool_calls": "x"}]}, 400),
        ({"model": "demo", "messages": [{"role": "user", "content": "hi"}], "tools": []}, 400),
        ({"model": "other", "messages": [{"role": "user", "content": "hi"}]}, 404),
    ],
)
def test_a_bad_request_is_refused_in_the_shape_of_openai(port: int, body: object, status: int) -> None:
    answered, problem = post(port, body)
    assert answered == status
    assert problem["error"]["type"] == "invalid_request_error" and problem["error"]["message"]


def test_one_connection_serves_many_requests_and_many_are_served_at_once(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for path, status in (("/v1/models", 200), ("/v1/models/demo", 200), ("/nowhere", 404)) * 2:
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == status
        response.read()
        assert response.isclosed() and connection.sock is not None
    connection.close()
    with ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(lambda n: Conversation(port).ask(f"{n} + 1"), range(120)))
    assert answers == [f"{n} + 1 = {n + 1}." for n in range(120)]


@pytest.mark.skipif(sys.platform == "win32", reason="signals and parents are another matter there")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_it_ends_at_a_signal(number: str) -> None:
    process, _ = start()
    process.send_signal(getattr(signal, number))
    rest, _ = process.communicate(timeout=5)
    assert (process.returncode, rest) == (0, "")


def test_it_ends_when_its_parent_has_ended() -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process, _ = start("--parent", str(parent.pid))
    assert process.poll() is None
    parent.communicate(b"\n")
    process.communicate(timeout=5)
    assert process.returncode == 0


def test_a_port_that_is_taken_is_named(port: int) -> None:
    command = [sys.executable, "-m", "dev.demo_model", "--port", str(port)]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10, env=os.environ, check=False)
    assert second.returncode == 1 and f"127.0.0.1:{port}" in second.stderr


def test_a_table_is_not_described_and_that_is_said(port: int) -> None:
    for question, said in (('{"table": "orders 12 * 8"}', "describes no tables"), ('{"table": "订单"}', "不会描述表")):
        messages = [{"role": "system", "content": DRAFT.format(language="English")}]
        _, completion = post(port, {"model": "demo", "messages": [*messages, {"role": "user", "content": question}]})
        assert said in completion["choices"][0]["message"]["content"]
