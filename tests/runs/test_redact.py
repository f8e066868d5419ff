"""Credentials are never written to a file or a log."""

import pytest

from sparkdl.runs.redact import MASK, mask_params, mask_text


@pytest.mark.parametrize(
    "text",
    [
        "password = 'hunter22'",
        'AWS_SECRET_ACCESS_KEY="wJalrXUtnFEMI"',
        "{'api_key': 'abcdef123'}",
        'db_password: str = "hunter22"',
        "s3://key:topsecret@bucket/x",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1" * 18,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-DEF_123",
    ],
)
def test_mask_text_masks_credentials(text: str) -> None:
    masked = mask_text(text)
    assert MASK in masked
    assert not any(s in masked for s in ("hunter22", "wJalr", "abcdef123", "topsecret", "IOSFO"))


@pytest.mark.parametrize(
    "text", ["num_tokens = 5", "tokenizer = 'bert'", "https://x.org/a", "x = 'password'", "a: 'b'"]
)
def test_mask_text_leaves_ordinary_text(text: str) -> None:
    assert mask_text(text) == text


def test_given_secrets_are_masked_in_texts_and_params() -> None:
    assert mask_text("a s3cret and s3cretlonger", ["s3cret", "s3cretlonger"]) == "a *** and ***"
    params = {"token": "abc", "opt": {"api_key": "k", "lr": 0.1}, "names": ["s3cret"], "n": 1}
    assert mask_params(params, ["s3cret"]) == {
        "token": MASK,
        "opt": {"api_key": MASK, "lr": 0.1},
        "names": [MASK],
        "n": 1,
    }
