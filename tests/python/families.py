"""Compares tiny random models of the transformers package on random layouts with one device: logits, loss, gradients, a step
of AdamW and greedy generation, all in float64.

    python families.py [--all] [--families llama,gpt2] [--layouts dp,fsdp,last,mixed] [--meshes 2,2x2] [--seed 0] [--generation]

Prints a line for each model and layout that differs, and a summary.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import math
import random
import sys
import time
import warnings

import torch
from torch import nn

import dtensor
from dtensor import Replicate, Shard
import tiny_models
from layouts import shapes
from tiny_models import NoTinyModel, known_families

CI = ["gpt2", "llama", "qwen3", "gemma2", "phi3", "mixtral", "opt", "bloom", "gpt_neox", "olmo2", "bert", "t5"]


@contextlib.contextmanager
def single_is_double():
    """Models that compute norms, softmax and losses in float32 whatever their dtype use float64 instead. The comparison then
    measures the layout, not the rounding of float32 sums in different orders."""
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
    """The results of one program as full tensors."""

    def __init__(self, tiny, place):
        out = tiny.model(**{key: place(t) for key, t in tiny.inputs.items()}, **tiny.model_kwargs)
        named = {key: t for key, t in out.items() if isinstance(t, torch.Tensor) and t.is_floating_point()}
        loss = named.pop("loss") if "loss" in named else sum((t * t).mean() for t in named.values())
        loss.backward()
        model = tiny.model
        self.loss = self.full(loss)
        self.outputs = {key: self.full(t) for key, t in named.items()}
        self.gradients = {n: self.full(p.grad) for n, p in model.named_parameters() if p.grad is not None}
        torch.optim.AdamW(model.parameters(), lr=1e-3).step()
        self.parameters = {n: self.full(p) for n, p in model.named_parameters()}
        self.tokens = None
        if tiny.prompt is not None:
            with torch.no_grad():
                prompt = {key: place(t) for key, t in tiny.prompt.items()}
                self.tokens = self.full(model.generate(**prompt, max_new_tokens=3, do_sample=False, **tiny.generating))

    @staticmethod
    def full(t):
        t = t.detach()
        return (t.full_tensor() if isinstance(t, dtensor.DTensor) else t).clone()

    @staticmethod
    def near(a, b):
        return a is b or (a.shape == b.shape and torch.allclose(a, b, rtol=1e-7, atol=1e-9, equal_nan=True))

    def differences(self, other):
        found = []
        for name in ["loss", "tokens"]:
            if not self.near(getattr(self, name), getattr(other, name)):
                found.append(name)
        found += [name for name, a in self.outputs.items() if not self.near(a, other.outputs[name])]
        for kind in ["gradients", "parameters"]:
            a, b = getattr(self, kind), getattr(other, kind)
            if a.keys() != b.keys():
                found.append(f"{kind} have other names")
            else:  # a step of AdamW has the size of lr for any gradient, so rounding of tiny gradients is visible
                tolerance = 1e-8 if kind == "gradients" else 3e-3
                for name in a:
                    if not torch.allclose(a[name], b[name], rtol=1e-6, atol=tolerance):
                        found.append(f"{kind} {name}")
        return found


def place_parameters(model, mesh, layout, draw):
    """Places every parameter on the mesh; tied parameters stay tied."""
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
    """(layout, mesh, differences or the error) of each case that differs, and the number of cases."""
    torch.manual_seed(seed)
    tiny = tiny_models.make(family)
    if not generate:
        tiny.prompt = None
    with single_is_double():
        return compare_layouts(tiny, family, layouts, meshes, seed)


def compare_layouts(tiny, family, layouts, meshes, seed):
    try:
        expected = Result(copy.deepcopy(tiny), lambda t: t)
    except Exception as error:
        raise NoTinyModel(f"on one device: {type(error).__name__}: {error}") from error
    if not bool(expected.loss.isfinite()):
        raise NoTinyModel("on one device: the loss is not finite")
    failures, cases = [], 0
    for layout in layouts:
        for mesh_shape in meshes:
            cases += 1

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", mesh_shape, mesh_dim_names=("a", "b")[: len(mesh_shape)])
                draw = random.Random(f"{family} {layout} {mesh_shape} {seed}")
                placed = copy.deepcopy(tiny)
                place_parameters(placed.model, mesh, layout, draw)
                rows = [Shard(0)] * mesh.ndim if layout in ("dp", "fsdp") else [Replicate()] * mesh.ndim
                if layout == "mixed":
                    rows = [draw.choice([Shard(0), Replicate()]) for _ in range(mesh.ndim)]
                return expected.differences(Result(placed, lambda t: dtensor.distribute_tensor(t, mesh, rows)))

            try:
                different = dtensor.run(math.prod(mesh_shape), on_rank, timeout=300)[0]
            except Exception as error:
                different = [f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"]
            if different:
                failures.append((layout, mesh_shape, different[:3]))
    return failures, cases


# Arguments of `generate` besides greedy search with a growing cache, which every case runs.
GENERATION = {
    "sampling": {"do_sample": True, "top_k": 8},
    "beams": {"do_sample": False, "num_beams": 3},
    "beams of samples": {"do_sample": True, "num_beams": 2},
    "static cache": {"do_sample": False, "cache_implementation": "static"},
}


def generated(tiny, mesh_shape, layout, options, seed=5):
    """The generated tokens. Random numbers are those of the mesh, the same on every layout, also on one rank."""

    def on_rank():
        mesh = dtensor.init_device_mesh("cpu", mesh_shape, mesh_dim_names=("a", "b")[: len(mesh_shape)])
        placed = copy.deepcopy(tiny)
        place_parameters(placed.model, mesh, layout, random.Random(f"{layout} {mesh_shape}"))
        rows = [Shard(0) if layout in ("dp", "fsdp") else Replicate()] * mesh.ndim
        prompt = {key: dtensor.distribute_tensor(t, mesh, rows) for key, t in placed.prompt.items()}
        dtensor.manual_seed(seed)
        with torch.no_grad():
            return placed.model.generate(**prompt, max_new_tokens=4, **options, **placed.generating).full_tensor()

    return dtensor.run(math.prod(mesh_shape), on_rank, timeout=300)[0]


def compare_generation(family, layouts, meshes, ways=tuple(GENERATION)):
    """Like `compare`, for GENERATION. Deterministic generation must also equal that of regular tensors."""
    torch.manual_seed(0)
    tiny, failures, cases = tiny_models.make(family), [], 0
    if tiny.prompt is None:
        raise NoTinyModel("the model does not generate")
    with single_is_double():
        for way in ways:
            options = GENERATION[way]
            try:
                with torch.no_grad():
                    regular = tiny.model.generate(**tiny.prompt, max_new_tokens=4, **options, **tiny.generating)
            except Exception as error:
                print(f"{family} cannot generate by {way} on regular tensors: {repr(error)[:150]}", flush=True)
                continue
            expected = generated(tiny, (1,), "dp", options)
            if not options["do_sample"] and not torch.equal(regular, expected):
                failures.append((way, (1,), ["tokens differ from regular tensors"]))
            for layout in layouts:
                for mesh_shape in meshes:
                    cases += 1
                    try:
                        same = torch.equal(generated(tiny, mesh_shape, layout, options), expected)
                        different = [] if same else ["tokens differ"]
                    except Exception as error:
                        different = [f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"]
                    if different:
                        failures.append((f"{way} {layout}", mesh_shape, different))
    return failures, cases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--after", default="", help="with --all: only families whose names sort after this one")
    parser.add_argument("--families", default=",".join(CI))
    parser.add_argument("--layouts", default="dp,fsdp,last,mixed")
    parser.add_argument("--meshes", default="2,2x2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--generation", action="store_true", help="sampling, beams and a static cache instead")
    parser.add_argument("--verbose", action="store_true")
    flags = parser.parse_args()
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    meshes = shapes(flags.meshes)
    equal, wrong, none = 0, 0, []
    for family in (f for f in known_families() if f > flags.after) if flags.all else flags.families.split(","):
        begin = time.time()
        try:
            with contextlib.redirect_stderr(sys.stderr if flags.verbose else io.StringIO()):
                if flags.generation:
                    failures, cases = compare_generation(family, flags.layouts.split(","), meshes)
                else:
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
