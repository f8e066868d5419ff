"""Runs anywhere (pure). Mask credentials before text is stored or shown."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparkdl.runs.secret_names import (
    MIN_CHARS,
    is_ordinary,
    is_secret_name,
    known_secrets,
    looks_random,
    words_of,
)
from sparkdl.runs.vendor_forms import mask_forms

__all__ = ["MASK", "is_secret", "mask_outputs", "mask_params", "mask_text", "secrets_in"]

MASK = "***"

# Without one of these in a text, no name in it is that of a credential.
_HINTS = ("pass", "pwd", "secret", "token", "key", "cred", "jwt", "auth", "login", "identified")

_NAME = (
    r"(?<![\w.$-])(?P<name>[\w.-]{0,80}?(?:pass|pwd|secret|token|key|cred|jwt|authoriz)"
    r"[\w.-]{0,40})"
)
_QUOTED = (
    r"[rbfuRBFU]{0,2}(?P<quote>(?:\\?[\"']){3}|\\?[\"'])"
    r"(?P<value>(?:(?!(?P=quote))(?:\\.|[^\\\n]))+)(?P=quote)"
)
# NAME = "value", "NAME": "value", os.environ["NAME"] = "value", NAME: str | None = "value"
_ASSIGNED = re.compile(
    rf"(?<!lambda ){_NAME}(?:\\?[\"'])?\s*\]?(?:\s*:\s*[A-Za-z_][\w.\[\], |]{{0,60}})?"
    rf"\s*(?:=>?|:)\s*{_QUOTED}",
    re.IGNORECASE,
)
# NAME = ["value", "value"], "NAME": ("value", "value")
_LISTED = re.compile(
    rf"{_NAME}(?:\\?[\"'])?\s*\]?\s*(?:=|:)\s*[\[(](?P<values>\s*\\?[\"'][^\[\](){{}}]{{0,2000}})[\])]",
    re.IGNORECASE,
)
_VALUE = re.compile(_QUOTED)
# setdefault("NAME", "value"), conf.set("NAME", "value"), IDENTIFIED BY 'value', PASSWORD 'value'
_PASSED = re.compile(
    r"(?:\b(?:option|config|set|setdefault|setenv|putenv|getenv|get|header|add_?header|setConf"
    rf"|setattr)\(\s*(?:\w+\s*,\s*)?\\?[\"']{_NAME}\\?[\"']\s*,\s*{_QUOTED})",
    re.IGNORECASE,
)
# auth=("ann", "value"), HTTPBasicAuth("ann", "value"), login("ann", "value"), login(key="value")
_LOGIN_CALL = re.compile(
    r"(?:\bauth\s*=\s*\(|(?:BasicAuth|DigestAuth|\blogin)\()\s*"
    rf"(?:[\"'][^\"'\n]+[\"']\s*,|key\s*=)\s*(?P<name>(?!))?{_QUOTED}"
)
_SQL = re.compile(rf"\b(?:IDENTIFIED BY|(?P<name>PASSWORD)) {_QUOTED}")
# <NAME>value</NAME>
_XML = re.compile(rf"(?<=<){_NAME}>(?P<value>[^<>\s]+)(?=</)", re.IGNORECASE)
# NAME=value, NAME: value, NAME is value, --name value; only outside of program text, where a value
# without quotes is a variable.
_BARE = re.compile(
    rf"(?P<before>[(,?&;]\s*)?{_NAME}(?P<sep>\s?=\s?|:\s?|\s(?:is|was)\s|\s)"
    r"(?P<value>[^\s\"'&;,()\[\]{}<>`|\\]+)(?P<after>[\[(]|.)?",
    re.IGNORECASE,
)
# A string or a comment of a program.
_LITERAL = re.compile(
    r"\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|#[^\n]*",
    re.DOTALL,
)
_LOGIN = re.compile(r"(?<=\blogin )(?P<user>\S+) password (?P<value>\S+)")


def mask_text(text: str, secrets: Iterable[str] = (), *, is_code: bool = False) -> str:
    """Return `text` with the given secrets, and all that looks like a credential, masked.

    Args:
        text: any text that is about to be stored or shown.
        secrets: values known to be secret, see `known_secrets`. Values of fewer than four
            characters are not masked, as they occur by chance in any text.
        is_code: the text is the source of a program, in which a name without quotes is a variable.

    Example:
        >>> mask_text("connect to postgres://ann:pa55@db/x with hunter22", ["hunter22"])
        'connect to postgres://***@db/x with ***'
        >>> mask_text("api_key = 'abcdef'")
        "api_key = '***'"
        >>> mask_text("jdbc:mysql://db/x?user=ann&password=hunter22")
        'jdbc:mysql://db/x?user=ann&password=***'
        >>> mask_text("pad_token='[PAD]', NCCL_DEBUG=INFO")
        "pad_token='[PAD]', NCCL_DEBUG=INFO"
    """
    text = mask_forms(_mask_known(text, secrets) if secrets else text, MASK)
    lower = text.lower()
    for hint in _HINTS:
        if hint in lower:
            break
    else:
        return text
    for pattern in (_ASSIGNED, _PASSED, _LOGIN_CALL, _SQL, _XML):
        text = pattern.sub(_mask_quoted, text)
    text = _LISTED.sub(_mask_listed, text)
    if is_code:
        return _LITERAL.sub(lambda match: _mask_prose(match[0]), text)
    return _mask_prose(text)


def _mask_prose(text: str) -> str:
    """Return a text with the credentials masked that are no strings of a program."""
    text = _LOGIN.sub(lambda match: f"{match['user']} password {MASK}", text)
    return _BARE.sub(_mask_bare, text)


def _mask_known(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) < MIN_CHARS or secret not in text:
            continue
        # A short word is masked as a word only: "train" is no part of "training".
        is_word = secret.isalpha() and len(secret) < 12
        pattern = rf"\b{secret}\b" if is_word else re.escape(secret)
        text = re.sub(pattern, MASK, text)
    return text


def _mask_quoted(match: re.Match[str]) -> str:
    if not is_secret(match["name"] or "password", match["value"]):
        return match[0]
    return _replaced(match, "value", MASK)


def _replaced(match: re.Match[str], group: str, text: str) -> str:
    """Return the matched text with another text in place of a group."""
    start, end = match.start(group) - match.start(), match.end(group) - match.start()
    return match[0][:start] + text + match[0][end:]


def _mask_listed(match: re.Match[str]) -> str:
    """Return a list of values with the credentials in it masked."""

    def mask(value: re.Match[str]) -> str:
        return (
            _replaced(value, "value", MASK)
            if is_secret(match["name"], value["value"])
            else value[0]
        )

    return _replaced(match, "values", _VALUE.sub(mask, match["values"]))


def _mask_bare(match: re.Match[str]) -> str:
    value = match["value"].rstrip(".:")
    if not _is_bare_secret(match, value):
        return match[0]
    start = match.start("value") - match.start()
    return match[0][:start] + MASK + match[0][start + len(value) :]


def _is_bare_secret(match: re.Match[str], value: str) -> bool:
    """Return True if a value without quotes is a credential, rather than code or prose."""
    name, separator, after = match["name"], match["sep"], match["after"] or ""
    before = (match["before"] or "").strip()
    is_call = after in ("(", "[")
    if is_call or value == MASK or not is_secret(name, value) or _is_expression(value):
        return False
    if re.fullmatch(r"\d{1,6}", value) and "token" in words_of(name):
        return False
    if separator == "=":
        # In a call a word is a variable; in a URL or a connection string the word is the value.
        is_argument = before in ("(", ",") or after in (",", ")")
        is_variable = re.fullmatch(r"[A-Za-z_]+", value) and (is_argument or is_secret_name(value))
        return before in ("?", "&", ";") or after in ("&", ";") or not is_variable
    if separator.isspace():
        if name.startswith("--"):
            return not value.startswith("-")
        # A line of a configuration: spark.ssl.keyPassword value, ENV DB_PASSWORD value
        is_setting = name.isupper() or re.search(r"\w\.\w", name) is not None
        return is_setting and _is_strong(value) and re.search(r"\d", value) is not None
    return _is_strong(value)


def _is_expression(value: str) -> bool:
    """Return True for code such as `args.password`."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", value)) and not any(
        map(looks_random, value.split("."))
    )


