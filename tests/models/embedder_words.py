"""A module of the user, which the loader in `embedder` imports."""


def split_words(text: str) -> list[str]:
    return text.split()
