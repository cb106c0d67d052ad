// Factories that write to out=: every rank makes the whole, which has no operands, and keeps its part; random ones fill
// the DTensor in place, by global index.
#include <ATen/ATen.h>

#include "ops/special/special.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

std::vector<std::int64_t> named_sizes(const OpEntry& entry, const torch::jit::Stack& stack) {
  const auto& schema = entry.schema();
  const auto index = schema.argumentIndexWithName("size");
  TORCH_CHECK_NOT_IMPLEMENTED(index, schema.operator_name(), " on a DTensor: a permutation has no out= form; call ",
                              "randperm in a MeshScope");
  return torch::jit::peek(stack, *index, schema.arguments().size()).toIntVector();
}

const c10::IValue* argument(const OpEntry& entry, const torch::jit::Stack& stack, const char* name) {
  const auto& schema = entry.schema();
  const auto index = schema.argumentIndexWithName(name);
  return index ? &torch::jit::peek(stack, *index, schema.arguments().size()) : nullptr;
}

void fill_randomly(const OpEntry& entry, const torch::jit::Stack& stack, const at::Tensor& out) {
  const std::string& name = entry.name().name;
  const auto sizes = named_sizes(entry, stack);
  if (out.sizes() != at::IntArrayRef(sizes)) resize_global(out, sizes);
  if (name == "aten::rand") return out.uniform_(), void();
  if (name == "aten::normal") {
    out.normal_(argument(entry, stack, "mean")->toDouble(), argument(entry, stack, "std")->toDouble());
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(name == "aten::randint", entry.name(), " has no form for DTensors");
  const auto* low = argument(entry, stack, "low");
  out.random_(low == nullptr ? 0 : low->toInt(), argument(entry, stack, "high")->toInt());
}

void copy_whole(const at::Tensor& whole, const at::Tensor& out) {
  if (out.sizes() != whole.sizes()) resize_global(out, whole.sizes());
  const auto& spec = *as_dtensor(out.unsafeGetTensorImpl())->spec();
  out.copy_(make_dtensor(
      intern_spec(spec.mesh, Placements(spec.placements.size()), whole.sizes(), whole.strides(), whole.scalar_type()),
      whole));
}

}  // namespace

void factory_out_special(const OpEntry& entry, torch::jit::Stack& stack) {
  const at::Tensor out = stack.back().toTensor();
  const auto first = stack.size() - entry.args.size();
  if (entry.is_random || entry.name().name == "aten::normal") {
    fill_randomly(entry, stack, out);
  } else {
    const auto* impl = as_dtensor(out.unsafeGetTensorImpl());
    stack.back() = at::empty({0}, at::TensorOptions(out.scalar_type()).device(at::Device(impl->spec()->mesh->device)));
    entry.op.callBoxed(stack);
    copy_whole(stack.back().toTensor(), out);
  }
  stack.resize(first);
  stack.emplace_back(out);
}

}  // namespace dtensor
