"""Measure what imports before the fork and `preload=` save: first steps and memory of LoRA trials.

Each trial trains adapters of a frozen Llama of random weights, which takes `--megabytes` of memory.
The first trial runs alone until its first report; then the others start, all at once. With
`preload=`, the executor builds the model once; without it, each trial does; without a fork server,
each trial also imports its packages. Printed are the seconds from the start of the task of a trial
to its first report, of the first trial and the median of the others, and the memory of the trials
while all hold the model: the sum of their PSS, in which each of n processes counts 1/n of a page
that they share, over the size of the model.

Run it with `python benchmarks/preload.py --megabytes 500`, where PyTorch, transformers and peft are
installed. It prints the machine and a line of JSON for each way, and removes its files.
"""

import argparse
import functools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from lib.machine import machine

from sparkdl import context, experiment

HIDDEN = 1024
WAYS = ("preload", "imports before the fork", "no fork server")


def build(megabytes: int) -> Any:
    """Return a frozen Llama whose weights take about this amount of memory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    layer_bytes = 4 * 16 * HIDDEN**2
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=max(1, (megabytes << 20) // layer_bytes),
        num_attention_heads=8,
        vocab_size=1000,
    )
    return LlamaForCausalLM(config).requires_grad_(False)


def train(number: int, trials: int, megabytes: int, meeting: str) -> dict[str, float]:
    """Take one step with adapters, then measure the memory while others hold the model too."""
    import torch
    from peft import LoraConfig, get_peft_model

    base = context.preloaded or build(megabytes)
    size = sum(weights.numel() * weights.element_size() for weights in base.parameters())
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"]))
    tokens = torch.arange(16)[None]
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    context.report(loss.item())
    meet(meeting, f"stepped-{number}", trials)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    pss = next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    meet(meeting, f"measured-{number}", trials)
    return {"pss": pss, "size": size, "value": loss.item()}


def meet(folder: str, mine: str, trials: int) -> None:
    """Wait until all trials have come this far."""
    Path(folder, mine).touch()
    others = f"{mine.partition('-')[0]}-*"
    deadline = time.monotonic() + 600
    while len(list(Path(folder).glob(others))) < trials and time.monotonic() < deadline:
        time.sleep(0.05)


def measure(way: str, trials: int, megabytes: int) -> dict[str, Any]:
    """Return the times and the memory of one way."""
    os.environ["SPARKDL_FORK_SERVER"] = "0" if way == "no fork server" else "1"
    preload = functools.partial(build, megabytes) if way == "preload" else None
    with tempfile.TemporaryDirectory() as folder:
        run = experiment.launch(
            train,
            {
                "number": range(trials),
                "trials": [trials],
                "megabytes": [megabytes],
                "meeting": [folder],
            },
            preload=preload,
            smoke=True,
            metric="value",
            root=f"{folder}/runs",
            progress=False,
        )
        first, *others = (t.usage.starting_s + t.usage.first_step_s for t in run.trials)
        size = run.trials[0].outputs["size"]
        return {
            "first_s": round(first, 2),
            "others_s": round(statistics.median(others), 2),
            "copies": round(sum(trial.outputs["pss"] for trial in run.trials) / size, 2),
            "model_mb": round(size / (1 << 20)),
        }


def main() -> None:
    """Measure each way and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    arguments = parser.parse_args()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(f"local[{arguments.trials}]").getOrCreate()
    print(json.dumps(machine("torch", "transformers", "peft")))
    for way in arguments.ways:
        measured = measure(way, arguments.trials, arguments.megabytes)
        print(json.dumps({"way": way, "trials": arguments.trials, **measured}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
