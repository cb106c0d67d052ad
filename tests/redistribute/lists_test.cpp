// Lists of tensors that move together, on ranks that hold different entries of them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace dtensor {
namespace {

// Two meshes that have one rank in common: the others hold one entry of a list each.
struct Overlapping {
  explicit Overlapping(const Communicator& world)
      : left(device_mesh(world, at::kCPU, {0, 1}, {2})), right(device_mesh(world, at::kCPU, {1, 2}, {2})) {}
  DeviceMesh left, right;
};

// Half of `whole` on each rank of the mesh, laid out as `whole`.
DTensor halves(const at::Tensor& whole, const DeviceMesh& mesh) {
  return DTensor::from_local(whole / 2, mesh, {Partial()}, whole.sizes(), whole.strides());
}

at::Tensor numbers(double first) { return at::arange(first, first + 9, at::kDouble).view({3, 3}); }

TEST(Lists, PartialsOfMeshesThatARankIsNotInAreReducedByOthers) {
  run_local(3, [](const Communicator& world) {
    const Overlapping meshes(world);
    const at::Tensor a = numbers(1), b = numbers(2);
    const auto roots = at::_foreach_sqrt({halves(a, meshes.left), halves(b, meshes.right)});
    if (meshes.left.is_member()) test::expect_close(roots[0], a.sqrt(), "left");
    if (meshes.right.is_member()) test::expect_close(roots[1], b.sqrt(), "right");
  });
}

// A rank that holds one entry moves it by itself, one that holds two packs them: element by element the same.
TEST(Lists, EntriesLaidOutOtherwiseMeetThoseOfRanksThatHoldMore) {
  run_local(3, [](const Communicator& world) {
    const Overlapping meshes(world);
    const at::Tensor a = numbers(1).t(), b = numbers(2);
    const auto roots = at::_foreach_sqrt({halves(a, meshes.left), halves(b, meshes.right)});
    if (meshes.left.is_member()) test::expect_close(roots[0], a.sqrt(), "left");
    if (meshes.right.is_member()) test::expect_close(roots[1], b.sqrt(), "right");
  });
}

}  // namespace
}  // namespace dtensor
