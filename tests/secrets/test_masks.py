"""Credentials are never written to a file or a log, and ordinary text stays as it is."""

import json
from collections import namedtuple
from typing import Any

import pytest

from sparkdl.secrets.masks import MASK, mask_outputs, mask_params, mask_text, secrets_in
from sparkdl.secrets.names import known_secrets
from tests.secrets.credential_corpus import HARMLESS, HARMLESS_CODE, SECRET, SECRET_CODE


def test_corpus_has_100_texts() -> None:
    assert (len(SECRET) + len(SECRET_CODE), len(HARMLESS) + len(HARMLESS_CODE)) == (50, 50)


@pytest.mark.parametrize(("template", "secret"), SECRET + SECRET_CODE)
def test_mask_text_masks_credentials(template: str, secret: str) -> None:
    masked = mask_text(template.format(secret))
    assert MASK in masked
    assert secret not in masked
    before, after = template.format("\0").split("\0")
    assert masked[0] == before[0] if before else True
    assert masked.endswith(after)
    assert mask_text(masked) == masked


@pytest.mark.parametrize(("template", "secret"), SECRET_CODE)
def test_mask_text_masks_credentials_in_programs(template: str, secret: str) -> None:
    assert secret not in mask_text(template.format(secret), is_code=True)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('launch(train, {"password": ["hunter22"]})', 'launch(train, {"password": ["***"]})'),
        (
            "API_KEYS = (\n    'ab12',\n    \"cd34, x\",\n)",
            "API_KEYS = (\n    '***',\n    \"***\",\n)",
        ),
        (r'"{\"password\": [\"hunter22\"]}"', r'"{\"password\": [\"***\"]}"'),
        ('tokens = ["the", "of"]', 'tokens = ["the", "of"]'),
        ('keys: ["image", "label"]', 'keys: ["image", "label"]'),
    ],
)
def test_lists_of_credentials_are_masked(text: str, masked: str) -> None:
    assert mask_text(text) == mask_text(text, is_code=True) == masked


@pytest.mark.parametrize("text", HARMLESS + HARMLESS_CODE)
def test_mask_text_leaves_ordinary_text(text: str) -> None:
    assert mask_text(text) == text
    assert mask_text(text, is_code=True) == text


@pytest.mark.parametrize(("template", "secret"), SECRET + SECRET_CODE)
def test_credentials_are_masked_among_other_lines_and_in_json(template: str, secret: str) -> None:
    text = template.format(secret)
    lines = f"Epoch 1/2\n{text}\nEpoch 2/2 - loss: 0.1\n"
    masked = mask_text(lines)
    assert secret not in masked
    assert masked.startswith("Epoch 1/2\n")
    assert masked.endswith("\nEpoch 2/2 - loss: 0.1\n")
    if "\n" not in text and "\\" not in text:
        assert secret not in mask_text(json.dumps({"message": text}))


def test_given_secrets_are_masked_in_texts_and_params() -> None:
    assert mask_text("a s3cret and s3cretlonger", ["s3cret", "s3cretlonger"]) == "a *** and ***"
    params = {"token": "abc123", "opt": {"api_key": "k", "lr": 0.1}, "names": ["s3cret"], "n": 1}
    assert mask_params(params, ["s3cret"]) == {
        "token": MASK,
        "opt": {"api_key": MASK, "lr": 0.1},
        "names": [MASK],
        "n": 1,
    }


def test_fields_of_named_tuples_count_as_names() -> None:
    login = namedtuple("login", ["user", "password"])("ann", "hunter22")
    params = {"db": login, "others": [login], "passwords": login}
    masked = {"db": ["ann", MASK], "others": [["ann", MASK]], "passwords": [MASK, MASK]}
    assert mask_params(params) == masked
    for found in ({"db": login}, {"others": [login]}, {"others": [login._asdict()]}):
        assert secrets_in(found) == ("hunter22",)


@pytest.mark.parametrize("name", ["dbpassword", "accessToken", "password1", "client_secret"])
def test_params_under_names_of_credentials_are_masked(name: str) -> None:
    assert mask_params({name: ["abc", "abd"]}) == {name: [MASK, MASK]}


@pytest.mark.parametrize(
    "params",
    [
        {"pooling_token": "cls"},
        {"pad_token": "[PAD]", "token": "<s>"},
        {"mode": "true", "optimizer": "adam"},
        {"token": "mean", "model": {"token": ["cls", "mean", "max-pool"]}},
        {"sos_token": "SOS", "eos_token": "EOS", "bosToken": "BOS", "PAD_TOKEN": "PAD"},
        {"go_token": "GO", "null_token": "NULL", "unk_token": "unknown"},
    ],
)
def test_ordinary_params_stay(params: dict[str, Any]) -> None:
    assert mask_params(params) == params
    assert secrets_in(params) == ()


@pytest.mark.parametrize(
    "params", [{"token": "a1b2c3d4"}, {"token": ["cls", "aBcDeF"]}, {"hf_token": "mean"}]
)
def test_credentials_under_the_name_token_are_masked(params: dict[str, Any]) -> None:
    assert MASK in str(mask_params(params))
    assert len(secrets_in(params)) == 1


def test_values_of_env_are_masked_only_if_they_are_credentials() -> None:
    drawn = "9f8a7c6e5d4b3a2918"
    env = {
        "KERAS_BACKEND": "tensorflow",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "NCCL_DEBUG": "INFO",
        "MODE": "train",
        "XLA_FLAGS": "--xla_gpu_cuda_data_dir=/usr/lib/cuda-12.4",
        "SORT_KEY": "created",
        "SERVICE_KEY": "correct-horse",
        "DB_PASSWORD": "hunter22",
        "SEED_OF_ACCESS": drawn,
    }
    text = "INFO site-packages/tensorflow/python: train, hunter22 " + drawn
    assert mask_text("created by correct-horse", known_secrets(env)) == "created by ***"
    masked = mask_text(text, known_secrets(env, ["tea-pot"]))
    assert masked == "INFO site-packages/tensorflow/python: train, *** ***"
    assert mask_text("a tea-pot", known_secrets({}, ["tea-pot"])) == "a ***"


def test_a_secret_with_escapes_is_masked_in_urls_and_json() -> None:
    secret = 'a/"b"\nc'
    secrets = known_secrets({}, [secret])
    for text in (secret, json.dumps({"x": secret}), "https://x/?q=a%2F%22b%22%0Ac", repr(secret)):
        assert "b" not in mask_text(text, secrets), text


def test_paths_of_artifacts_are_never_masked() -> None:
    outputs = {"model": "artifacts/model/train_best.keras", "token": "artifacts/token/vocab.json"}
    other = {"note": "train_best", "accuracy": 0.9}
    masked = mask_outputs({**outputs, **other}, set(outputs.values()), ["train_best"])
    assert masked == {**outputs, "note": MASK, "accuracy": 0.9}


def test_masking_of_long_output_takes_no_time_that_counts() -> None:
    import time

    lines = "Epoch 1/2 - loss: 0.12 - key 5 tokens 12\n" * 20_000 + "a1" * 500_000
    begun_s = time.process_time()
    assert mask_text(lines) == lines
    assert time.process_time() - begun_s < 5.0
