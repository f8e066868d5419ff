"""What a training process prints: credentials are masked, and nothing is held back for long."""

import io

from sparkdl.runs.masked_output import MaskedOutput

WORD = "hunter" + "22"


def printed(*pieces: str, secrets: tuple[str, ...] = ()) -> str:
    raw = io.BytesIO()
    stream = MaskedOutput(raw, secrets)
    for piece in pieces:
        stream.write(piece)
    stream.flush()
    return raw.getvalue().decode()


def test_a_credential_that_is_printed_in_pieces_is_masked() -> None:
    raw = io.BytesIO()
    stream = MaskedOutput(raw, ())
    print("password:", WORD, file=stream)
    assert raw.getvalue() == b"password: ***\n"
    assert printed("pass", "word=", WORD, "\n") == "password=***\n"


def test_known_secrets_and_private_keys_are_masked() -> None:
    assert printed("a tea-pot\n", secrets=("tea-pot",)) == "a ***\n"
    key = "-----BEGIN RSA PRIVATE KEY-----\nabc\n", "def\n-----END RSA PRIVATE KEY-----\nafter\n"
    assert printed(*key) == "***\nafter\n"


def test_unfinished_lines_are_written_when_the_stream_is_flushed() -> None:
    raw = io.BytesIO()
    stream = MaskedOutput(raw, ())
    stream.write("1/2 [===")
    assert raw.getvalue() == b""
    stream.flush()
    assert raw.getvalue() == b"1/2 [==="
    stream.write("\r2/2")
    assert raw.getvalue() == b"1/2 [===\r"
    stream.write(" é\n")
    assert raw.getvalue().decode() == "1/2 [===\r2/2 é\n"
