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
DTensor halves(const at::Tensor& full, const DeviceMesh& mesh) {
  return DTensor::from_local(full / 2, mesh, {Partial()}, full.sizes(), full.strides());
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

// What a rank's own tensor is like decides nothing about what ranks send together.
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
