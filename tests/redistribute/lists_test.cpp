// Lists of tensors that are redistributed together on ranks that have different entries.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace dtensor {
namespace {

// Two meshes with one common rank; the other ranks have one entry of a list each.
struct Overlapping {
  explicit Overlapping(const Communicator& world)
      : left(device_mesh(world, at::kCPU, {0, 1}, {2})), right(device_mesh(world, at::kCPU, {1, 2}, {2})) {}
  DeviceMesh left, right;
};

// A Partial with half of `full` on each rank of the mesh, with the strides of `full`.
DTensor halves(const at::Tensor& full, const DeviceMesh& mesh) {
  return DTensor::from_local(full / 2, mesh, {Partial()}, full.sizes(), full.strides());
}

at::Tensor numbers(double first) { return at::arange(first, first + 9, at::kDouble).view({3, 3}); }

TEST(Lists, PartialsOfOtherMeshesAreReducedByTheirRanks) {
  run_local(3, [](const Communicator& world) {
    const Overlapping meshes(world);
    const at::Tensor a = numbers(1), b = numbers(2);
    const auto roots = at::_foreach_sqrt({halves(a, meshes.left), halves(b, meshes.right)});
    if (meshes.left.is_member()) test::expect_close(roots[0], a.sqrt(), "left");
    if (meshes.right.is_member()) test::expect_close(roots[1], b.sqrt(), "right");
  });
}

// A rank with one entry sends it directly, a rank with two packs them: both must send elements in the same order.
TEST(Lists, EntriesWithDifferentStridesMatchOnRanksWithMoreEntries) {
  run_local(3, [](const Communicator& world) {
    const Overlapping meshes(world);
    const at::Tensor a = numbers(1).t(), b = numbers(2);
    const auto roots = at::_foreach_sqrt({halves(a, meshes.left), halves(b, meshes.right)});
    if (meshes.left.is_member()) test::expect_close(roots[0], a.sqrt(), "left");
    if (meshes.right.is_member()) test::expect_close(roots[1], b.sqrt(), "right");
  });
}

// Properties of a local tensor must not affect which collectives the ranks call.
TEST(Lists, ConjugateBitsOfOneRankDoNotDivergeCalls) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const bool first = mesh.coordinate()->at(0) == 0;
    const at::Tensor a = at::complex(numbers(0), numbers(5)).t();
    const at::Tensor conjugate = first ? a.conj() : a.conj().resolve_conj();
    const at::Tensor zeros = first ? at::_efficientzerotensor({3, 3}, a.options()) : at::zeros_like(a);
    for (const at::Tensor& local : {conjugate, zeros}) {
      const auto share = DTensor::from_local(local, mesh, {Partial()}, {3, 3}, a.strides());
      const DTensor full = DTensor::from_local(numbers(1), mesh, {Replicate()}, {3, 3});
      const auto alone = redistribute({share, full}, {{Replicate()}, {Replicate()}});
      EXPECT_TRUE(at::equal(alone[0].to_local(), 2 * local));
      const auto packed = redistribute({share, share}, {{Replicate()}, {Replicate()}});
      EXPECT_TRUE(at::equal(packed[1].to_local(), 2 * local));
    }
  });
}

}  // namespace
}  // namespace dtensor
