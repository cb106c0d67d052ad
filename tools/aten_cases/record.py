#!/usr/bin/env python3
"""Records calls of ATen operators on one CPU with PyTorch, in the format of FORMAT.md.

Runs OpInfo samples (also the larger reference ones), lists (foreach) and modules, forward, backward and in place, under
a TorchDispatchMode below autograd, and keeps a few calls of each overload with different sizes and dtypes. A call is kept
only if two replays with different seeds give the same bits.

    record.py FOLDER [--per 3] [--seed 1] [--dtypes float32,...] [--elements 300]

FOLDER is build/release/tests/data/aten_cases; tools/pack_test_data.py packs it afterwards.
"""

import argparse, json, os, random, signal, warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
import numpy as np, torch
import torch.testing._internal.common_methods_invocations as samples
from torch.testing._internal.common_modules import module_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

torch.set_num_threads(1)

DTYPES = "float32,int64,bool,complex64,float64,bfloat16,float16,int32,uint8,complex128"
# Results that cannot be compared: uninitialized memory, random numbers, uninitialized padding of paths.
UNSPECIFIED = ("empty", "multinomial", "bernoulli", "rand", "dropout", "normal_", "_ctc_loss", "nested", "mkldnn_rnn")
SECONDS = 30  # for samples of one operator and dtype


class Skip(Exception):
    pass


class TooLong(Exception):
    pass


def name_of(thing):
    return str(thing).replace("torch.", "")


def span(t):
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0


def copy(t):
    """A copy with the strides of the original, in new memory."""
    if not isinstance(t, torch.Tensor):
        return t
    if t.layout != torch.strided or t.is_quantized or t.is_conj() or t.is_neg() or span(t) > 40000:
        raise Skip
    flat = torch.as_strided(t.detach(), (span(t),), (1,), t.storage_offset()).clone()
    return torch.as_strided(flat, t.shape, t.stride())


def bits(v):
    if isinstance(v, torch.Tensor):
        return (
            v.dtype,
            tuple(v.shape),
            (
                v.contiguous().view(torch.uint8).numpy().tobytes()
                if v.dim()
                else v.reshape(1).view(torch.uint8).numpy().tobytes()
            ),
        )
    return tuple(bits(x) for x in v) if isinstance(v, (list, tuple)) else repr(v)


class Store:
    def __init__(self, args):
        self.args = args
        self.tensors, self.blob, self.index, self.cases, self.schemas, self.kinds = [], bytearray(), {}, [], {}, {}

    def tensor(self, t):
        if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.numel() > self.args.elements:
            raise Skip
        if t.dtype == torch.complex32:
            raise Skip  # cannot be Partial
        if t.dtype == torch.float16 and not t.isfinite().all():
            raise Skip  # overflows, unlike sums in a wider dtype
        t = copy(t)
        data = torch.as_strided(t, (span(t),), (1,)).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        key = (t.dtype, tuple(t.shape), t.stride(), data)
        if key not in self.index:
            self.blob.extend(b"\0" * (-len(self.blob) % 16))
            self.index[key] = len(self.tensors)
            self.tensors.append(
                {
                    "dtype": name_of(t.dtype),
                    "shape": list(t.shape),
                    "stride": list(t.stride()),
                    "offset": len(self.blob),
                    "nbytes": len(data),
                }
            )
            self.blob.extend(data)
        return self.index[key]

    def value(self, v, kind=""):
        if v is None:
            return None
        if isinstance(v, torch.Tensor):
            return {"t": self.tensor(v)}
        if isinstance(v, str):
            return {"s": v}
        if isinstance(v, (list, tuple)):
            return {"l": [self.value(x) for x in v]}
        for cls, key in (
            (torch.dtype, "dtype"),
            (torch.device, "device"),
            (torch.layout, "layout"),
            (torch.memory_format, "memory_format"),
        ):
            if isinstance(v, cls):
                return {key: name_of(v)}
        if isinstance(v, bool):
            number = {"b": v}
        elif isinstance(v, int):
            number = {"i": v}
        elif isinstance(v, float):
            number = {"f": v if np.isfinite(v) else "nan" if v != v else "inf" if v > 0 else "-inf"}
        elif isinstance(v, complex):
            number = {"c": [v.real, v.imag]}
        else:
            raise Skip
        return {"wn": number} if kind in ("Tensor", "Optional[Tensor]") else number

    def wanted(self, op, values):
        """A key that distinguishes a call from the recorded ones, or None."""
        if any(word in op for word in UNSPECIFIED):
            return None
        tensors = [t for t in tree_flatten(values)[0] if isinstance(t, torch.Tensor)]
        shapes = tuple((tuple(t.shape), t.is_contiguous()) for t in tensors)
        kinds = self.kinds.setdefault(op, [])
        types = tuple(sorted({name_of(t.dtype) for t in tensors}))
        if len(kinds) >= self.args.per or any(k[0] == shapes or k[1] == types for k in kinds):
            return None
        return shapes, types

    def add(self, func, op, values, kind, source, phase):
        schema, replays = func._schema, []
        for seed in (1, 2):
            torch.manual_seed(seed)
            again = tree_map(copy, values)
            named = [(a, v) for a, v in zip(schema.arguments, again)]
            with torch.no_grad():
                result = func(
                    *[v for a, v in named if not a.kwarg_only], **{a.name: v for a, v in named if a.kwarg_only}
                )
            written = {
                a.name: v for a, v in named if a.alias_info is not None and a.alias_info.is_write and v is not None
            }
            replays.append((tree_map(copy, result), written))
        if bits(replays[0][0]) != bits(replays[1][0]) or bits(list(replays[0][1].values())) != bits(
            list(replays[1][1].values())
        ):
            raise Skip
        result, written = replays[0]
        results = [] if not schema.returns else [result] if len(schema.returns) == 1 else result
        case = {
            "id": len(self.cases),
            "op": op,
            "args": [self.value(v, str(a.type)) for v, a in zip(values, schema.arguments)],
            "out": [self.value(v) for v in results],
        }
        if written:
            case["mut"] = {n: self.value(v) for n, v in written.items()}
        self.cases.append(case | {"src": source, "phase": phase})
        self.schemas[op] = str(schema)
        self.kinds[op].append(kind)

    def write(self, folder):
        os.makedirs(folder, exist_ok=True)
        for name, rows in (("cases", self.cases), ("tensors", self.tensors)):
            with open(f"{folder}/{name}.json", "w") as f:
                f.write("[\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]\n")
        with open(f"{folder}/tensors.bin", "wb") as f:
            f.write(self.blob)


