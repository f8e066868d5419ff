"""Training functions as the documentation of PyTorch and of the tools around it writes them.

Each knows its place from `torchrun`'s variables only, and returns a digest of its weights.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

ROWS, FEATURES = 64, 4


def rows() -> tuple[Any, Any]:
    """Rows of a linear problem, the same in each process."""
    import torch

    torch.set_num_threads(1)
    x = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(0))
    return x, x.sum(dim=1, keepdim=True)


def digest(model: Any) -> str:
    state = {key: value.detach().cpu().tolist() for key, value in model.state_dict().items()}
    return hashlib.sha256(repr(sorted(state.items())).encode()).hexdigest()[:16]


def keep(model: Any) -> str:
    """Write the digest of this rank's weights beside those of the others, and return it."""
    from sparkdl import context

    mine = digest(model)
    Path(context.folder or ".", f"weights-{os.environ['RANK']}.txt").write_text(mine)
    return mine


def distributed_data_parallel() -> str:
    """The tutorial "Multi GPU training with DDP", with `torchrun`."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    torch.manual_seed(dist.get_rank())  # DDP takes the weights of rank 0.
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    data = TensorDataset(*rows())
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
    return keep(model.module)


def killed(step: int) -> None:
    """Kill rank 1 after this step, once, where `KILLED_AFTER` says so."""
    from sparkdl import context

    is_due = f"{step}" == os.environ.get("KILLED_AFTER") and os.environ["RANK"] == "1"
    if is_due and not context.attempt:
        os.kill(os.getpid(), signal.SIGKILL)


def lightning() -> str:
    """Lightning's Trainer with a process on each node, as TorchDistributor's page has it."""
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from sparkdl import context
    from sparkdl.lightning import Checkpoint

    class Kill(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            killed(trainer.global_step)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(FEATURES, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            loss = torch.nn.functional.mse_loss(self.layer(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=bool(context.run),
        callbacks=[Checkpoint(), Kill()] if context.run else [],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch.manual_seed(0)
    module = Module()
    loader = DataLoader(TensorDataset(*rows()), batch_size=8)
    trainer.fit(module, loader, ckpt_path=Checkpoint.path())
    assert (trainer.world_size, trainer.global_rank) == (2, int(os.environ["RANK"]))
    return keep(module)


def accelerated() -> str:
    """A loop with accelerate."""
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(*rows()), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
    assert accelerator.num_processes == 2 and accelerator.process_index == int(os.environ["RANK"])
    accelerator.wait_for_everyone()
    return keep(accelerator.unwrap_model(model))


def hugging_face() -> str:
    """The Trainer of transformers; the program never names torch."""
    import transformers

    from sparkdl import context
    from sparkdl.huggingface import Checkpoint

    class Kill(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            killed(state.global_step)

    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.1,  # The states of random numbers of each rank matter.
    )
    transformers.set_seed(0)
    model = transformers.LlamaForCausalLM(config)
    texts = [[(start + i) % 32 for i in range(8)] for start in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=4,
        per_device_train_batch_size=2,
        save_strategy="steps",
        save_steps=1,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=[{"input_ids": ids, "labels": ids} for ids in texts],
        callbacks=[Checkpoint("loss"), Kill()] if context.run else [],
    )
    trainer.train(resume_from_checkpoint=context.get_checkpoint())
    assert arguments.world_size == 2 and arguments.process_index == int(os.environ["RANK"])
    return keep(trainer.accelerator.unwrap_model(trainer.model))


def sharded_model() -> Any:
    """Return a model of which each rank holds a part of each parameter."""
    import torch
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Linear(8, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def fully_sharded() -> str:
    """FSDP2: each rank holds a part of each parameter."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = sharded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = rows()
    mine = slice(dist.get_rank() * ROWS // 2, (dist.get_rank() + 1) * ROWS // 2)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
        optimizer.step()
    whole = torch.nn.Module()
    for name, parameter in model.named_parameters():
        full = torch.nn.Parameter(parameter.full_tensor())
        whole.register_parameter(name.replace(".", "_"), full)
    dist.barrier()
    dist.destroy_process_group()
    return keep(whole)


def sharded_steps(start: str | None = None, killed_at: int | None = None) -> list[float]:
    """FSDP2 with checkpoints of all ranks: six steps, from a checkpoint if there is one.

    Args:
        start: the checkpoint of another run.
        killed_at: rank 1 kills itself after this step, unless it has gone on from a checkpoint.
    """
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    from sparkdl import context

    dist.init_process_group("gloo")
    model = sharded_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    begin, losses = 0, []
    if found := context.get_checkpoint() or start:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=found)
        set_state_dict(
            model, optimizer, model_state_dict=weights, optim_state_dict=state["optimizer"]
        )
        begin = int(Path(found, "step.txt").read_text()) + 1
    x, y = (part[: ROWS // 6 * 6] for part in rows())
    share = len(x) // dist.get_world_size()
    mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
    for step in range(begin, 6):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss := loss.detach())
        losses.append(float(loss) / dist.get_world_size())
        folder = f"model-{dist.get_rank()}"
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
        Path(folder, "step.txt").write_text(f"{step}")
        context.report({"loss": losses[-1]}, step=step, checkpoint=folder, sharded=True)
        if step == killed_at and dist.get_rank() == 1 and not found:
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()
    return losses


PROGRAMS = {
    "torch": distributed_data_parallel,
    "lightning": lightning,
    "accelerate": accelerated,
    "transformers": hugging_face,
    "fsdp": fully_sharded,
}

if __name__ == "__main__":
    os.chdir(sys.argv[2])
    PROGRAMS[sys.argv[1]]()
