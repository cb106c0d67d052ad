// The gradients of an expert's linear layer in a BitIdentical scope.
#include "moe/experts/linear_over_blocks.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"
#include "internal/autocast.h"
#include "internal/bit_identical.h"
#include "internal/microbatch_sums.h"
#include "internal/multiply_over_blocks.h"
#include "moe/local_function.h"

namespace dtensor::moe {

at::Tensor rows_of_blocks(const Routing& routing, const DispatchPlan& plan, std::int64_t length,
                          const TokenLayout& layout) {
  const LocalNoGradGuard regular;
  const auto block = bit_identical_block(), in_sequence = (length + block - 1) / block;
  const auto blocks = length == 0 ? 0 : layout.total / length * in_sequence;
  const auto token = at::arange(layout.first, layout.first + routing.experts.size(0), at::kLong).unsqueeze(1);
  const auto of_token = token.floor_divide(length) * in_sequence + token.remainder(length).floor_divide(block);
  const auto entry = (routing.experts * blocks + of_token).masked_select(plan.position.ge(0));
  const auto counts = at::bincount(entry, {}, routing.expert_count * blocks);
  if (layout.ranks && layout.ranks.size() > 1) layout.ranks.all_reduce(counts, ReduceOp::sum).wait();
  return counts.view({routing.expert_count, blocks});
}

namespace {

// Whether the rows of each rank end with a block.
bool end_with_blocks(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& blocks) {
  std::int64_t end = 0, end_of_block = 0;
  auto block = blocks.begin();
  for (const auto size : sizes) {
    end += size;
    while (end_of_block < end && block != blocks.end()) end_of_block += *block++;
    if (end_of_block != end) return false;
  }
  return true;
}

}  // namespace

RowBlocks row_blocks(const at::Tensor& rows, const std::vector<std::int64_t>& sizes) {
  const auto* first = rows.const_data_ptr<std::int64_t>();
  RowBlocks blocks{{first, first + rows.numel()}, Replicate()};
  TORCH_INTERNAL_ASSERT(c10::sum_integers(blocks.rows) == c10::sum_integers(sizes), "each row is in a block");
  if (sizes.size() > 1 && end_with_blocks(sizes, blocks.rows)) blocks.shard = RaggedShard(0, sizes);
  return blocks;
}

namespace {

struct LinearOverBlocksBackward final : Node {
  LinearOverBlocksBackward(const at::Tensor& rows, const DTensor& w, RowBlocks b, RegatherWeight a)
      : x(rows, false),
        weight(a ? at::Tensor() : at::Tensor(w), false),
        mesh(w.mesh()),
        placements(w.placements()),
        sizes(w.sizes()),
        blocks(std::move(b)),
        again(std::move(a)) {}
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    TORCH_CHECK(!at::GradMode::is_enabled(), "experts in a BitIdentical scope do not support double backward");
    const NoMeshScopeGuard regular;
    const DTensor grad(grads[0]), rows(x.unpack());
    at::Tensor dx, dw;
    if (task_should_compute_output(0)) dx = at::linear(grad, (again ? again() : weight.unpack()).t());
    if (task_should_compute_output(1)) dw = gradient_of_weight(grad, rows);
    return {dx, dw};
  }
  // The rows are gathered if ranks have parts of a block. A sharded dimension of the weight is one of grad or rows.
  at::Tensor gradient_of_weight(const DTensor& grad, const DTensor& rows) const {
    Placements of_grad(mesh.ndim()), of_rows = of_grad;
    for (std::size_t a = 0; a < placements.size(); ++a) {
      if (placements[a].is_shard()) (placements[a].is_shard(0) ? of_grad : of_rows)[a] = Shard(1);
    }
    of_grad[0] = of_rows[0] = blocks.shard;
    const auto sum = multiply_over_blocks(grad.redistribute(of_grad), rows.redistribute(of_rows), blocks.rows);
    if (at::isReducedFloatingType(rows.scalar_type())) note_indivisible_sum(kRoundedGradients);
    return DTensor::from_local(sum.to(rows.scalar_type()), mesh, placements, sizes);
  }
  void release_variables() override {
    x.reset_data();
    weight.reset_data();
  }
  std::string name() const override { return "LinearOverBlocksBackward"; }
  SavedVariable x, weight;
  DeviceMesh mesh;
  Placements placements;
  at::DimVector sizes;
  RowBlocks blocks;
  RegatherWeight again;
};

}  // namespace

at::Tensor linear_over_blocks(const at::Tensor& x, const at::Tensor& weight, const RowBlocks& blocks,
                              RegatherWeight again) {
  if (!needs_graph(x, weight)) return at::linear(x, weight);
  const auto rows = cast_as_autocast(x), used = cast_as_autocast(weight);
  at::Tensor result;
  {
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    result = at::linear(rows, used);
  }
  if (again) again = [again, type = used.scalar_type()] { return again().to(type); };
  const auto node = make_node<LinearOverBlocksBackward>(rows, DTensor(used), blocks, std::move(again));
  return with_node(result, node, rows, used);
}

}  // namespace dtensor::moe
