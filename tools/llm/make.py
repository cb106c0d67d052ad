#!/usr/bin/env python3
"""Creates a tiny random model of each family that apps/llm supports with the transformers package, and records
the results of transformers: OUT/FAMILY has config.json and safetensors files as save_pretrained() writes
them, and expected.json with token ids, logits, greedy tokens and the losses of five training steps, for all parameters and
with low-rank adapters. OUT/rope.json has the frequencies of each scaling of rotary positions.

    python3 tools/llm/make.py OUT                       # needs torch, transformers, safetensors
    python3 tools/llm/make.py --check EXPORTED FOLDER   # loads both, prints the largest difference of their logits

OUT is build/release/tests/data/llm; tools/pack_test_data.py packs it afterwards.
"""
import copy
import json
import math
import pathlib
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

TOKENS = [3, 17, 42, 7, 63, 0, 21, 5, 33, 12, 58, 29, 8]
NEW_TOKENS = 12
BATCH = [[(7 * i + 13 * j + i * j) % 64 for j in range(12)] for i in range(4)]
LR, STEPS, RANK, ALPHA = 1e-2, 5, 4, 8

SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=128, bos_token_id=1, eos_token_id=None,
             pad_token_id=None)


UNEVEN = dict(hidden_size=48, intermediate_size=16, num_attention_heads=6, num_key_value_heads=3)  # over two ranks


def small(**changes):
    return {**SMALL, **changes}


FAMILIES = {
    "llama2": ("llama", small(num_key_value_heads=4, rms_norm_eps=1e-5, tie_word_embeddings=False)),
    "llama3": ("llama", small(**UNEVEN, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32))),
    "mistral": ("mistral", small(sliding_window=5)),
    "qwen2": ("qwen2", small(tie_word_embeddings=True)),
    "qwen3": ("qwen3", small(head_dim=12)),
    "gemma2": ("gemma2", small(**UNEVEN, sliding_window=6, query_pre_attn_scalar=12, attn_logit_softcapping=5.0,
                               final_logit_softcapping=3.0, hidden_activation="gelu_pytorch_tanh")),
    "gemma3": ("gemma3_text", small(sliding_window=6, query_pre_attn_scalar=10, num_hidden_layers=3,
                                    layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "mixtral": ("mixtral", small(intermediate_size=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
    "qwen3_moe": ("qwen3_moe", small(moe_intermediate_size=12, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
                                     mlp_only_layers=[0])),
    "deepseek_v3": ("deepseek_v3", dict(
        vocab_size=64, hidden_size=32, intermediate_size=40, moe_intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_shared_experts=2, n_routed_experts=8, routed_scaling_factor=1.5,
        kv_lora_rank=12, q_lora_rank=10, qk_rope_head_dim=4, v_head_dim=6, qk_nope_head_dim=8, n_group=4, topk_group=2,
        num_experts_per_tok=3, first_k_dense_replace=1, norm_topk_prob=True, max_position_embeddings=128,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32,
                             beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=0.7),
        bos_token_id=1, eos_token_id=None, pad_token_id=None)),
    "gpt2": ("gpt2", dict(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, n_inner=40, bos_token_id=1,
                          eos_token_id=None, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)),
}
SHARDED = {"llama2": "40KB", "mixtral": "30KB"}  # folders of several files
DTYPES = {"qwen2": torch.bfloat16}               # stored dtype of parameters; computation is in float32


def fill(model, seed):
    """Random values with the scale of a trained model; norms, biases and the router's correction are near their neutral values."""
    generator = torch.Generator().manual_seed(seed)
    state = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if "correction" in n}}
    with torch.no_grad():
        for name, tensor in state.items():
            value = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
            if tensor.dim() == 1:
                neutral = tensor if "norm" in name or "ln_" in name else torch.zeros(tensor.shape)
                value = neutral + 0.1 * value
            else:
                embeds = "embed" in name or "wte" in name or "wpe" in name
                # With tied embeddings, a token's own row must not dominate, or each token would predict itself.
                scale = 1.5 if not embeds else 0.5 if model.config.tie_word_embeddings else 3
                value = value / math.sqrt(tensor.shape[-1]) * scale
            tensor.copy_(value)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def losses(model, parameters):
    """Five steps of AdamW on one batch: the losses before each step."""
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=0.01)
    ids, found = torch.tensor(BATCH), []
    for _ in range(STEPS):
        logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


