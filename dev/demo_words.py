"""What a sentence asks the demo model for: arithmetic, a name, the time, an earlier result; in Chinese and English.

Nothing is calculated here. Arithmetic is read into a `Plan`: operations in the order in which the calculator has to
do them, whose operands are numbers of the sentence, results of operations before them, or the earlier result that the
history holds. Words become tokens by one table, `VOCABULARY`; `Reader` puts the tokens together.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

Number = int | float


@dataclass(frozen=True)
class Result:
    """The result of operation number `index` of the same plan."""

    index: int


@dataclass(frozen=True)
class Earlier:
    """The result that the conversation had before this sentence."""


Operand = Number | Result | Earlier
EARLIER = Earlier()


@dataclass(frozen=True)
class Operation:
    name: str  # add, subtract, multiply, divide
    a: Operand
    b: Operand


@dataclass(frozen=True)
class Plan:
    """What to calculate. `problem` is `unsupported` or `unreadable` where the sentence asks for more than that."""

    operations: tuple[Operation, ...]
    problem: str = ""
    plain: bool = True  # nothing else stands in the sentence

    @property
    def needs_earlier(self) -> bool:
        return any(isinstance(operand, Earlier) for one in self.operations for operand in (one.a, one.b))

    @property
    def final(self) -> list[int]:
        """Indices of the results that no other operation takes up."""
        used = {o.index for one in self.operations for o in (one.a, one.b) if isinstance(o, Result)}
        return [index for index in range(len(self.operations)) if index not in used]


# ------------------------------------------------------------------ numbers

DIGITS = {digit: at for at, group in enumerate("零〇 一 二两 三 四 五 六 七 八 九".split()) for digit in group}
UNITS = {"十": 10, "百": 100, "千": 1000}
SECTIONS = {"万": 10_000, "亿": 100_000_000}
NUMERAL = "".join([*DIGITS, *UNITS, *SECTIONS])
SMALL_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
WORDS = dict(zip(SMALL_WORDS, range(20), strict=True))
WORDS |= dict(zip("twenty thirty forty fifty sixty seventy eighty ninety".split(), range(20, 100, 10), strict=True))
SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
# A number as digits: 12, 1,000, 3.5, .5, 2e3; never a part of a word such as v2 or 3rd.
DIGIT_NUMBER = (
    r"(?<![A-Za-z0-9_.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:(?<=\d)\.\d+|(?<!\d)\.\d+)?(?<=\d)(?:e[+-]?\d{1,2})?"
)


def to_number(text: str) -> Number:
    """A number written with digits; whole numbers stay whole, 24.0 stays 24.0."""
    text = text.replace(",", "")
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def is_finite(text: str) -> bool:
    return math.isfinite(float(text))


def whole(value: Number) -> Number:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def chinese_number(text: str) -> Number:
    """十二, 三万五, 两百零五, 三点五, 二〇二四, and with digits among them: 3万5千, 1.5万."""
    text, _, decimals = text.partition("点")
    if all(c in DIGITS for c in text):
        total: Number = int("".join(str(DIGITS[c]) for c in text))
    else:
        total = _chinese_whole(text)
    return float(f"{total}.{''.join(str(DIGITS[c]) for c in decimals)}") if decimals else total


def _chinese_whole(text: str) -> Number:
    total: Number = 0
    section: Number = 0
    current: Number | None = None
    tail = 1  # what a digit at the very end is worth: 三万五 is 35000, but 三万零五 is 30005
    for part in re.findall(r"\d+(?:\.\d+)?|.", text):
        if part in UNITS:
            section += (1 if current is None else current) * UNITS[part]
            current, tail = None, UNITS[part] // 10
        elif part in SECTIONS:
            total = (total + section + (current or 0) or 1) * SECTIONS[part]
            section, current, tail = 0, None, SECTIONS[part] // 10
        else:
            current = DIGITS[part] if part in DIGITS else to_number(part)
            tail = 1 if current == 0 else tail
    return whole(total + section + (current or 0) * tail)


def english_number(text: str) -> Number:
    """twenty-five, three hundred, two thousand five hundred, three point five."""
    text, _, decimals = text.partition("point")
    total = section = 0
    for word in re.split(r"[-\s]+", text.strip(" -")):
        if word in WORDS:
            section += WORDS[word]
        elif word == "hundred":
            section = (section or 1) * 100
        elif word in SCALES:
            total, section = total + (section or 1) * SCALES[word], 0
    if not decimals:
        return total + section
    return float(f"{total + section}.{''.join(str(WORDS[word]) for word in decimals.split())}")


# ------------------------------------------------------------------ words to tokens


def _words(*alternatives: str) -> str:
    return rf"\b(?:{'|'.join(alternatives)})\b"


_DIGIT, _SECTION = "".join(DIGITS), "".join([*UNITS, *SECTIONS])
_CHINESE = rf"(?:\d+(?:\.\d+)?(?=[{_SECTION}])|[{NUMERAL}])(?:\d+(?![.\d])|[{NUMERAL}])*(?:点[{_DIGIT}]+)?"
_ONE_WORD, _DIGIT_WORD = "|".join([*WORDS, *SCALES]), "|".join(SMALL_WORDS[:10])
_ENGLISH = rf"(?:{_ONE_WORD})(?:[-\s]+(?:{_ONE_WORD}))*(?:\s+point(?:\s+(?:{_DIGIT_WORD}))+)?"
_LATER = "刚才|刚刚|上次|上一[次个步题]|前一[次个步]|前面|之前|上面|先前"
_CAME_OUT = "(?:最终|最后)?的?(?:那个)?(?:计?算)?(?:[出得]来?|得到)?的?(?:最终|最后)?"
_VALUE = "result|answer|number|value|total|sum|product|quotient|difference"
_EMPTY = (
    "what's|what|is|are|was|the|a|an|of|please|can|could|would|will|you|me|i|we|us|for|tell|compute|calculate|evaluate",
    "solve|work|out|equals?|result|answer|value|numbers?|calculator|use|using|first|all|now|so|need|want|like|know|how",
    "much|many|do|does|get|give|help|hi|hello|hey|thanks?|ok|okay|well|just|let's|starting|start|take|at|same|my",
    "question|problem|exercise|step|if|i'd|makes?",
)
_EMPTY_CHINESE = (
    "请问?|帮[我忙]?|用|使用|计算器?|算出?|先|把|将|从|里面?|中|给|得[到出]?|是|等于|多少|几|什么|呢|吗|吧|啊|呀",
    "一?共|的|了|让|我们?|你|想|要|知道|那么?|就|倍|个|数|这|上|下|去|求|开始|您|好|谢谢?|元|块|题|问题",
)

# (kind, value, pattern), tried in this order at each place of the sentence.
VOCABULARY: tuple[tuple[str, str, str], ...] = (
    # Looks like arithmetic and is none.
    ("other", "", r"https?://\S+|\d{1,2}:\d{2}(?::\d{2})?|\d{4}年\d*月?\d*[日号]?"),
    ("other", "", r"\d{4}-\d{2}-\d{2}|\d{4}-0\d(?!\d)|\d{4}/\d{2}/\d{2}"),
    ("other", "", "参加|更加|加油|加班|加入|加拿大|加州|新加坡|[删排解消]除|除[了非夕]|减肥|乘[客坐车]|搭乘|再见"),
    ("other", "", "一些|一起|统一|第一(?!步)|一[样直定般]|之一|唯一|十分|万一|千万|(?:星期|周|礼拜)[一二三四五六日天]"),
    ("other", "", _words("how many times", "times? (?:zone|is)")),
    ("fill", "", r"平方(?:米|公里|千米)|[算计等试]一下|一[下共遍次]|再次|[这那]?[两二三]个?数(?!\d)|一个"),
    ("bad", "", r"\^|\*\*|%(?=\s*\d)|次方|平方|立方|开方|根号|取余|余数|阶乘"),
    ("bad", "", _words("sqrt|square root|squared?|cubed?|power|modulo|mod|factorial")),
    # Results that were there before.
    ("both", "", _words("them", "(?:the |these |those )?(?:two|both) (?:results|answers|numbers|values)")),
    ("both", "", "它们|[两二]者|[这那]?两[个次]的?结果"),
    ("ref", "earlier", rf"(?:{_LATER}){_CAME_OUT}(?:结果|答案|得数|数字?|值)"),
    ("ref", "earlier", _words(rf"(?:the |your |my |that )?(?:previous|last|earlier|prior|above) (?:{_VALUE}|one)")),
    ("ref", "", "(?:最终|最后|所得|得到|得出|这个|那个|该)?的?(?:结果|答案|得数)|它|[这那]个数字?|所得的?[数和积差商]"),
    ("fill", "", _words("(?:the )?(?:result|answer|value) (?:of|to)")),
    ("ref", "", _words(rf"(?:the |that |this )(?:final )?(?:{_VALUE})(?! (?:of|between))", "it|that|this")),
    # Order.
    ("then", "", _words("(?:and )?(?:then|after that|afterwards|next|finally)")),
    ("then", "", r"再|然后|接着|接下来|随后|之后|最后|其次|第[一二三四五六七八九十\d]+步"),
    # Operations. An `op` is a word that hardly means anything else; a `sign` may.
    ("op", "half", "的一半"),
    ("op", "double", "翻倍|翻一番|加倍"),
    ("op", "multiply", rf"的(?=\s*(?:百分之|[\d.]+\s*%|[{NUMERAL}\d.]+\s*倍))"),
    ("pair", "add", "相加|加起来|求和"),
    ("pair", "subtract", "相减"),
    ("pair", "multiply", "相乘"),
    ("pair", "divide", "相除"),
    ("noun", "add", "[的之]总?和"),
    ("noun", "subtract", "[的之]差"),
    ("noun", "multiply", "[的之]乘?积"),
    ("noun", "divide", "[的之]商"),
    ("op", "add", "加上|增加|加|" + _words("plus", "added to")),
    ("op", "subtract", "减[去掉少]?|" + _words("minus")),
    ("op", "subtracted from", _words("subtracted from")),
    ("op", "multiply", "乘[以上]?|" + _words("multiplied(?: by)?")),
    ("op", "divide", "除以|除|" + _words("divided(?: by)?")),
    ("sign", "multiply", r"\*|" + _words("times")),
    ("sign", "divide", "/|" + _words("over")),
    ("sign", "add", r"\+"),
    ("sign", "subtract", "-"),
    ("neg", "", "负|" + _words("negative")),
    ("list", "add", _words("(?:sum|total) of")),
    ("list", "subtract", _words("difference (?:of|between)")),
    ("list", "multiply", _words("product of")),
    ("list", "divide", _words("(?:quotient|ratio) of")),
    ("verb", "add", _words("add(?:ing)?")),
    ("verb", "subtract", _words("subtract(?:ing)?")),
    ("verb", "multiply", _words("multiply(?:ing)?")),
    ("verb", "divide", _words("divid(?:e|ing)")),
    ("times", "2", _words("twice|doubl(?:e|ing)")),
    ("times", "3", _words("triple")),
    ("halve", "", _words("halve|halving|half(?: of)?")),
    # Numbers.
    ("percent", "of", r"%\s*of\b|" + _words("percent of")),
    ("percent", "", "%|" + _words("percent")),
    ("percent", "before", "百分之"),
    ("num", "chinese", _CHINESE),
    ("num", "digits", DIGIT_NUMBER + r"(?![A-Za-z_])"),
    ("num", "words", _words(_ENGLISH)),
    # What holds them together.
    ("equals", "", "="),
    ("open", "", r"\("),
    ("close", "", r"\)"),
    ("and", "", "&|以及|还有|和|与|跟|" + _words("and")),
    ("link", "from", _words("from")),
    ("link", "", _words("by|to|with")),
    ("comma", "", "[,、]"),
    ("stop", "", r"[.;:!?。—\n]"),
    # Words that say nothing here; anything else is a word we do not know.
    ("fill", "", _words(*_EMPTY)),
    ("fill", "", "|".join(_EMPTY_CHINESE)),
    ("other", "", r"[a-z][a-z0-9'_]*|\d[\da-z_.]*|[^\s]"),
)
_TOKEN = re.compile("|".join(f"(?P<t{at}>{pattern})" for at, (_, _, pattern) in enumerate(VOCABULARY)))
ASKS = re.compile(
    r"calculat|comput|what(?:'s| is| are)|how much|evaluate|work out|solve|equals"
    r"|[=*+×÷]|计算|算|多少|等于|求|得几|结果"
)

# One form for each sign: full-width forms to ASCII, and the many multiplication, division and minus signs.
_FORMS: dict[int, int | str] = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_FORMS |= (
    {ord(sign): "*" for sign in "×✕✖∗⋅"} | {ord(sign): "/" for sign in "÷∕⁄"} | {ord(sign): "-" for sign in "−–﹣"}
)
_FORMS |= {ord(sign): "(" for sign in "【[{"} | {ord(sign): ")" for sign in "】]}"}
_FORMS |= {ord("，"): " , ", ord("；"): " ; ", ord("："): " : ", ord("　"): " ", ord("’"): "'"}


class Token(NamedTuple):
    kind: str
    value: str
    number: Number = 0
    tight: bool = False  # something follows without a space
    clear: bool = True  # no unknown word before it in its clause


def tokens_of(text: str) -> tuple[list[Token], bool]:
    """The tokens of a sentence without its empty words, and whether it holds words that are not known here."""
    text = text.translate(_FORMS).lower()
    operand = rf"[\d{NUMERAL})]"
    text = re.sub(rf"(?<={operand})\s*x\s*(?=[-(.\d{NUMERAL}])", "*", text)
    text = re.sub(r"(?<=[\d)])\((?=[-(.\d])", "*(", text)  # 2(3+4)
    tokens: list[Token] = []
    clear, strange = True, False
    for found in _TOKEN.finditer(text):
        kind, value, _ = VOCABULARY[int((found.lastgroup or "t0")[1:])]
        word, tight = found[0], not text[found.end() : found.end() + 1].isspace()
        if kind == "other":
            clear, strange = False, True
        elif value in ("half", "double"):
            tokens += [Token("op", "divide" if value == "half" else "multiply"), Token("num", "digits", 2)]
        elif kind == "num":
            read = {"chinese": chinese_number, "words": english_number}.get(value, to_number)
            tokens.append(Token(kind, value, read(word), tight, clear))
        elif kind != "fill":
            clear = clear or kind in ("comma", "stop", "then")
            tokens.append(Token(kind, value, 0, tight, clear))
    return tokens, strange


# ------------------------------------------------------------------ tokens to operations

PRECEDENCE = {"add": 1, "subtract": 1, "subtracted from": 1, "multiply": 2, "divide": 2}
MAX_DEPTH = 40
MAX_TEXT = 2000
END = Token("end", "")


class Reader:
    """Reads tokens from left to right. A clause goes on from the value before it or brings a new one."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.operations: list[Operation] = []
        self.values: list[Operand] = []
        self.going_on = False  # the left side is the value before, without being named
        self.listing = False  # `and` separates operands
        self.broken = False

    def token(self, ahead: int = 0) -> Token:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else END

    def emit(self, name: str, a: Operand, b: Operand) -> Operand:
        a, b, name = (b, a, "subtract") if name == "subtracted from" else (a, b, name)
        self.operations.append(Operation(name, a, b))
        return Result(len(self.operations) - 1)

    def before(self) -> Operand:
        return self.values[-1] if self.values else EARLIER

    def read(self) -> None:
        while self.token() is not END:
            start = self.at
            self.clause()
            self.at = max(self.at, start + 1)  # what makes no sense is left out

    def clause(self) -> None:
        then = False
        while self.token().kind in ("stop", "comma", "then", "and"):
            then = then or self.token().kind == "then"
            self.at += 1
        token, left = self.token(), self.before()
        if token.kind == "equals":  # 12 * 8 = 96: the number was not ours to find
            self.at += 2 if self.token(1).kind == "num" else 1
        elif self.goes_on(token, then):
            self.going_on = True
            value = self.infix(left)
            self.going_on = False
            if value != left:
                self.values[-1:] = [value]
        else:
            new = self.verb() if token.kind == "verb" else self.joined()
            if new is not None and new != left:
                if isinstance(new, Result) and self.takes(new, left):
                    self.values[-1:] = [new]
                else:
                    self.values.append(new)

    def takes(self, result: Result, value: Operand) -> bool:
        operation = self.operations[result.index]
        return isinstance(value, Result) and value in (operation.a, operation.b)

    def goes_on(self, token: Token, then: bool) -> bool:
        """Whether a clause that starts with this operator works on the value before it."""
        if token.kind not in ("op", "sign"):
            return False
        if token.value in ("add", "subtract") and not then:
            if token.kind == "sign" and (token.tight or (self.values and not isinstance(self.values[-1], Result))):
                return False  # a sign of the number: -5 + 3
            if not self.values and self.more_follows():
                return False  # minus 5 plus 3
        return bool(self.values) or token.clear

    def more_follows(self) -> bool:
        return self.token(1).kind == "num" and self.token(2).kind in ("op", "sign")

    def joined(self) -> Operand | None:
        """An expression, or several with the operation behind them: 2 和 3 相加, 2、3、4 的和."""
        items = self.both() or [self.expression()]
        first = items[0]
        if first is None or not any(t.kind in ("pair", "noun") for t in self.tokens[self.at :]):
            return first
        end, known = self.at, len(self.operations)
        while self.token().kind == "and" or (self.token().kind == "comma" and not isinstance(items[-1], Result)):
            self.at += 1
            items.append(self.expression())
        if self.token().kind in ("pair", "noun") and len(items) > 1 and None not in items:
            name = self.token().value
            self.at += 1
            return self.infix(self.fold(name, [item for item in items if item is not None]))
        self.at = end  # they do not belong together: read them again as clauses of their own
        del self.operations[known:]
        return first

    def both(self) -> list[Operand | None]:
        if self.token().kind != "both" or len(self.values) < 2:
            return []
        self.at += 1
        return [*self.values[-2:]]

    def fold(self, name: str, items: Iterable[Operand]) -> Operand:
        first, *rest = items
        for item in rest:
            first = self.emit(name, first, item)
        return first

    def verb(self) -> Operand | None:
        """add 2 and 3 · add 3 · add 3 to it · subtract 5 from 20 · divide the result by 4 · multiply by 2."""
        name, before = self.token().value, self.before()
        self.at += 1
        if self.token().kind == "link":
            self.at += 1
            by = self.expression()
            return None if by is None else self.infix(self.emit(name, before, by))
        self.listing = True
        items = self.both() or [self.expression()]
        backwards = self.token().value == "from"
        while self.joins_operand() or self.token().kind == "num":
            self.at += self.token().kind != "num"
            items.append(self.expression())
        self.listing = False
        operands = [item for item in items if item is not None]
        if not operands or operands == [before]:
            return None
        if len(operands) == 1:
            operands = [before, *operands]
        elif backwards:
            operands.reverse()
        return self.infix(self.fold(name, operands))

    def joins_operand(self) -> bool:
        """Whether another operand of the same list comes: after `and`, a comma between numbers, `by`, `to`, `from`."""
        token, following = self.token(), self.token(1)
        if token.kind == "comma":
            return following.kind == "num" and self.token(2).kind in ("comma", "and", "end", "stop", "then")
        return token.kind in ("and", "link") and following.kind in ("num", "ref", "open", "neg", "list", "sign")

    def list_of(self) -> Operand | None:
        """What follows `sum of`: operands with only signs between them, as in `the sum of 2 and 3 divided by 5`."""
        name, outer = self.token().value, self.listing
        self.at += 1
        self.listing = True
        items = [self.expression(signs_only=True)]
        while self.joins_operand() and (len(items) < 2 or self.token(1).kind != "list"):
            self.at += 1
            items.append(self.expression(signs_only=True))
        self.listing = outer
        operands = [item for item in items if item is not None]
        return self.fold(name, operands) if operands else None

    def expression(self, lowest: int = 1, signs_only: bool = False) -> Operand | None:
        left = self.primary()
        return None if left is None else self.infix(left, lowest, signs_only)

    def infix(self, left: Operand, lowest: int = 1, signs_only: bool = False) -> Operand:
        while True:
            token = self.token()
            if lowest == 1 and self.closes(token, left):
                self.at += 1  # 12加8的和 乘以3; 12乘以8的结果 除以4
                continue
            if token.kind not in (("sign",) if signs_only else ("op", "sign")) or PRECEDENCE[token.value] < lowest:
                return left
            mark = self.at
            self.at += 1
            right = self.expression(PRECEDENCE[token.value] + 1, signs_only)
            if right is None:
                self.broken = self.broken or (token.kind == "sign" and token.value != "subtract")
                self.at = mark
                return left
            left = self.emit(token.value, left, right)

    def closes(self, token: Token, left: Operand) -> bool:
        if not isinstance(left, Result):
            return False
        return token.kind == "ref" or (token.kind == "noun" and token.value == self.operations[left.index].name)

    def primary(self) -> Operand | None:
        self.depth += 1
        try:
            if self.depth > MAX_DEPTH:
                self.broken = True
                return None
            return self.operand()
        finally:
            self.depth -= 1

    def operand(self) -> Operand | None:
        token, mark = self.token(), self.at
        if token.kind == "list":
            return self.list_of()
        if token.kind == "num":
            return self.number()
        self.at += 1
        if token.kind == "ref":
            named_twice = self.going_on and token.value == "earlier"
            return EARLIER if named_twice else self.before()
        if token.kind == "percent" and token.value == "before" and self.token().kind == "num":
            return self.emit("divide", self.number(), 100)
        value = self.group() if token.kind == "open" else self.signed(token)
        if value is None:
            self.at = mark
        return value

    def signed(self, token: Token) -> Operand | None:
        """What follows a sign, `double` or `half of`."""
        is_sign = token.kind in ("sign", "op") and token.value in ("add", "subtract")
        if not is_sign and token.kind not in ("neg", "times", "halve"):
            return None
        value = self.primary()
        if value is None or token.value == "add":
            return value
        if token.kind == "times":
            return self.emit("multiply", int(token.value), value)
        if token.kind == "halve":
            return self.emit("divide", value, 2)
        return -value if isinstance(value, int | float) else self.emit("subtract", 0, value)

    def group(self) -> Operand | None:
        value = self.expression()
        if self.token().kind == "close":
            self.at += 1
        elif value is not None:
            self.broken = True
        return value

    def number(self) -> Operand:
        token = self.token()
        value: Operand = token.number
        self.at += 1
        hundreds = token.value == "words" and token.number >= 100 and token.number % 100 == 0
        if hundreds and not self.listing and self.token().kind == "and" and self.token(1).value == "words":
            if self.token(1).number < 100:  # two hundred and fifty
                value = token.number + self.token(1).number
                self.at += 2
        if self.token().kind == "percent" and self.token().value != "before":
            of = self.token().value == "of"
            self.at += 1
            value = self.emit("divide", value, 100)
            whole_of = self.primary() if of else None
            value = value if whole_of is None else self.emit("multiply", value, whole_of)
        return value


