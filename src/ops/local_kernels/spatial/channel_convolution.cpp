// Convolutions on a shard of the channels or groups: the ATen operator with local counts in place of global ones.
#include "ops/local_kernels/local_args.h"
#include "ops/local_kernels/spatial/spatial_convolution.h"

namespace dtensor {
namespace {

// The number of groups of this shard, in proportion to its input channels.
std::int64_t local_groups(const LocalArgs& args) {
  if (args.integer("groups") == 1) return 1;
  const auto in_part = args.tensor("input").size(1), in_full = args.global_sizes("input")[1];
  return args.integer("groups") * in_part / in_full;
}

void skip_empty(LocalCall& call) {
  if (!return_zeros_if_empty(call)) call.info.op.callBoxed(call.stack);
}

void convolution(LocalCall& call) {
  const LocalArgs args(call);
  if (shards_spatial_dims(args.spec("input"))) {
    return args.flag("transposed") ? conv_transpose_sharded_spatial(call, local_groups(args))
                                   : convolve_sharded_spatial(call, local_groups(args));
  }
  if (return_zeros_if_empty(call)) return;
  set_argument(call, "groups", local_groups(args));
  call.info.op.callBoxed(call.stack);
}

void convolution_backward(LocalCall& call) {
  const LocalArgs args(call);
  const bool split = shards_spatial_dims(args.spec("input"));
  if (!split && return_zeros_if_empty(call)) return;
  if (split) {
    return args.flag("transposed") ? conv_transpose_sharded_spatial_backward(call, local_groups(args))
                                   : convolve_sharded_spatial_backward(call, local_groups(args));
  }
  set_argument(call, "groups", local_groups(args));
  if (!args.value("bias_sizes").isNone()) {
    set_argument(call, "bias_sizes", std::vector{args.tensor("grad_output").size(1)});
  }
  call.info.op.callBoxed(call.stack);
}

}  // namespace

void add_convolution_kernels(LocalKernels& kernels) {
  kernels.emplace("skip_empty", skip_empty);
  kernels.emplace("convolution_local", convolution);
  kernels.emplace("convolution_backward_local", convolution_backward);
  kernels.emplace("pad_split", pad_split);
  kernels.emplace("flip_split", flip_split);
}

}  // namespace dtensor
