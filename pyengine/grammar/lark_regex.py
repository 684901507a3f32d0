"""A Lark grammar as one regular expression, where no rule of it leads back to itself.

Within a call of a tool a text stands in JSON, or between tags, where a grammar of its own cannot
run; a regular expression can be enforced there as the pattern of a string.
"""

import re
from collections.abc import Iterator, Mapping

from pyengine.errors import InvalidRequestError

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|\#[^\n]*                     # nothing
    |(?P<string>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<regex>/(?:[^/\\\n]|\\.)+/[imslux]*)
    |(?P<name>[!?]*_?[A-Za-z]\w*)
    |(?P<directive>%[a-z]+)
    |(?P<alias>->)
    |(?P<mark>\.\.|[()\[\]|?*+:~,{}.=])
    |(?P<number>-?\d+)
    """,
    re.VERBOSE,
)
_DEFINES = re.compile(r"^\s*[!?]*(_?[A-Za-z]\w*)(?:\.-?\d+)?\s*:", re.MULTILINE)
# Of lark's module `common`.
_COMMON = {
    "DIGIT": "[0-9]", "HEXDIGIT": "[0-9a-fA-F]", "INT": "[0-9]+", "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)", "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]", "WORD": "[A-Za-z]+", "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+", "WS": r"[ \t\f\r\n]+", "CR": r"\r", "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+", "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
}  # fmt: skip
_LONGEST = 100_000
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", '"': '"', "\\": "\\", "/": "/", "'": "'"}

Token = tuple[str, str]


class NotRegularError(InvalidRequestError):
    """The grammar is no regular expression, or is not known to be one."""


def regex_of_lark(source: str) -> str:
    """The regular expression of the texts of a Lark grammar, which begins at ``start``.

    Raises:
        NotRegularError: A rule leads back to itself, or the grammar has what is not known here.
    """
    rules, imported = _split(source)
    if "start" not in rules:
        raise NotRegularError("the Lark grammar has no rule 'start'")
    made = _Maker(rules, imported)
    return made.rule("start")


def _split(source: str) -> tuple[dict[str, list[Token]], dict[str, str]]:
    """The tokens of each rule's definition, and the imported terminals."""
    places = list(_DEFINES.finditer(source))
    rules: dict[str, list[Token]] = {}
    imported: dict[str, str] = {}
    for match, following in zip(places, [*places[1:], None], strict=True):
        end = len(source) if following is None else following.start()
        tokens = list(_tokens(source[match.end() : end]))
        directive = next((i for i, t in enumerate(tokens) if t[0] == "directive"), len(tokens))
        rules[match[1]] = tokens[:directive]
        imported |= _imports(tokens[directive:])
    before = source[: places[0].start()] if places else source
    return rules, imported | _imports(list(_tokens(before)))


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotRegularError(
                f"the Lark grammar has {text[at : at + 20]!r}, which is not known"
            )
        at = found.end()
        if found.lastgroup is not None:
            yield found.lastgroup, found.group()


def _imports(tokens: list[Token]) -> dict[str, str]:
    """Terminals of ``%import common.X`` and ``%import common (X, Y)``."""
    found = {}
    words = [text for _, text in tokens]
    while words:
        if words[:3] != ["%import", "common", words[2] if len(words) > 2 else ""]:
            raise NotRegularError(f"{words[0]!r} of the Lark grammar is not enforced")
        end = next((i for i in range(1, len(words)) if words[i].startswith("%")), len(words))
        names, words = words[3 if words[2] == "." else 2 : end], words[end:]
        for name in names:
            if name in "(),":
                continue
            if name not in _COMMON:
                raise NotRegularError(f"'common.{name}' of the Lark grammar is not known")
            found[name] = _COMMON[name]
    return found


class _Maker:
    """Makes regular expressions of rules; each is made once."""

    def __init__(self, rules: Mapping[str, list[Token]], imported: Mapping[str, str]) -> None:
        self._rules = rules
        self._made = dict(imported)
        self._within: list[str] = []
        self._tokens: list[Token] = []

    def rule(self, name: str) -> str:
        """The expression of a rule or a terminal, in a group."""
        if name in self._made:
            return self._made[name]
        if name in self._within:
            raise NotRegularError(f"the Lark grammar's rule '{name}' leads back to itself")
        if name not in self._rules:
            raise NotRegularError(f"the Lark grammar has no '{name}'")
        self._within.append(name)
        outer, self._tokens = self._tokens, list(reversed(self._rules[name]))
        made = self._options()
        if self._tokens:
            raise NotRegularError(f"the Lark grammar's rule '{name}' is malformed")
        self._tokens = outer
        self._within.pop()
        if len(made) > _LONGEST:
            raise NotRegularError("the Lark grammar is too long as a regular expression")
        self._made[name] = made
        return made

    def _options(self) -> str:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return f"(?:{'|'.join(options)})"

    def _sequence(self) -> str:
        parts = []
        while self._tokens and self._tokens[-1][1] not in (")", "]", "|"):
            if self._take("->"):
                self._tokens.pop()  # the name that the parse tree would have
                continue
            parts.append(self._item())
        return "".join(parts)

    def _item(self) -> str:
        made = self._atom()
        while self._tokens and self._tokens[-1][1] in ("?", "*", "+"):
            made = f"(?:{made}{self._tokens.pop()[1]})"
        if self._take("~"):
            least = self._tokens.pop()[1]
            most = self._tokens.pop()[1] if self._take("..") else least
            made = f"(?:{made}{{{least},{most}}})"
        return made

    def _atom(self) -> str:
        kind, text = self._tokens.pop()
        if kind == "name":
            return self.rule(text.lstrip("!?"))
        if kind == "string":
            return _literal(text)
        if kind == "regex":
            return _expression(text)
        if text in ("(", "["):
            made = self._options()
            if not self._take(")" if text == "(" else "]"):
                raise NotRegularError("a bracket of the Lark grammar is not closed")
            return made if text == "(" else f"(?:{made}?)"
        raise NotRegularError(f"the Lark grammar has {text!r}, which is not known here")

    def _take(self, text: str) -> bool:
        """Whether this is the next token, which is taken then."""
        if self._tokens and self._tokens[-1][1] == text:
            self._tokens.pop()
            return True
        return False


def _literal(token: str) -> str:
    either = token.endswith("i")
    text = token[1 : -2 if either else -1]
    text = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text)
    if either:
        return "".join(
            f"[{char.lower()}{char.upper()}]" if char.isalpha() else re.escape(char)
            for char in text
        )
    escaped = re.escape(text).replace(r"\ ", " ").replace("\\\n", r"\n").replace("\\\t", r"\t")
    return f"(?:{escaped})" if text else ""


def _expression(token: str) -> str:
    pattern, _, flags = token[1:].rpartition("/")
    if flags not in ("", "s"):
        raise NotRegularError(f"flags {flags!r} of the Lark grammar are not enforced")
    if flags:
        pattern = re.sub(r"(?<!\\)((?:\\\\)*)\.", r"\1[\\s\\S]", pattern)
    return "(?:" + pattern.replace("\\/", "/") + ")"
