"""Runs anywhere (pure). Mask credentials that are recognized by their form alone."""

import re

__all__ = ["mask_forms"]

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


def mask_forms(text: str, mask: str) -> str:
    """Return the text with all credentials of a known form masked.

    Example:
        >>> mask_forms("postgres://ann:pa55@db/x", "***")
        'postgres://***@db/x'
        >>> mask_forms('f"postgres://{user}:{password}@{host}/x"', "***")
        'f"postgres://{user}:{password}@{host}/x"'
    """
    if len(text) < _MIN_CHARS and ":" not in text:
        return text
    for literal, form in _COMPILED:
        if literal in text:
            text = form.sub(mask, text)
    return text
