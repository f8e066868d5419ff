"""Runs anywhere (pure). Decide which names and values look like those of a credential."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from urllib.parse import quote

# Values of fewer characters are not replaced in text, as they occur by chance in any text.
MIN_CHARS = 4

# A word that contains one of these belongs to the name of a credential: `PGPASSWORD`.
_PARTS = re.compile(
    r"passw(?:or)?d|passphrase|secret(?!ar|ion)|credential|apikey|authkey|accesskey|privatekey"
    r"|secretkey|accountkey|accesstoken|authtoken|apitoken|bearertoken|refreshtoken"
)
_WORDS = {"pwd", "passcode", "creds", "token", "authorization", "jwt"}
# The word before `key`, `pass` or `tokens` that makes a credential of it.
_BEFORE_KEY = {
    *(
        "api",
        "access",
        "private",
        "secret",
        "account",
        "auth",
        "encryption",
        "fernet",
        "signing",
        "master",
    ),
    *("storage", "subscription", "shared", "hmac", "webhook", "webui", "admin", "deploy"),
}
_BEFORE_PASS = {"admin", "db", "ftp", "mysql", "pg", "redis", "root", "smtp", "sudo", "user"}
_BEFORE_TOKENS = {"access", "api", "auth", "bearer", "refresh", "session"}

# The word before `key` that makes a part of data of it.
_NO_CREDENTIAL = {
    "cache",
    "foreign",
    "group",
    "index",
    "join",
    "partition",
    "primary",
    "row",
    "sort",
}

# The word before `token` that makes a token of text of it.
_BEFORE_TOKEN = {
    *(
        "additional",
        "answer",
        "assistant",
        "audio",
        "begin",
        "blank",
        "bos",
        "bpe",
        "byte",
        "class",
    ),
    *("cls", "control", "cur", "current", "decoder", "delimiter", "dummy", "encoder", "end"),
    *(
        "entity",
        "eos",
        "eot",
        "extra",
        "first",
        "go",
        "head",
        "image",
        "in",
        "input",
        "is",
        "label",
    ),
    *(
        "lang",
        "language",
        "last",
        "mask",
        "masked",
        "max",
        "min",
        "new",
        "next",
        "null",
        "num",
        "oov",
    ),
    *("out", "output", "pad", "padding", "per", "pooling", "prefix", "prev", "previous", "prompt"),
    *("question", "rare", "sep", "separator", "single", "sos", "sot", "source", "space", "special"),
    *(
        "start",
        "stop",
        "sub",
        "suffix",
        "system",
        "tail",
        "target",
        "task",
        "text",
        "think",
        "time",
    ),
    *("trigger", "unk", "unknown", "video", "vision", "word"),
}
# The word after the credential that makes a property of it: `password_length`, `token_type`.
_AFTER = {
    *("budget", "class", "classes", "col", "column", "count", "dim", "dims", "dir", "dropout"),
    *("embedding", "embeddings", "enabled", "env", "expires", "expiry", "field", "file", "folder"),
    *("help", "hint", "id", "ids", "idx", "index", "label", "len", "length", "level", "limit"),
    *("manager", "mode", "name", "names", "num", "path", "pattern", "policy", "prefix", "prompt"),
    *("provider", "rate", "regex", "required", "scope", "scopes", "service", "shape", "size"),
    *("strategy", "suffix", "ttl", "type", "types", "uri", "url", "var", "width"),
}

# Values that stand for a credential, or for the lack of one.
_PLACEHOLDER = re.compile(
    r"[^0-9A-Za-z]*"  # No letter and no digit, such as "##" or "***".
    r"|\[.*\]|<.*>|\{.*\}|\(.*\)"  # [PAD], <pad>, {password}, {{ secrets.PASSWORD }}
    r"|\$\{?\w+\}?|%\(?\w*\)?s|%[A-Za-z_]\w*%"  # $PASSWORD, ${PASSWORD}, %(password)s, %PASSWORD%
    r"|(?:true|false|none|null|nil|undefined|yes|no|on|off|required|optional|missing|unset|default)"
    r"|(?:str|string|bytes|int|integer|float|bool|boolean|object|text|number)",
    re.IGNORECASE | re.DOTALL,
)
# A part that a program fills in, as in f"Bearer {token}" or "user:%(password)s".
_FILLED_IN = re.compile(r"\{[^{}]+\}|\$\{?\w+\}?|%\(\w+\)s|%s")
_PATH = re.compile(
    r"(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.@%+ -]*)+|[\w.-]+\.(?:pem|json|txt|ya?ml|key)"
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def words_of(name: str) -> list[str]:
    """Return the words of a name, in lower case.

    Example:
        >>> words_of("fs.s3a.secret.key"), words_of("accessToken"), words_of("HFToken2")
        (['fs', 's', 'a', 'secret', 'key'], ['access', 'token'], ['hf', 'token'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def is_secret_name(name: str) -> bool:
    """Return True if a name is that of a credential.

    Example:
        >>> [is_secret_name(name) for name in ("DB_PASSWORD", "accessToken", "PGPASSWORD")]
        [True, True, True]
        >>> [is_secret_name(name) for name in ("pad_token", "num_tokens", "password_length", "key")]
        [False, False, False, False]
    """
    words = words_of(name)
    last = max((i for i in range(len(words)) if _is_secret_word(words, i)), default=None)
    return last is not None and not _AFTER & set(words[last + 1 :])


def _is_secret_word(words: list[str], i: int) -> bool:
    word, before = words[i], words[i - 1] if i else ""
    if word == "token":
        return before not in _BEFORE_TOKEN
    if word == "tokens":
        return before in _BEFORE_TOKENS
    if word in ("key", "keys"):
        return before in _BEFORE_KEY
    if word == "pass":
        return before in _BEFORE_PASS
    return word in _WORDS or _PARTS.search(word) is not None


def is_ordinary(value: str, name: str = "") -> bool:
    """Return True if a value under the name of a credential is none: a placeholder or a path.

    Example:
        >>> [is_ordinary(value) for value in ("[PAD]", "${PASSWORD}", "/run/secrets/db", "None")]
        [True, True, True, True]
        >>> is_ordinary("hunter22")
        False
    """
    value = value.strip()
    if not value or value.lower() == name.lower() or _PLACEHOLDER.fullmatch(value):
        return True
    if _FILLED_IN.search(value) and not looks_random(_FILLED_IN.sub("", value)):
        return True
    is_path = _PATH.fullmatch(value) and not any(map(looks_random, re.split(r"[/\\]", value)))
    return bool(is_path)


def looks_random(value: str) -> bool:
    """Return True if a value of 12 or more characters looks as if a generator had drawn it.

    Example:
        >>> looks_random("9f8a7c6e5d4b3a21"), looks_random("wJalrXUtnFEMIK7MDENG")
        (True, True)
        >>> looks_random("tensorflow"), looks_random("gpu-4-node-us-east-1")
        (False, False)
    """
    if len(value) < 12 or not re.fullmatch(r"[\w+/=.~-]+", value) or _UUID.fullmatch(value):
        return False
    return any(_is_random_word(word) for word in re.split(r"[/.:_,-]", value))


def _is_random_word(word: str) -> bool:
    """Return True for a word of 12 or more letters and digits without any order."""
    has_digit, has_letter = re.search(r"\d", word), re.search(r"[A-Za-z]", word)
    if len(word) < 12 or not has_letter:
        return False
    changes = len(re.findall(r"(?<=[A-Za-z])\d|(?<=\d)[A-Za-z]|(?<=[a-z])[A-Z]", word))
    counts = Counter(word)
    entropy = -sum(n / len(word) * math.log2(n / len(word)) for n in counts.values())
    return entropy > 2.8 and (changes >= 3 if has_digit else changes >= 4)


def _is_secret_variable(name: str) -> bool:
    """Return True for the name of an environment variable with a credential, such as any key."""
    words = ["", *words_of(name)]
    is_key = words[-1] == "key" and words[-2] not in _NO_CREDENTIAL
    return is_key or is_secret_name(name)


def known_secrets(env: Mapping[str, str], secrets: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the texts to mask everywhere, given `env=` and `secrets=` of a run.

    Of `env`, only the values whose name is that of a credential, or that look random, are masked:
    `KERAS_BACKEND=tensorflow` is not. A text may also occur with escapes, for example in a URL.

    Example:
        >>> known_secrets({"KERAS_BACKEND": "tensorflow", "HF_TOKEN": "abc/def"}, ["hunter22"])
        ('abc%2Fdef', 'hunter22', 'abc/def')
    """
    from_env = [
        value
        for name, value in env.items()
        if (_is_secret_variable(name) and not is_ordinary(value, name)) or looks_random(value)
    ]
    texts: set[str] = set()
    for secret in [*from_env, *secrets]:
        texts |= {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    return tuple(sorted((t for t in texts if len(t) >= MIN_CHARS), key=lambda t: (-len(t), t)))
