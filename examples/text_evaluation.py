"""An evaluation of language models: a grid of models and tasks, with confidence intervals.

Three tiny Llamas are made in place: one with random weights, and two that were trained for some
steps. Each task is a list of questions with one right answer among the digits. The report of the
run has the accuracy of each pair with its 95 % interval.

    pip install 'sparkdl-platform[torch]' transformers
    python examples/text_evaluation.py
    spark-submit --master <master> examples/text_evaluation.py
"""

import argparse
import math
from typing import Any

import numpy as np

from sparkdl import context, experiment

STEPS = {"random": 0, "short": 30, "long": 150}  # The models, by their steps of training.
TASKS = {
    "repeat": lambda digits: digits[0],
    "next": lambda digits: (digits[0] + 1) % 10,
    "larger": lambda digits: max(digits),
}
TRAINED = ("repeat", "next")  # The models have never seen the third task.


def questions(task: str, rows: int, seed: int) -> tuple[Any, Any]:
    """Return tokens of shape (rows, 3), the task's number and two digits, and the answers."""
    random = np.random.default_rng(seed)
    digits = random.integers(0, 10, (rows, 2))
    signs = np.full((rows, 1), 10 + list(TASKS).index(task))
    answers = np.array([TASKS[task](row) for row in digits.tolist()])
    return np.concatenate([signs, digits], axis=1), answers


def make_models() -> dict[str, Any]:
    """Return the models by name; a program of yours loads them from their folders."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=10 + len(TASKS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    models = {}
    for name, steps in STEPS.items():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(steps):
            x, y = questions(TRAINED[step % len(TRAINED)], 64, seed=1000 + step)
            logits = model(input_ids=torch.tensor(x)).logits[:, -1]
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        models[name] = model.eval().requires_grad_(False)
    return models


def wilson(right: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share, by Wilson's score.

    It is right for few questions, too, and for a share of 0 or 1.
    """
    share = right / total
    middle = share + z**2 / (2 * total)
    width = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return (middle - width) / (1 + z**2 / total), (middle + width) / (1 + z**2 / total)


def evaluate(model: str, task: str, rows: int = 200) -> dict[str, float]:
    """Return the accuracy of a model in a task, with its interval."""
    import torch

    x, y = questions(task, rows, seed=7)
    with torch.inference_mode():
        logits = context.preloaded[model](input_ids=torch.tensor(x)).logits[:, -1]
    answers = logits[:, :10].argmax(1).numpy()
    right = int((answers == y).sum())
    low, high = wilson(right, rows)
    return {"accuracy": right / rows, "low": low, "high": high, "questions": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200, help="questions of each task")
    args = parser.parse_args()
    run = experiment.launch(
        evaluate,
        {"model": list(STEPS), "task": list(TASKS), "rows": [args.rows]},
        preload=make_models,  # Each host has them once.
        framework="torch",
        metric="accuracy",
        seed=7,
    )
    run.raise_for_failures()
    for trial in run.trials:
        model, task = trial.params["model"], trial.params["task"]
        low, high = trial.metrics["low"], trial.metrics["high"]
        print(f"{model:>6} {task:>6}  accuracy {trial.value:.3f} [{low:.3f}, {high:.3f}]")
    print(f"Look at {run.path}/report.html")