class Adapter(torch.nn.Module):
    """alpha / rank * B A x (LoRA, arXiv:2106.09685), A from a formula so that the C++ side has the same."""

    def __init__(self, inputs, outputs):
        super().__init__()
        start = torch.sin(torch.arange(1, RANK * inputs + 1, dtype=torch.float64)).view(RANK, inputs) / math.sqrt(inputs)
        self.A = torch.nn.Parameter(start.float())
        self.B = torch.nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, x):
        return ALPHA / RANK * (x @ self.A.T @ self.B.T)


class Adapted(torch.nn.Module):
    """A layer with adapters on equal ranges of its outputs; None: a range without an adapter."""

    def __init__(self, base, adapters):
        super().__init__()
        self.base, self.adapters = base, torch.nn.ModuleList(adapters)

    def forward(self, x):
        y = self.base(x)
        added = [a(x) if a is not None else torch.zeros_like(part)
                 for a, part in zip(self.adapters, y.chunk(len(self.adapters), dim=-1))]
        return y + torch.cat(added, dim=-1)


def adapt(model):
    """Adapters on the projections of queries and values of each layer; other parameters are frozen."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    kind = model.config.model_type
    for layer in model.transformer.h if kind == "gpt2" else model.model.layers:
        if kind == "gpt2":  # queries, keys and values are one matrix
            size = model.config.n_embd
            layer.attn.c_attn = Adapted(layer.attn.c_attn, [Adapter(size, size), None, Adapter(size, size)])
            continue
        for name in ("q_b_proj", "kv_b_proj") if kind == "deepseek_v3" else ("q_proj", "v_proj"):
            base = getattr(layer.self_attn, name)
            setattr(layer.self_attn, name, Adapted(base, [Adapter(base.in_features, base.out_features)]))
    return [p for p in model.parameters() if p.requires_grad]


def expected(folder):
    model, ids = load(folder), torch.tensor([TOKENS])
    with torch.no_grad():
        logits = model(ids).logits[0]
        made = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, attention_mask=torch.ones_like(ids))
    full = losses(model, list(model.parameters()))
    result = {"tokens": TOKENS, "logits": [round(x, 8) for x in logits.flatten().tolist()],
              "greedy": made[0, len(TOKENS):].tolist(), "batch": BATCH, "lr": LR, "losses": full}
    fresh = load(folder)
    result["lora"] = {"rank": RANK, "alpha": ALPHA, "losses": losses(fresh, adapt(fresh))}
    return result


ROPES = {
    "default": dict(rope_type="default", rope_theta=10000.0),
    "linear": dict(rope_type="linear", rope_theta=10000.0, factor=4.0),
    "dynamic": dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0),
    "yarn": dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32),
    "yarn_smooth": dict(rope_type="yarn", rope_theta=1e6, factor=8.0, original_max_position_embeddings=64, beta_fast=16,
                        beta_slow=2, attention_factor=1.25, truncate=False),
    "yarn_mscale": dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, original_max_position_embeddings=64, mscale=0.9,
                        mscale_all_dim=0.6),
    "longrope": dict(rope_type="longrope", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64,
                     short_factor=[1 + 0.1 * i for i in range(8)], long_factor=[2 + 0.5 * i for i in range(8)]),
    "llama3": dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64),
}


def ropes():
    """Frequencies of heads of 16 elements at two lengths: within and beyond the training length."""
    table = []
    for name, parameters in ROPES.items():
        for length in (20, 300):
            config = AutoConfig.for_model("llama", **small(head_dim=16, rope_parameters=copy.deepcopy(parameters)))
            if parameters["rope_type"] == "default":
                model = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
                frequencies, factor = model.inv_freq, 1.0
            else:
                frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=length)
            table.append({"name": name, "parameters": parameters, "head_dim": 16, "max_position_embeddings": 128,
                          "length": length, "frequencies": frequencies.tolist(), "attention_factor": factor})
    return table


def make(out):
    for seed, (name, (kind, options)) in enumerate(FAMILIES.items()):
        folder = out / name
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))
        fill(model, seed)
        model.to(DTYPES.get(name, torch.float32)).save_pretrained(folder, max_shard_size=SHARDED.get(name, "1GB"))
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "expected.json").write_text(json.dumps(expected(folder)) + "\n")
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")
    (out / "rope.json").write_text(json.dumps(ropes(), indent=1) + "\n")


def check(exported, original):
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        print((load(exported)(ids).logits - load(original)(ids).logits).abs().max().item())


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        check(*sys.argv[2:])
    else:
        make(pathlib.Path(sys.argv[1]))
