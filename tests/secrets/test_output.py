"""The output of a training process: credentials are masked, and nothing is held back for long."""

import io
import threading

from sparkdl.secrets.output import MaskedOutput

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


def test_nothing_is_lost_when_threads_print() -> None:
    raw = io.BytesIO()
    stream = MaskedOutput(raw, ())

    def show(name: str) -> None:
        for number in range(2000):
            print(name, number, file=stream)

    threads = [threading.Thread(target=show, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.flush()
    printed = raw.getvalue().decode()
    assert len(printed) == sum(len(f"t{i} {n}\n") for i in range(4) for n in range(2000))
