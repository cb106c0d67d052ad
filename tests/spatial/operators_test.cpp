// Spatial operators on images whose spatial dimensions are sharded equal one device: values, gradients and second
// derivatives.
#include "spatial/operators.h"

#include <torch/torch.h>

#include "support/draws.h"

namespace dtensor::test {
namespace {

// The result, the gradients of its weighted sum, and the gradients of their weighted sum. `leaves`: the operator's
// leaves, then the weights of the result, then those of the gradients.
Tensors derivatives(const SpatialOperator& op, const Tensors& leaves) {
  const std::size_t count = op.sizes.size();
  const Tensors operands(leaves.begin(), leaves.begin() + static_cast<std::ptrdiff_t>(count + 1));
  const at::Tensor y = op.run(leaves);
  const auto first = torch::autograd::grad({(y * leaves[count]).sum()}, operands, {}, true, true);
  at::Tensor sum = (first[0] * leaves[count + 1]).sum();
  for (std::size_t i = 1; i < count; ++i) sum = sum + (first[i] * leaves[count + 1 + i]).sum();
  const auto second = torch::autograd::grad({sum}, operands, {}, std::nullopt, false, /*allow_unused=*/true);
  Tensors all{y.detach()};
  for (const auto& t : first) all.push_back(t.detach());
  for (std::size_t i = 0; i < second.size(); ++i) {
    all.push_back(second[i].defined() ? second[i].detach() : at::zeros_like(operands[i]).detach());
  }
  return all;
}

Placements spatial_placements(Draw& draw, const SpatialOperator& op, std::size_t axes) {
  Placements placements;
  for (std::size_t a = 0; a < axes; ++a) {
    const auto dim = 2 + draw.integer(0, op.dims - 1);
    const auto pick = draw.integer(0, 9);
    placements.push_back(pick == 0   ? Placement(Replicate())
                         : pick == 1 ? Placement(Shard(0))
                         : pick == 2 ? Placement(ZigzagShard(dim))
                                     : Placement(Shard(dim)));
  }
  return placements;
}

void check_operator(const Shape& mesh_shape, std::uint64_t seed) {
  on_mesh(mesh_shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const auto op = spatial_operator(draw, static_cast<int>(draw.integer(0, kSpatialKinds - 1)), 1, 13);
    const Placements placements = spatial_placements(draw, op, mesh_shape.size());
    Tensors values;
    for (const Shape& sizes : op.sizes) values.push_back(draw.normal(sizes));
    values.push_back(draw.normal(op.run(values).sizes().vec()));
    for (const Shape& sizes : op.sizes) values.push_back(draw.normal(sizes));
    Tensors regular, placed;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool image = i == 0 || i == op.sizes.size() + 1;
      regular.push_back(values[i].clone().requires_grad_());
      placed.push_back(
          at::Tensor(distribute_tensor(values[i], mesh, image ? placements : Placements(mesh_shape.size())))
              .requires_grad_());
    }
    const auto expected = derivatives(op, regular), got = derivatives(op, placed);
    for (std::size_t i = 0; i < got.size(); ++i) {
      expect_close(got[i], expected[i],
                   c10::str(op.text, " of ", at::IntArrayRef(op.sizes[0]), " on ", to_string(placements), " of ",
                            at::IntArrayRef(mesh_shape), ", tensor ", i, ", seed ", seed),
                   1e-8);
    }
  });
}

// With SPATIAL_DRAWS and SPATIAL_SEED: the number of draws and the first seed.
TEST(SpatialOperators, EqualOneDevice) {
  const char *count = std::getenv("SPATIAL_DRAWS"), *seed = std::getenv("SPATIAL_SEED");
  const std::vector<Shape> shapes{{2}, {3}, {2, 2}, {2, 2, 2}};
  const int draws = count != nullptr ? std::atoi(count) : 200, first = seed != nullptr ? std::atoi(seed) : 0;
  for (int i = 0; i < draws; ++i) {
    check_operator(shapes[static_cast<std::size_t>(first + i) % shapes.size()], static_cast<std::uint64_t>(first + i));
    if (HasFailure()) FAIL() << "draw " << first + i;
  }
}

}  // namespace
}  // namespace dtensor::test