def is_secret(name: str, value: str) -> bool:
    """Return True if a value in a text or a program is a credential, judged by its name.

    A `token` may also be a word of a text, so under that name alone only a value with digits or
    letters of both cases is a credential.
    """
    if not is_secret_name(name) or is_ordinary(value, name):
        return False
    return words_of(name) != ["token"] or _is_strong(value)


def _is_strong(value: str) -> bool:
    is_mixed = re.search(r"[a-z]", value) and re.search(r"[A-Z]", value)
    has_digit = re.search(r"\d", value) and re.search(r"[A-Za-z]", value)
    return len(value) >= 6 and bool(is_mixed or has_digit) and not re.search(r"\s", value)


def mask_params(params: Mapping[str, Any], secrets: Iterable[str] = ()) -> dict[str, Any]:
    """Return parameters that may be stored: credentials, judged by name and value, are masked.

    Example:
        >>> mask_params({"learning_rate": 0.1, "db_password": "hunter22", "pad_token": "[PAD]"})
        {'learning_rate': 0.1, 'db_password': '***', 'pad_token': '[PAD]'}
    """
    secrets = tuple(secrets)
    return {name: _mask(name, value, secrets) for name, value in params.items()}


def secrets_in(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the credentials in parameters, which are masked in other text too.

    Example:
        >>> secrets_in({"lr": 0.1, "db": {"password": "hunter22", "host": "x"}})
        ('hunter22',)
    """
    return known_secrets({}, _secrets_in(params))


def _secrets_in(params: Mapping[str, Any]) -> Iterator[str]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _secrets_in(value)
        elif isinstance(value, list | tuple):
            for item_name, item in _items(name, value):
                yield from _secrets_in({item_name: item})
        elif isinstance(value, str) and is_secret(name, value):
            yield value


def mask_outputs(
    outputs: Mapping[str, Any], artifacts: Collection[str], secrets: Iterable[str] = ()
) -> dict[str, Any]:
    """Return what a function returned in a form that may be stored; paths of files stay.

    Args:
        outputs: the values that the training function returned, by name.
        artifacts: those of the values that are paths of copied files.
        secrets: see `mask_text`.
    """
    masked = mask_params(outputs, secrets)
    is_path = {name: isinstance(v, str) and v in artifacts for name, v in outputs.items()}
    return {name: outputs[name] if is_path[name] else value for name, value in masked.items()}


def _mask(name: str, value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return MASK if is_secret(name, value) else mask_text(value, secrets)
    if isinstance(value, Mapping):
        return mask_params(value, secrets)
    if isinstance(value, list | tuple):
        return [_mask(item_name, item, secrets) for item_name, item in _items(name, value)]
    return value


def _items(name: str, value: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the items of a list, each with its name.

    The fields of a named tuple have names of their own, as the keys of a dict do.
    """
    if hasattr(value, "_asdict") and not is_secret_name(name):
        return [*value._asdict().items()]
    return [(name, item) for item in value]