def read_arithmetic(text: str) -> Plan | None:
    """What `text` wants to have calculated; None if it is about something else."""
    if len(text) > MAX_TEXT:
        return None
    tokens, strange = tokens_of(text)
    kinds = {token.kind for token in tokens}
    asks = bool(ASKS.search(text.lower()))
    if "bad" in kinds and kinds & {"num", "ref"} and (asks or not strange):
        return Plan((), "unsupported", not strange)
    reader = Reader(tokens)
    reader.read()
    if reader.broken and (asks or not strange):
        return Plan((), "unreadable", not strange)
    # A sign between numbers may be anything (555-1234, 24/7); with words we do not know, it wants a word that asks.
    if not reader.operations or (strange and not asks and not kinds & {"op", "verb", "list", "pair", "noun"}):
        return None
    return Plan(tuple(reader.operations), plain=not strange)


# ------------------------------------------------------------------ the other questions

_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_CLOCK = r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_MOMENT = re.compile(
    rf"\d{{4}}-\d\d-\d\d(?:[T ]{_CLOCK})?(?:Z|[+-]\d\d:?\d\d)?|\d?{_CLOCK[2:]}|(?<!\d)\d{1, 4}[年月日号]"
)
_NUMBER_IN_ANSWER = re.compile(
    r"(?<![A-Za-z0-9_.)])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?(?![A-Za-z0-9])"
)
_ASKS_RESULT = (
    re.compile("(?:刚才|刚刚|上次|之前|前面|最终|最后|结果|答案|得数|算出来?).*(?:多少|几|什么|啥)"),
    re.compile("(?:再说一[遍次]|重复).*(?:结果|答案)"),
    re.compile(r"\b(?:what|which|tell|remind|repeat|say|give)\b.*\b(?:result|answer|total|outcome)\b"),
    re.compile(_words("what did (?:you|we|i) (?:get|calculate|compute)", "how much was (?:it|that)")),
)
_ASKS_TIME = (
    re.compile(
        "几点|(?:现在|当前|此刻)的?(?:时间|日期)|什么时间|(?:今天|现在)是?(?:几月)?(?:几号|星期几|周几|礼拜几|什么日子)"
    ),
    re.compile(_words("what(?:'s| is)? (?:the )?(?:current )?(?:time|date)", "current (?:time|date)", "time is it")),
    re.compile(_words("what day", "today's date")),
)
_ASKS_NAME = (
    re.compile("我(?:的名字)?(?:叫|是)(?:什么|啥)|我是谁|我的名字(?:呢|[?？]|$)"),
    re.compile("(?:知道|记得)[^，,。！!]{0,4}我(?:的名字|叫|是谁)|记住我的名字"),
    re.compile(_words("what(?:'s| is| was) my name", "who am i")),
    re.compile(_words("(?:know|remember|recall|say|tell me) (?:my name|who i am)")),
)
_END = r"\s,.;:!?，。；：！？、~～…()（）“”\""
_NO_NAME = "什么|啥|谁|你|他|她|它|不|了|一|这|那|来|在|说|想|要|个|what|who|not|a |an |the "
_NO_NAME_EITHER = "what|not|a|an|the|at|on|in|if|when|back|by|for|later|again|tomorrow|today|now|maybe|your"
_LATIN = r"[A-Za-z][\w'.-]*(?: [A-Z][\w'.-]*){0,3}"
_STATES_NAME = (
    re.compile(
        rf"(?:我的名字(?:叫做?|是)|我(?:名)?叫做?|叫我)[:：]? ?(?!{_NO_NAME})({_LATIN}|[^{_END}]{{1,12}}?)"
        rf"(?=[吧啊呀哦哈呢]?(?:[{_END}]|$))"
    ),
    re.compile(rf"我是(?!{_NO_NAME})([\u4e00-\u9fff]{{2,4}}(?<![的了吗呢人])|[A-Z][A-Za-z]+)(?=[{_END}]|$)"),
    re.compile(
        rf"(?i:\bmy name(?:'s| is)|\bcall me|\bi am called|\bi'm called) (?!(?i:{_NO_NAME_EITHER})\b)"
        r"([^\W\d_][\w'-]*(?: [A-Z][\w'-]*){0,3})"
    ),
    re.compile(r"(?:\bI am|\bI'm) ([A-Z][\w'-]*(?: [A-Z][\w'-]*){0,3})(?=[,.!]|$| and\b)"),
)
ZONES = (
    ("Asia/Shanghai", "上海|北京|中国|深圳|广州|杭州|shanghai|beijing|china"),
    ("Asia/Hong_Kong", "香港|hong kong"),
    ("Asia/Tokyo", "东京|日本|tokyo|japan"),
    ("Asia/Seoul", "首尔|韩国|seoul|korea"),
    ("Asia/Singapore", "新加坡|singapore"),
    ("Asia/Kolkata", "印度|孟买|新德里|india|mumbai|delhi"),
    ("Asia/Dubai", "迪拜|dubai"),
    ("Europe/London", "伦敦|英国|london"),
    ("Europe/Paris", "巴黎|法国|paris|france"),
    ("Europe/Berlin", "柏林|德国|berlin|germany"),
    ("Europe/Moscow", "莫斯科|moscow"),
    ("America/New_York", "纽约|华盛顿|new york|washington|boston"),
    ("America/Los_Angeles", "洛杉矶|旧金山|西雅图|los angeles|san francisco|seattle"),
    ("Australia/Sydney", "悉尼|sydney"),
    ("UTC", r"世界时|协调时|\butc\b|\bgmt\b"),
)


