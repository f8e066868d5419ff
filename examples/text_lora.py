"""LoRA adapters of a language model, trained on the texts of a DataFrame by gangs of two workers.

A search looks for the rank and the learning rate. All trials on a host share one frozen base model,
a tiny Llama with random weights that is made in place. The best adapter then labels a DataFrame.

    pip install 'sparkdl-platform[torch]' transformers peft
    python examples/text_lora.py
    spark-submit --master <master> examples/text_lora.py --trials 8
"""

import argparse
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import context, data, experiment, search

TOPICS = {
    0: "river forest mountain rain wind bird flower stone".split(),
    1: "engine wheel road train bridge ticket driver station".split(),
}
COMMON = "the a old new small large near was seen by we they".split()
VOCABULARY = {word: number for number, word in enumerate([*COMMON, *TOPICS[0], *TOPICS[1]], 1)}
LENGTH = 12  # Tokens of a row; 0 is the padding.
EPOCHS = 4


def frames(spark: SparkSession, rows: int = 600) -> dict[str, DataFrame]:
    """Return texts of two topics, with their tokens, as two DataFrames."""
    random = np.random.default_rng(7)
    labelled = []
    for _ in range(rows):
        topic = int(random.integers(2))
        words = [*random.choice(TOPICS[topic], 2), *random.choice(COMMON, random.integers(4, 10))]
        random.shuffle(words)
        labelled.append((" ".join(words), tokens_of(words), topic))
    df = spark.createDataFrame(labelled, "text string, tokens array<bigint>, topic bigint")
    train, unseen = df.randomSplit([0.75, 0.25], seed=7)
    return {"train": train, "unseen": unseen}


def tokens_of(words: list[str]) -> list[int]:
    """Return the numbers of words, padded."""
    numbers = [VOCABULARY[word] for word in words]
    return numbers + [0] * (LENGTH - len(numbers))


def base() -> Any:
    """Return the frozen base model, the same in each process."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY) + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_labels=len(TOPICS),
        pad_token_id=0,
        initializer_range=0.2,
    )
    return LlamaForSequenceClassification(config).requires_grad_(False)


def train(rank: int, learning_rate: float) -> dict[str, Any]:
    """Train an adapter on this worker's rows; return the accuracy on unseen texts."""
    import torch
    import torch.distributed
    from peft import LoraConfig, get_peft_model
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")  # "nccl" if each rank has a GPU
    columns: dict[str, Any] = {"feature_cols": "tokens", "label_cols": "topic"}
    rows = data.dataset("train", global_batch_size=32, shuffle=True, **columns).as_torch()
    unseen = data.dataset("unseen", global_batch_size=256, **columns).without_repeats.as_torch()

    lora = LoraConfig(
        task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj"]
    )
    model = get_peft_model(context.preloaded, lora)  # Its head is trained, too.
    parallel = DistributedDataParallel(model)
    trained = [weights for weights in model.parameters() if weights.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate)
    for epoch in range(EPOCHS):
        for x, y in rows:  # Every rank takes the same number of steps.
            optimizer.zero_grad()
            loss = parallel(input_ids=x, attention_mask=x > 0, labels=y).loss
            loss.backward()
            optimizer.step()
        found = torch.zeros(2)  # Number of right answers, and of rows.
        with torch.inference_mode():
            for x, y in unseen:
                logits = model(input_ids=x, attention_mask=x > 0).logits
                found += torch.tensor([(logits.argmax(1) == y).sum().item(), len(y)])
        torch.distributed.all_reduce(found)
        accuracy = (found[0] / found[1]).item()
        if context.is_chief:
            context.report({"accuracy": accuracy, "loss": loss.item()}, step=epoch)
    if context.is_chief:
        model.save_pretrained("adapter")
    torch.distributed.destroy_process_group()
    return {"accuracy": accuracy, "adapter": "adapter"} if context.is_chief else {}


def classifier(adapter: str) -> type:
    """Return a class that labels tokens by the base model with an adapter."""

    class Classifier:
        def __init__(self) -> None:
            from peft import PeftModel

            self.model = PeftModel.from_pretrained(base(), adapter).eval()

        def __call__(self, rows: Any) -> Any:
            import torch

            tokens = torch.tensor(rows)
            with torch.inference_mode():
                logits = self.model(input_ids=tokens, attention_mask=tokens > 0).logits
            return logits.argmax(1).numpy()

    return Classifier


SPACE = {"rank": search.Categorical([2, 4, 8]), "learning_rate": search.Float(3e-3, 3e-2, log=True)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="processes of each trial")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("lora").getOrCreate()
    rows = frames(spark)
    run = experiment.search(
        train,
        SPACE,
        num_trials=args.trials,
        workers_per_trial=args.workers,
        data=rows,
        preload=base,
        framework="torch",
        metric="accuracy",
        seed=7,
    )
    print(run)
    adapter = run.best.artifact("adapter")
    labelled = experiment.predict(
        classifier(adapter), rows["unseen"], feature_cols="tokens", outputs="bigint"
    )
    right = F.avg((F.col("prediction") == F.col("topic")).cast("double"))
    print(f"accuracy {labelled.agg(right).first()[0]:.4f} on unseen texts")
    spark.stop()
