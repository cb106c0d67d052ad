// squeeze of a split dimension: a rank that holds one of its elements must not drop it, so the local call names the
// dimensions that have size 1 in the whole.
#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

void squeeze_global(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  const auto sizes = args.global_sizes("self");
  std::vector<std::int64_t> dims;
  for (const auto d : args.reduced_dims()) {
    if (sizes[static_cast<std::size_t>(d)] == 1) dims.push_back(d);
  }
  const auto name = base_name(call);
  if (name == "squeeze_copy") return give(call, {self.squeeze(dims).clone()});
  const bool in_place = name.back() == '_';
  torch::jit::drop(call.stack, call.op.schema().arguments().size());
  call.stack.emplace_back(in_place ? self.squeeze_(dims) : self.squeeze(dims));
}

}  // namespace

void register_squeeze_kernels() { register_local_kernel("squeeze_global", squeeze_global); }

}  // namespace dtensor
