"""Packages that a fork server imports: no threads and no CUDA context, and the children train."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.program.packaging import pack
from sparkdl.cluster.program.preloading import HUB
from sparkdl.cluster.start_conditions import start_of
from tests.cluster.process.test_import_order import end_of

PACKAGES = sorted({*HUB, "lightning", "pytorch_lightning"})
# jemalloc, in Arrow, stops its thread before a fork and starts it again.
FACTS = """
import importlib, os, sys
importlib.import_module(sys.argv[1])
tasks = [f"/proc/self/task/{task}/comm" for task in os.listdir("/proc/self/task")]
names = [name for task in tasks if (name := open(task).read().strip()) != "jemalloc_bg_thd"]
files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
print(len(names), [name for name in files if name.startswith("/dev/nvidia")])
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_an_imported_package_can_be_forked(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    # OpenBLAS, whose threads survive a fork, has one here.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FACTS, package]
    assert subprocess.check_output(command, env=environ, text=True) == "1 []\n"


@pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
def test_a_trial_imports_nothing_and_trains(tmp_path: Path) -> None:
    def train() -> list[str]:
        before = {*sys.modules}
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.set_num_threads(2)
        config = LlamaConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            vocab_size=32,
        )  # fmt: skip
        model = get_peft_model(LlamaForCausalLM(config), LoraConfig(target_modules=["q_proj"]))
        tokens = torch.arange(32).reshape(2, 16)
        model(input_ids=tokens, labels=tokens).loss.backward()
        slow = ("peft", "torch", "transformers.models.llama.modeling_llama")
        return [name for name in slow if name not in before]

    packed = pack(train)
    plan = Plan(kind="launch", roles=(Role(name="worker", count=1),))
    start = start_of(plan, packed, "app")
    assert {"peft", "transformers.LlamaForCausalLM"} <= {*start.preload}
    end = end_of(start, packed, tmp_path)
    assert end.outcome and end.outcome.outputs == {"value": []}, (tmp_path / "log.txt").read_text()
