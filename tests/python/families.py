"""Tiny random models of the transformers package on random layouts beside one device: logits, loss, gradients, a step of
AdamW, greedy generation, all in float64.

    python families.py [--all] [--families llama,gpt2] [--layouts dp,fsdp,last,mixed] [--meshes 2,2x2] [--seed 0]

prints a line for each model and layout that is not equal, and a summary.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import random
import sys
import time
import warnings

import torch
from torch import nn

import dtensor
from dtensor import Replicate, Shard

TINY = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64, "head_dim": 8, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 64, "n_ctx": 64, "n_inner": 48, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "ffn_dim": 48,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "word_embed_proj_dim": 32, "rotary_dim": 4, "embedding_size": 32,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "attention_dropout": 0.0, "hidden_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "dropout": 0.0,
    "activation_dropout": 0.0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout_rate": 0.0,
    "layerdrop": 0.0, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "decoder_start_token_id": 1,
    "sliding_window": 8, "mamba_d_state": 8, "state_size": 8, "ssm_state_size": 8, "time_step_rank": 4, "is_decoder": True,
    "attention_hidden_size": 32, "ffn_hidden_size": 48, "multi_query_group_num": 2, "hidden_act_dim": 8,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96, "num_kv_shared_layers": 0, "lru_width": 32,
    "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "lm_head_dim": 32, "num_key_value_groups": 2,
}  # fmt: skip

CI = ["gpt2", "llama", "qwen3", "gemma2", "phi3", "mixtral", "opt", "bloom", "gpt_neox", "olmo2", "bert", "t5"]


class NoTinyModel(Exception):
    """The package has the model, and no tiny one could be made of it here: the layouts say nothing about it."""


def known_families():
    from transformers.models.auto import modeling_auto as auto

    names = {**auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, **auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    names.update(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    return sorted(names)


def make(family):
    import transformers
    from transformers.models.auto import modeling_auto as auto

    try:
        return make_tiny(family, transformers, auto)
    except NoTinyModel:
        raise
    except Exception as error:
        raise NoTinyModel(f"{type(error).__name__}: {error}") from error


def make_tiny(family, transformers, auto):
    config_class = transformers.CONFIG_MAPPING[family]
    default = config_class()
    fixed = {key for key in dir(config_class) if isinstance(getattr(config_class, key), property)}  # told by others
    options = {key: value for key, value in TINY.items() if hasattr(default, key) and key not in fixed}
    if "kv_lora_rank" in options:  # multi-head latent attention: every head has its keys
        options["num_key_value_heads"] = options["num_attention_heads"]
    for key in ["layer_types", "mlp_layer_types", "layers_block_type"]:
        if key not in fixed and isinstance(getattr(default, key, None), list):
            options[key] = getattr(default, key)[:2]
    for names, kind in [
        (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "AutoModelForCausalLM"),
        (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "AutoModelForSeq2SeqLM"),
        (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, "AutoModelForMaskedLM"),
    ]:
        if family in names:
            break
    if kind == "AutoModelForMaskedLM":
        options.pop("is_decoder", None)
    options["experts_implementation"] = "eager"  # the grouped kernel knows no float64
    if kind == "AutoModelForSeq2SeqLM":
        options["decoder_start_token_id"] = 1
        options.pop("is_decoder", None)
    config = config_class(**options)
    build = getattr(transformers, kind).from_config
    with torch.device("meta"):
        size = sum(p.numel() for p in build(copy.deepcopy(config)).parameters())
    if size > 4_000_000:
        raise NoTinyModel(f"it stays large: {size} parameters")
    model = build(config).double().eval()
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.eos_token_id = None
    return model, kind


def batch():
    generator = torch.Generator().manual_seed(7)
    return torch.randint(2, 96, (4, 6), generator=generator)


@contextlib.contextmanager
def single_is_double():
    """Models that compute norms, softmax and losses in float32 whatever their dtype do so in float64: what is compared is
    the layout, not how far two orders of a float32 sum lie apart."""
    names, kept = ["float32", "float"], torch.float32
    to_float = torch.Tensor.float
    try:
        for name in names:
            setattr(torch, name, torch.float64)
        torch.Tensor.float = torch.Tensor.double
        yield
    finally:
        for name in names:
            setattr(torch, name, kept)
        torch.Tensor.float = to_float


class Result:
    """What one program gives; DTensors are read whole."""

    def __init__(self, model, kind, ids, generate):
        seq2seq = kind == "AutoModelForSeq2SeqLM"
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        self.loss = self.whole(out.loss)
        self.logits = self.whole(out.logits)
        self.gradients = {n: self.whole(p.grad) for n, p in model.named_parameters() if p.grad is not None}
        torch.optim.AdamW(model.parameters(), lr=1e-3).step()
        self.parameters = {n: self.whole(p) for n, p in model.named_parameters()}
        self.tokens = None
        if generate:
            with torch.no_grad():
                more = {} if seq2seq else {"pad_token_id": 0}
                self.tokens = self.whole(model.generate(ids, max_new_tokens=3, do_sample=False, **more))

    @staticmethod
    def whole(t):
        t = t.detach()
        return (t.full_tensor() if isinstance(t, dtensor.DTensor) else t).clone()

    def differences(self, other):
        found = []
        for name in ["loss", "logits", "tokens"]:
            a, b = getattr(self, name), getattr(other, name)
            if a is not None and (a.shape != b.shape or not torch.allclose(a, b, rtol=1e-7, atol=1e-9)):
                found.append(name)
        for kind in ["gradients", "parameters"]:
            a, b = getattr(self, kind), getattr(other, kind)
            if a.keys() != b.keys():
                found.append(f"{kind} of other names")
            else:  # a step of AdamW has the size of lr whatever the gradient's: rounding shows where that is tiny
                tolerance = 1e-8 if kind == "gradients" else 3e-3
                for name in a:
                    if not torch.allclose(a[name], b[name], rtol=1e-6, atol=tolerance):
                        found.append(f"{kind} {name}")
        return found


def place_parameters(model, mesh, layout, draw):
    """Every parameter and buffer on the mesh; tied ones stay tied."""
    made = {}

    def placements(t):
        choices = [Replicate()] + [Shard(d) for d in range(t.dim())]
        axes = mesh.ndim
        if layout == "dp" or t.dim() == 0:
            return [Replicate()] * axes
        if layout == "fsdp":
            return [Shard(0)] * axes
        if layout == "last":
            return [Shard(t.dim() - 1)] + [Replicate()] * (axes - 1)
        return [draw.choice(choices) for _ in range(axes)]

    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    placed = dtensor.distribute_tensor(parameter.detach(), mesh, placements(parameter))
                    made[id(parameter)] = nn.Parameter(placed, parameter.requires_grad)
                module._parameters[key] = made[id(parameter)]
    return model


def compare(family, layouts, meshes, seed=0, generate=True):
    """(layout, mesh, what differs or the error) for each case that is not equal, and how many cases there were."""
    torch.manual_seed(seed)
    model, kind = make(family)
    can_generate = generate and kind != "AutoModelForMaskedLM"
    with single_is_double():
        return compare_layouts(model, kind, family, layouts, meshes, seed, can_generate)


def compare_layouts(model, kind, family, layouts, meshes, seed, can_generate):
    try:
        expected = Result(copy.deepcopy(model), kind, batch(), can_generate)
    except Exception as error:
        raise NoTinyModel(f"on one device: {type(error).__name__}: {error}") from error
    failures, cases = [], 0
    for layout in layouts:
        for mesh_shape in meshes:
            cases += 1

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", mesh_shape, mesh_dim_names=("a", "b")[: len(mesh_shape)])
                draw = random.Random(f"{family} {layout} {mesh_shape} {seed}")
                placed = place_parameters(copy.deepcopy(model), mesh, layout, draw)
                rows = [Shard(0)] * mesh.ndim if layout in ("dp", "fsdp") else [Replicate()] * mesh.ndim
                if layout == "mixed":
                    rows = [draw.choice([Shard(0), Replicate()]) for _ in range(mesh.ndim)]
                ids = dtensor.distribute_tensor(batch(), mesh, rows)
                return expected.differences(Result(placed, kind, ids, can_generate))

            ranks = 1
            for size in mesh_shape:
                ranks *= size
            try:
                different = dtensor.run(ranks, on_rank, timeout=300)[0]
            except Exception as error:
                different = [f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"]
            if different:
                failures.append((layout, mesh_shape, different[:3]))
    return failures, cases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--after", default="", help="with --all: families whose names come later than this one")
    parser.add_argument("--families", default=",".join(CI))
    parser.add_argument("--layouts", default="dp,fsdp,last,mixed")
    parser.add_argument("--meshes", default="2,2x2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    meshes = [tuple(int(n) for n in mesh.split("x")) for mesh in flags.meshes.split(",")]
    equal, wrong, none = 0, 0, []
    for family in (f for f in known_families() if f > flags.after) if flags.all else flags.families.split(","):
        begin = time.time()
        try:
            with contextlib.redirect_stderr(sys.stderr if flags.verbose else io.StringIO()):
                failures, cases = compare(family, flags.layouts.split(","), meshes, flags.seed)
        except NoTinyModel as error:
            none.append(family)
            print(f"{family}: no tiny model ({str(error).splitlines()[0][:150]})", flush=True)
            continue
        equal, wrong = equal + cases - len(failures), wrong + len(failures)
        for layout, mesh, what in failures:
            print(f"{family} {layout} {'x'.join(map(str, mesh))}: {'; '.join(what)}", flush=True)
        print(f"{family}: {cases - len(failures)} of {cases} equal, {time.time() - begin:.0f} s", flush=True)
    print(f"equal {equal}, not equal {wrong}, families without a tiny model {len(none)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