class Record(TorchDispatchMode):
    def __init__(self, store, source, phase):
        super().__init__()
        self.store, self.source, self.phase, self.seen = store, source, phase, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        op, kind = f"{func._schema.name}.{func._overloadname}", None
        if op.startswith("aten::"):
            try:
                values = [
                    args[i] if i < len(args) and not a.kwarg_only else kwargs.get(a.name, a.default_value)
                    for i, a in enumerate(func._schema.arguments)
                ]
                kind = self.store.wanted(op, values)
                if kind:
                    values = tree_map(copy, values)
            except Skip:
                kind = None
        if kind:
            self.seen.append((func, op, values))
        return func(*args, **kwargs)

    def __exit__(self, *error):
        super().__exit__(*error)
        for func, op, values in self.seen:  # outside of the mode, which hides conjugate bits from some kernels
            kind = self.store.wanted(op, values)
            try:
                kind and self.store.add(func, op, values, kind, self.source, self.phase)
            except (Skip, RuntimeError):
                pass


def tensors_with_grad(tree):
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor) and t.requires_grad]


def record(store, source, run, inputs):
    try:
        with Record(store, source, "fwd"):
            result = run()
        outputs, leaves = tensors_with_grad(result), tensors_with_grad(inputs)
        if not outputs or not leaves:
            return
        cotangents = [torch.randn_like(t) for t in outputs]
        with Record(store, source, "bwd"):
            torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
    except TooLong:
        raise
    except Exception:
        pass  # a sample that should fail, or that this build cannot run


def of_operator(store, op, dtype, rng):
    differentiable = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    wide = dtype in (torch.float32, torch.int64, torch.bool, torch.complex64)
    for make in (op.sample_inputs, op.reference_inputs) if wide else (op.sample_inputs,):
        drawn = [s for _, s in zip(range(60), make("cpu", dtype, requires_grad=differentiable))]
        rng.shuffle(drawn)
        for s in drawn:
            record(store, op.name, lambda: op(s.input, *s.args, **s.kwargs), (s.input, s.args, s.kwargs))
            if not op.inplace_variant or s.broadcasts_input or not isinstance(s.input, torch.Tensor):
                continue
            with torch.no_grad():
                record(store, op.name, lambda: op.inplace_variant(s.input.clone(), *s.args, **s.kwargs), ())


def of_list_operator(store, op, dtype, rng):
    for _, s in zip(range(60), op.sample_inputs("cpu", dtype, noncontiguous=False)):
        for run in (op.method_variant, op.inplace_variant):
            if run is None:
                continue
            with torch.no_grad():
                record(store, op.name, lambda: run([t.clone() for t in s.input], *s.args, **s.kwargs), ())


def of_module(store, module, dtype, rng):
    for training in (True, False):
        for x in module.module_inputs_func(module, device="cpu", dtype=dtype, requires_grad=True, training=training):
            built = module.module_cls(*x.constructor_input.args, **x.constructor_input.kwargs).to(dtype).train(training)
            call = x.forward_input
            record(store, module.name, lambda: built(*call.args, **call.kwargs), (list(built.parameters()), call.args))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--per", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--elements", type=int, default=300)
    args = parser.parse_args()
    store, rng = Store(args), random.Random(args.seed)
    lists = [
        op
        for name in dir(samples)
        if name.startswith("foreach_") and name.endswith("_op_db")
        for op in getattr(samples, name)
    ]
    work = (
        [(of_operator, o) for o in samples.op_db]
        + [(of_list_operator, o) for o in lists]
        + [(of_module, m) for m in module_db]
    )
    dtypes = [getattr(torch, d) for d in args.dtypes.split(",")]
    work = [(f, o, d) for f, o in work for d in dtypes]
    rng.shuffle(work)

    def too_long(*_):
        raise TooLong

    signal.signal(signal.SIGALRM, too_long)
    for family, op, dtype in work:
        if family is of_operator and not op.supports_dtype(dtype, "cpu"):
            continue
        if family is of_module and not dtype.is_floating_point:
            continue
        torch.manual_seed(args.seed), np.random.seed(args.seed), random.seed(args.seed)
        signal.alarm(SECONDS)
        try:
            family(store, op, dtype, rng)
        except Exception:
            pass  # the operator does not support the dtype
        finally:
            signal.alarm(0)
    store.write(args.folder)
    print(len(store.cases), "cases of", len(store.schemas), "overloads,", len(store.blob), "bytes")


if __name__ == "__main__":
    main()
