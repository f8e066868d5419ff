"""Embeddings and generated texts of a language model, for the rows of a DataFrame.

A tiny Llama with random weights and its tokenizer are made in place. `--model` takes the folder of
another causal model of transformers instead, on a disk that all executors see.

    pip install 'sparkdl-platform[torch]' transformers
    python examples/text_embeddings.py
    spark-submit --master <master> examples/text_embeddings.py --model /mnt/models/llama
"""

import argparse
import tempfile
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from sparkdl import experiment

WORDS = "red green blue small large old new house garden river bird fish sings runs sleeps".split()
MAX_LENGTH = 64  # Tokens of a row.
MAX_TOKENS = 256  # Tokens of a call of the model, padding included.
NEW_TOKENS = 8
PADDING = -1  # A value that no token has.


def texts(spark: SparkSession, rows: int = 200) -> DataFrame:
    """Return texts of very different lengths; the last one is too long for the model."""
    random = np.random.default_rng(7)
    lengths = [*np.minimum(random.geometric(0.1, rows - 1), MAX_LENGTH).tolist(), 10 * MAX_LENGTH]
    lines = [(i, " ".join(random.choice(WORDS, n))) for i, n in enumerate(lengths)]
    return spark.createDataFrame(lines, "id int, text string").repartition(2)


def make_model(folder: str) -> None:
    """Write a Llama with random weights, and a tokenizer that was trained on the words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[UNK]", "[EOS]"]
    tokenizer.train_from_iterator(WORDS, trainers.WordLevelTrainer(special_tokens=special))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[EOS]", pad_token="[EOS]"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_LENGTH + NEW_TOKENS,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        initializer_range=0.5,  # Texts of smaller random weights repeat one word.
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def tokens_of(folder: str) -> type:
    """Return a class that turns texts into tokens, and refuses a text that is too long."""

    class Tokens:
        def __init__(self) -> None:
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")

        def __call__(self, rows: Any) -> Any:
            tokens = [row.ids for row in self.tokenizer.encode_batch(list(rows))]
            if any(len(row) > MAX_LENGTH for row in tokens):
                raise ValueError(f"a text has more than {MAX_LENGTH} tokens")
            return tokens

    return Tokens


def language_model(folder: str) -> type:
    """Return a class that embeds rows of tokens, and continues them greedily."""

    class LanguageModel:
        def __init__(self) -> None:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            device = "cuda" if torch.cuda.is_available() else "cpu"
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
            self.model = AutoModelForCausalLM.from_pretrained(folder).eval().to(device)

        def __call__(self, rows: Any) -> Any:
            import torch

            # A model that generates wants the padding first, where predict has it last.
            lengths = (rows != PADDING).sum(1)
            rolled = [np.roll(row, -n) for row, n in zip(rows, lengths, strict=True)]
            tokens = torch.tensor(np.stack(rolled), device=self.model.device)
            mask = (tokens != PADDING).long()
            inputs = {"input_ids": tokens.clamp(min=0), "attention_mask": mask}
            with torch.inference_mode():
                places = (mask.cumsum(1) - 1).clamp(min=0)
                found = self.model(**inputs, position_ids=places, output_hidden_states=True)
                new = self.model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
            embeddings = (found.hidden_states[-1] * mask[..., None]).sum(1) / mask.sum(1)[:, None]
            continued = self.tokenizer.batch_decode(
                new[:, rows.shape[1] :], skip_special_tokens=True
            )
            return {"embedding": embeddings.float().cpu().numpy(), "continued": continued}

    return LanguageModel


def scored(df: DataFrame, folder: str) -> DataFrame:
    """Return the rows with their tokens, embeddings and continuations."""
    tokenized = experiment.predict(
        tokens_of(folder),
        df,
        feature_cols="text",
        prediction_col="tokens",
        outputs="array<int>",
        errors="null",  # A text that is refused gets null; all other rows are computed.
    )
    return experiment.predict(
        language_model(folder),
        tokenized.where("tokens is not null"),
        feature_cols="tokens",
        prediction_col=["embedding", "continued"],
        outputs="embedding array<float>, continued string",
        pad={"tokens": PADDING},
        max_tokens=MAX_TOKENS,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="the folder of a model of transformers")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("texts").getOrCreate()
    df = texts(spark)
    with tempfile.TemporaryDirectory() as made:
        if not args.model:
            make_model(made)
        rows = scored(df, args.model or made).cache()
        rows.select("id", "continued").orderBy("id").show(5, truncate=60)
        print(f"{rows.count()} of {df.count()} texts have an embedding and a continuation")
    spark.stop()
