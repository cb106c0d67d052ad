// Factories with out=. Every rank computes the full tensor, which has no operands, and keeps its shard. Random
// factories fill the DTensor in place, by global index.
#include <ATen/ATen.h>

#include "ops/local_kernels/special/special_kernel.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

void copy_full(const at::Tensor& full, const at::Tensor& out) {
  if (out.sizes() != full.sizes()) resize_global(out, full.sizes());
  const auto& spec = *as_dtensor(out.unsafeGetTensorImpl())->spec();
  out.copy_(make_dtensor(
      intern_spec(spec.mesh, Placements(spec.placements.size()), full.sizes(), full.strides(), full.scalar_type()),
      full));
}

const c10::IValue* argument(const OpInfo& op, c10::ArrayRef<c10::IValue> args, const char* name) {
  const auto index = op.schema().argumentIndexWithName(name);
  return index ? &args[static_cast<std::size_t>(*index)] : nullptr;
}

}  // namespace

void check_no_generator(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  TORCH_CHECK(
      op.generator_arg < 0 || args[static_cast<std::size_t>(op.generator_arg)].isNone(), op.name(),
      ": expected no generator, got one; the random values of a DTensor depend on the mesh's random state, which "
      "manual_seed(mesh, seed) sets");
}

void draw_as(const OpInfo& op, c10::ArrayRef<c10::IValue> args, const at::Tensor& out) {
  const std::string& name = op.name().name;
  const auto given = [&](const char* what) { return argument(op, args, what); };
  if (name == "aten::rand") return out.uniform_(), void();
  if (name == "aten::randn") return out.normal_(), void();
  if (name == "aten::normal") return out.normal_(given("mean")->toDouble(), given("std")->toDouble()), void();
  TORCH_CHECK_NOT_IMPLEMENTED(
      name == "aten::randint", op.name(),
      " does not support DTensors; create the tensor on one rank and use distribute_tensor_from");
  out.random_(given("low") == nullptr ? 0 : given("low")->toInt(), given("high")->toInt());
}

void factory_out_special(const OpEntry& entry, torch::jit::Stack& stack) {
  const at::Tensor out = stack.back().toTensor();
  const auto args = torch::jit::last(stack, entry.args.size());
  check_no_generator(entry, args);
  if (entry.is_random || entry.name().name == "aten::normal") {
    const auto* sizes = argument(entry, args, "size");
    TORCH_CHECK_NOT_IMPLEMENTED(sizes != nullptr, entry.name(),
                                " does not support out= with a DTensor; call randperm in ", "a MeshScope");
    resize_global(out, sizes->toIntVector());
    draw_as(entry, args, out);
  } else {
    const auto* impl = as_dtensor(out.unsafeGetTensorImpl());
    torch::jit::Stack call = args.vec();
    call.back() = at::empty({0}, at::TensorOptions(out.scalar_type()).device(at::Device(impl->spec()->mesh->device)));
    entry.op.callBoxed(call);
    copy_full(call.back().toTensor(), out);
  }
  torch::jit::drop(stack, entry.args.size());
  stack.emplace_back(out);
}

}  // namespace dtensor
