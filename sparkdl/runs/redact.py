"""Runs anywhere (pure). Mask credentials before text is stored or shown."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["MASK", "mask_params", "mask_text"]

MASK = "***"

# A name that ends in one of these words, such as DB_PASSWORD or hf-token; not num_tokens.
_WORDS = (
    r"(?:passw(?:or)?d|passphrase|secret|token|credentials?|api[_-]?key|private[_-]?key"
    r"|(?:secret[_-]?)?access[_-]?key)"
)
_NAME = re.compile(rf"(?:^|[_\-.]){_WORDS}$", re.IGNORECASE)

# A quoted string assigned to such a name; and values that are credentials by their form.
_ASSIGNED = re.compile(
    rf"((?:\b|[_\-.]){_WORDS}[\"']?\s*(?::[^=\n\"']*)?[:=]\s*[rbf]?)([\"'])(?!\2)[^\"'\n]+\2",
    re.IGNORECASE,
)
_FORMS = re.compile(
    r"(?<=://)[^/\s:@\"']+:[^/\s@\"']+(?=@)"  # user:password@ in a URL
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS access key id
    r"|\bgh[pousr]_[0-9A-Za-z]{30,}\b"  # GitHub token
    r"|\bhf_[0-9A-Za-z]{30,}\b"  # Hugging Face token
    r"|\bsk-[0-9A-Za-z_-]{20,}\b"  # API keys of several services
    r"|\beyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]+"  # JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` with the given secrets, and all that looks like a credential, masked.

    Args:
        text: any text that is about to be stored or shown.
        secrets: values known to be secret. Values of fewer than four characters are not masked, as
            they occur by chance in any text.

    Example:
        >>> mask_text("connect to postgres://ann:pa55@db/x with hunter22", ["hunter22"])
        'connect to postgres://***@db/x with ***'
        >>> mask_text("api_key = 'abcdef'")
        "api_key = '***'"
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, MASK)
    text = _ASSIGNED.sub(lambda match: f"{match[1]}{match[2]}{MASK}{match[2]}", text)
    return _FORMS.sub(MASK, text)


def mask_params(params: Mapping[str, Any], secrets: Iterable[str] = ()) -> dict[str, Any]:
    """Return parameters that may be stored: strings under the name of a credential are masked.

    Example:
        >>> mask_params({"learning_rate": 0.1, "db_password": "hunter22", "num_tokens": 5})
        {'learning_rate': 0.1, 'db_password': '***', 'num_tokens': 5}
    """
    secrets = tuple(secrets)
    return {name: _mask(name, value, secrets) for name, value in params.items()}


def _mask(name: str, value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return MASK if _NAME.search(name) else mask_text(value, secrets)
    if isinstance(value, Mapping):
        return mask_params(value, secrets)
    if isinstance(value, list | tuple):
        return [_mask(name, item, secrets) for item in value]
    return value
