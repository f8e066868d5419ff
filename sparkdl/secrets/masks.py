"""Runs anywhere (pure). Mask credentials before text is stored or shown."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparkdl.secrets.names import (
    MIN_CHARS,
    is_ordinary,
    is_secret_name,
    known_secrets,
    looks_random,
    words_of,
)

MASK = "***"

# A text that must occur, and the form around it. The text is searched for first, as a search for
# many expressions in all output of a trial would be slow.
_FORMS: tuple[tuple[str, str], ...] = (
    ("AKIA", r"\bAKIA[0-9A-Z]{16}\b"),  # AWS
    ("ASIA", r"\bASIA[0-9A-Z]{16}\b"),
    ("gh", r"\bgh[pousr]_[0-9A-Za-z]{30,}\b"),  # GitHub
    ("github_pat_", r"\bgithub_pat_\w{20,}\b"),
    ("gl", r"\bgl(?:pat|dt|rt|ptt|cbt|ft|soat)-[\w-]{20,}"),  # GitLab
    ("hf_", r"\bhf_[0-9A-Za-z]{30,}\b"),  # Hugging Face
    ("sk-", r"\bsk-(?=[\w-]*\d)[\w-]{20,}"),  # OpenAI, Anthropic and others
    ("sk_", r"\bsk_(?:live|test)_\w{8,}"),  # Stripe
    ("rk_", r"\brk_(?:live|test)_\w{8,}"),
    ("whsec_", r"\bwhsec_[\w+/=]{16,}"),
    ("xox", r"\bxox[abeoprs]-[\w-]{10,}"),  # Slack
    ("xapp-", r"\bxapp-[\w-]{10,}"),
    ("hooks.slack.com", r"(?<=hooks\.slack\.com/services/)[\w/]{20,}"),
    ("AIza", r"\bAIza[\w-]{35}"),  # Google
    ("ya29.", r"\bya29\.[\w-]{20,}"),
    ("GOCSPX-", r"\bGOCSPX-[\w-]{20,}"),
    ("dapi", r"\bdapi[0-9a-f]{32}(?:-\d)?\b"),  # Databricks
    ("dose", r"\bdose[0-9a-f]{32}\b"),
    ("npm_", r"\bnpm_[0-9A-Za-z]{36}\b"),
    ("pypi-", r"\bpypi-[\w-]{30,}"),
    ("dckr_", r"\bdckr_[op]at_[\w-]{20,}"),  # Docker Hub
    ("SG.", r"\bSG\.[\w-]{16,}\.[\w-]{16,}"),  # SendGrid
    ("SK", r"\bSK[0-9a-f]{32}\b"),  # Twilio
    ("key-", r"\bkey-[0-9a-f]{32}\b"),  # Mailgun
    ("do", r"\bdo[opr]_v1_[0-9a-f]{32,}\b"),  # DigitalOcean
    ("shp", r"\bshp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32}\b"),  # Shopify
    ("sq0", r"\bsq0[a-z]{3}-[\w-]{22,}"),  # Square
    ("hv", r"\bhv[sb]\.[\w-]{20,}"),  # Vault
    ("lin_api_", r"\blin_api_\w{20,}\b"),
    ("PMAK-", r"\bPMAK-[\w-]{24,}"),  # Postman
    ("gl", r"\bgl(?:sa|c)_\w{20,}"),  # Grafana
    ("NRAK-", r"\bNRAK-[0-9A-Z]{20,}"),  # New Relic
    ("sntry", r"\bsntry[su]_[\w+/=-]{20,}"),
    ("r8_", r"\br8_\w{30,}\b"),  # Replicate
    ("ntn_", r"\bntn_\w{30,}\b"),  # Notion
    ("AGE-SECRET-KEY-", r"\bAGE-SECRET-KEY-1[0-9A-Z]{30,}"),
    (":AA", r"(?<!\d)\d{8,10}:AA[\w-]{33}\b"),  # Telegram
    ("wandb login", r"(?<=wandb login )[0-9a-f]{40}\b"),
    ("eyJ", r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+"),  # JSON web token
    ("earer ", r"(?<=[Bb]earer )(?=\S*\d|\S{24})[\w.~+/=-]{8,}"),
    ("asic ", r"(?<=[Bb]asic )(?=\S*(?:[a-z][A-Z]|=))[\w+/=]{8,}"),
    # user:password@ in a URL, but not {user}:{password}@ in the text of a program.
    (
        "://",
        r"(?<=://)[^/\s:@\"'{}$%<]*:(?!\*+@|[{$%<]|(?i:passw(?:or)?d|pwd|pass|token|secret)@)[^/\s@\"']+(?=@)",
    ),
    (" -u ", r"(?<= -u )(?!\d+:\d)[^\s:@/]+:[^\s@:/]+"),  # curl
    ("--user ", r"(?<=--user )(?!\d+:\d)[^\s:@/]+:[^\s@:/]+"),
    ('"auth"', r"(?<=\"auth\": \")[0-9A-Za-z+/]{12,}={0,2}(?=\")"),  # Docker
    ("sig", r"(?<=[?&]sig=)[\w%+/=-]{16,}"),  # Azure, signed URLs
    ("ignature=", r"(?:(?<=[?&]Signature=)|(?<=-Signature=))[\w%+/=-]{16,}"),
    (
        "PRIVATE KEY",
        r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?-----END [A-Z ]*KEY(?: BLOCK)?-----",
    ),
)
_MIN_CHARS = 16  # The shortest form without a colon.
_COMPILED = tuple((literal, re.compile(form, re.DOTALL)) for literal, form in _FORMS)

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
        >>> mask_text('f"postgres://{user}:{password}@{host}/x"')
        'f"postgres://{user}:{password}@{host}/x"'
        >>> mask_text("api_key = 'abcdef'")
        "api_key = '***'"
        >>> mask_text("jdbc:mysql://db/x?user=ann&password=hunter22")
        'jdbc:mysql://db/x?user=ann&password=***'
        >>> mask_text("pad_token='[PAD]', NCCL_DEBUG=INFO")
        "pad_token='[PAD]', NCCL_DEBUG=INFO"
    """
    text = _mask_forms(_mask_known(text, secrets) if secrets else text)
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


def _mask_forms(text: str) -> str:
    """Return the text with all credentials masked that are recognized by their form alone."""
    if len(text) < _MIN_CHARS and ":" not in text:
        return text
    for literal, form in _COMPILED:
        if literal in text:
            text = form.sub(MASK, text)
    return text


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
    return _replace_group(match, "value", MASK)


def _replace_group(match: re.Match[str], group: str, text: str) -> str:
    """Return the matched text with another text in place of a group."""
    start, end = match.start(group) - match.start(), match.end(group) - match.start()
    return match[0][:start] + text + match[0][end:]


def _mask_listed(match: re.Match[str]) -> str:
    """Return a list of values with the credentials in it masked."""

    def mask(value: re.Match[str]) -> str:
        return (
            _replace_group(value, "value", MASK)
            if is_secret(match["name"], value["value"])
            else value[0]
        )

    return _replace_group(match, "values", _VALUE.sub(mask, match["values"]))


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


def mask_value(name: str, text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text with credentials masked; all of it if its name is that of a credential.

    Args:
        name: the name of the text.
        text: the text.
        secrets: see `mask_text`.
    """
    return str(_mask(name, text, tuple(secrets)))


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
