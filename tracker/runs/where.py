"""Filters over runs, such as `stddevs like '%0.1%' and best.accuracy > 0.95`.

The language is SQL's for conditions: comparisons, `like`, `in`, `is null`, `between`, `and`, `or`,
`not` and parentheses. Nothing is evaluated but these. What a run does not have is null, and as in
SQL a comparison with null is neither true nor false, so that such a run is not chosen.

    >>> filter = parse("step >= 100 and not status = 'failed'")
    >>> filter.fields, filter.matches({'step': 200, 'status': 'completed'}.get)
    (['step', 'status'], True)
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable
from typing import Any

Lookup = Callable[[str], Any]
Operand = Callable[[Lookup], Any]
Truth = Callable[[Lookup], bool | None]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w./]))
    | '(?P<text>(?:[^']|'')*)'
    | "(?P<quoted>[^"]+)"
    | (?P<word>[^\W\d][\w./:\-]*)
    | (?P<sign><=|>=|<>|!=|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_KEYWORDS = ("and", "or", "not", "like", "in", "is", "null", "between", "true", "false")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class WhereError(ValueError):
    """A filter that cannot be read."""


@dataclasses.dataclass(frozen=True)
class Filter:
    """A condition.

    Attributes:
      fields: the names in it, in order.
      truth: of a lookup from name to value, None for null: True, False, or None for unknown.
    """

    fields: list[str]
    truth: Truth

    def matches(self, lookup: Lookup) -> bool:
        """Whether the condition is true."""
        return self.truth(lookup) is True


def parse(text: str) -> Filter:
    """Reads a condition.

    Args:
      text: the condition; see the module. Names with other signs than letters, digits and `_./:-`
        stand in double quotes, texts in single ones.

    Raises:
      WhereError: with one sentence that names the place.
    """
    parser = _Parser(text)
    truth = parser.either()
    parser.expect_end()
    return Filter(parser.fields, truth)


def compare(a: Any, b: Any) -> tuple[Any, Any] | None:
    """Two values made comparable: numbers where both can be, else texts; None if one is null."""
    if a is None or b is None:
        return None
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return x, y
    return text_of(a), text_of(b)


def text_of(value: Any) -> str:
    """A value as it stands on a command line: 0.1, true, a,b."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}".replace("+", "")
    if isinstance(value, (list, tuple)):
        return ",".join(text_of(v) for v in value)
    return str(value)


def _number(value: Any) -> float | None:
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return _number(value[0]) if len(value) == 1 else None
    try:
        return float(value)
    except (TypeError, ValueError):
        return {"true": True, "false": False}.get(str(value).lower())


class _Parser:
    def __init__(self, text: str):
        self._text = text
        self._tokens = self._split()
        self._at = 0
        self.fields: list[str] = []

    def _split(self) -> list[tuple[str, str, int]]:
        tokens, position = [], 0
        while self._text[position:].strip():
            match = _TOKEN.match(self._text, position)
            if match is None:
                raise self._error("cannot be read", position)
            kind = str(match.lastgroup)
            word, position = match[kind], match.start(kind)
            if kind == "word" and word.lower() in _KEYWORDS:
                kind, word = "key", word.lower()
            tokens.append((kind, word, position))
            position = match.end()
        return tokens

    def _error(self, why: str, position: int) -> WhereError:
        rest = self._text[position:].strip()
        place = f"at {rest[:30]!r}" if rest else "at its end"
        return WhereError(f"The filter {self._text!r} {why} {place}")

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "", 10**9)

    def _take(self, kind: str, *words: str) -> str | None:
        found, word, _ = self._peek()
        if found != kind or (words and word not in words):
            return None
        self._at += 1
        return word

    def _expected(self, what: str) -> WhereError:
        return self._error(f"lacks {what}", self._peek()[2])

    def expect_end(self) -> None:
        if self._peek()[0] != "end":
            raise self._expected("'and' or 'or'")

    def either(self) -> Truth:
        parts = [self._both()]
        while self._take("key", "or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda look: _any([p(look) for p in parts])

    def _both(self) -> Truth:
        parts = [self._one()]
        while self._take("key", "and"):
            parts.append(self._one())
        if len(parts) == 1:
            return parts[0]
        return lambda look: _not(_any([_not(p(look)) for p in parts]))

    def _one(self) -> Truth:
        if self._take("key", "not"):
            inner = self._one()
            return lambda look: _not(inner(look))
        if self._take("sign", "("):
            inner = self.either()
            if not self._take("sign", ")"):
                raise self._expected("')'")
            return inner
        return self._condition(self._operand())

    def _condition(self, left: Operand) -> Truth:
        if sign := self._take("sign", *_COMPARE):
            return _comparison(sign, left, self._operand())
        if self._take("key", "is"):
            wanted = not self._take("key", "not")
            if not self._take("key", "null"):
                raise self._expected("'null'")
            return lambda look: (left(look) is None) == wanted
        negated = bool(self._take("key", "not"))
        truth = self._membership(left)
        return (lambda look: _not(truth(look))) if negated else truth

    def _membership(self, left: Operand) -> Truth:
        if self._take("key", "like"):
            return _like(left, self._operand())
        if self._take("key", "between"):
            low = _comparison(">=", left, self._operand())
            if not self._take("key", "and"):
                raise self._expected("'and'")
            high = _comparison("<=", left, self._operand())
            return lambda look: _not(_any([_not(low(look)), _not(high(look))]))
        if self._take("key", "in") and self._take("sign", "("):
            options = [_comparison("=", left, self._operand())]
            while self._take("sign", ","):
                options.append(_comparison("=", left, self._operand()))
            if not self._take("sign", ")"):
                raise self._expected("')'")
            return lambda look: _any([option(look) for option in options])
        raise self._expected("a comparison such as = < > like in")

    def _operand(self) -> Operand:
        kind, word, _ = self._peek()
        values = {"true": True, "false": False, "null": None}
        if kind in ("word", "quoted"):
            self._at += 1
            self.fields.append(word)
            return lambda look: look(word)
        if kind not in ("number", "text") and not (kind == "key" and word in values):
            raise self._expected("a name or a value")
        self._at += 1
        value: Any = values[word] if kind == "key" else word.replace("''", "'")
        if kind == "number":
            value = float(word)
        return lambda look: value


def _comparison(sign: str, left: Operand, right: Operand) -> Truth:
    def truth(look: Lookup) -> bool | None:
        pair = compare(left(look), right(look))
        return None if pair is None else _COMPARE[sign](*pair)

    return truth


def _like(left: Operand, right: Operand) -> Truth:
    def truth(look: Lookup) -> bool | None:
        value, pattern = left(look), right(look)
        if value is None or pattern is None:
            return None
        signs = {"%": ".*", "_": "."}
        expression = "".join(signs.get(c, re.escape(c)) for c in text_of(pattern))
        return re.fullmatch(expression, text_of(value), re.IGNORECASE | re.DOTALL) is not None

    return truth


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _any(values: list[bool | None]) -> bool | None:
    if True in values:
        return True
    return None if None in values else False