def is_chinese(text: str) -> bool:
    return bool(_CJK.search(text))


def asks_for_result(text: str) -> bool:
    return any(pattern.search(_plain(text)) for pattern in _ASKS_RESULT)


def asks_for_time(text: str) -> bool:
    return any(pattern.search(_plain(text)) for pattern in _ASKS_TIME)


def asks_for_name(text: str) -> bool:
    return any(pattern.search(_plain(text)) for pattern in _ASKS_NAME)


def zone_in(text: str) -> str | None:
    """The IANA name of the time zone that the question names, as it is or by a city."""
    if named := re.search(r"\b[A-Z][a-z]+/[A-Z][A-Za-z_]+\b", text):
        return named[0]
    return next((zone for zone, words in ZONES if re.search(words, text.lower())), None)


def name_in(text: str) -> str | None:
    """The name by which the speaker introduces himself; the last one, if there are several."""
    found = [match for pattern in _STATES_NAME for match in pattern.finditer(_straight(text))]
    return max(found, key=lambda match: match.start())[1].rstrip(".-'") if found else None


def last_number(text: str) -> str | None:
    """The last number of an answer, as it is written there; dates and times of day are none."""
    found = _NUMBER_IN_ANSWER.findall(_MOMENT.sub(" ", text.replace("−", "-")))
    finite = [number.replace(",", "") for number in found if is_finite(number.replace(",", ""))]
    return finite[-1] if finite else None


def _straight(text: str) -> str:
    return text[:MAX_TEXT].replace("’", "'")


def _plain(text: str) -> str:
    return _straight(text).lower()
