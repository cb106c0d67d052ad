#!/usr/bin/env python3
"""Trains a small, fully sharded Llama of the transformers package with each library that starts processes.

    torchrun --nproc-per-node 2 with_libraries.py --use accelerate      # trainer, fabric, peft
    torchrun --nproc-per-node 2 with_libraries.py --use trainer --ddp   # DistributedDataParallel, for comparison

Each prints the loss of every step, a mean over processes. --save FOLDER writes a folder for from_pretrained.
"""
import argparse

import torch
import transformers
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils.data import DataLoader

import dtensor

parser = argparse.ArgumentParser()
parser.add_argument("--use", choices=["accelerate", "trainer", "fabric", "peft"], default="accelerate")
parser.add_argument("--ddp", action="store_true", help="replicated by DistributedDataParallel instead")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--save", help="a folder for the trained weights")
flags = parser.parse_args()

torch.manual_seed(0)
config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                  num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
model = transformers.LlamaForCausalLM(config)
if flags.use == "peft":
    import peft

    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
rows = torch.randint(0, 64, (8 * flags.steps, 12))
data = [{"input_ids": row, "labels": row} for row in rows]


def shard(model):
    """Call this after the library has initialized its process group, and before creating an optimizer."""
    if flags.ddp:
        return
    mesh = dtensor.init_device_mesh("cpu", (dtensor.world_size(),), mesh_dim_names=("dp",))
    for layer in model.get_decoder().layers:
        dtensor.fully_shard(layer, mesh=mesh)
    dtensor.fully_shard(model, mesh=mesh)


def report(losses):
    if dtensor.rank() == 0:
        print("losses", *(f"{loss:.5f}" for loss in losses), flush=True)


def train(model, optimizer, loader, backward, mean):
    losses = []
    for batch in loader:
        loss = model(**batch).loss
        backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean(loss.detach()).item())
    report(losses)


def with_accelerate():
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer, loader = accelerator.prepare(optimizer, DataLoader(data, batch_size=4))
    net = accelerator.prepare(model) if flags.ddp else model
    train(net, optimizer, loader, accelerator.backward, lambda loss: accelerator.gather(loss).mean())


def with_fabric():
    import lightning.fabric

    fabric = lightning.fabric.Fabric(accelerator="cpu", devices=dtensor.world_size())
    fabric.launch()
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    net, optimizer = fabric.setup(model, optimizer) if flags.ddp else (model, fabric.setup_optimizers(optimizer))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=4))
    train(net, optimizer, loader, fabric.backward, fabric.all_reduce)


def with_trainer():
    options = transformers.TrainingArguments(
        output_dir="unused", use_cpu=True, max_steps=flags.steps, per_device_train_batch_size=4, learning_rate=1e-2,
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, train_sampling_strategy="sequential",
    )  # fmt: skip
    shard(model)
    trainer = transformers.Trainer(model=model, args=options, train_dataset=data)
    if not flags.ddp:
        trainer.accelerator.prepare_model = lambda model, *args, **options: model
    trainer.train()
    report([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


{"accelerate": with_accelerate, "peft": with_accelerate, "fabric": with_fabric, "trainer": with_trainer}[flags.use]()
if flags.save and not flags.ddp:
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dtensor.rank() == 0:
        model.save_pretrained(flags.save, state_dict=state)
