// List operators process their positions in order, also if a written tensor is redistributed: a tensor may occur twice
// in a list, or as an operand of another position.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Step = std::function<void(const Tensors&)>;

// Compares regular tensors with DTensors that are all Partial with different local values, or have random placements.
void equals_one_device(const char* name, const Step& step, double tolerance = 1e-8) {
  for_all(name, [&](const DeviceMesh& mesh, Draw& draw) {
    Tensors regular, placed;
    const bool shares = draw.coin();
    for (int i = 0; i < 3; ++i) {
      regular.push_back(draw.normal({3, 2}).abs().add(0.5));
      const auto placements = shares ? all_axes(mesh, Partial()) : any_placements(draw, mesh, 2);
      placed.push_back(place_unequal(draw, regular.back(), mesh, placements));
    }
    step(regular);
    step(placed);
    for (std::size_t i = 0; i < regular.size(); ++i)
      require_close(placed[i], regular[i], c10::str(name, " ", i), tolerance);
  });
}

TEST(ListOrder, DuplicateTensorIsWrittenTwice) {
  equals_one_device("sqrt", [](const Tensors& t) { at::_foreach_sqrt_({t[0], t[1], t[0]}); });
  equals_one_device("add", [](const Tensors& t) { at::_foreach_add_({t[0], t[0]}, {t[1], t[2]}, 0.5); });
  equals_one_device("pow", [](const Tensors& t) {
    at::_foreach_add_({t[0], t[0], t[1]}, c10::ArrayRef<at::Scalar>({0.25, 0.5, 2.0}));
  });
}

TEST(ListOrder, LaterPositionsReadEarlierWrites) {
  equals_one_device("add", [](const Tensors& t) { at::_foreach_add_({t[0], t[1]}, {t[2], t[0]}); });
  equals_one_device("mul", [](const Tensors& t) { at::_foreach_mul_({t[0], t[1]}, {t[1], t[0]}); });
  equals_one_device("copy", [](const Tensors& t) { at::_foreach_copy_({t[0], t[1]}, {t[1], t[0]}); });
  equals_one_device("addcmul", [](const Tensors& t) {
    at::_foreach_addcmul_({t[0], t[1]}, {t[1], t[0]}, {t[2], t[2]}, at::tensor({0.5, 2.0}, at::kDouble));
  });
}

TEST(ListOrder, FusedOptimizerWithDuplicateTensor) {
  equals_one_device("sgd", [](const Tensors& t) {
    at::_fused_sgd_({t[0], t[0]}, {t[1], t[2]}, {}, 0.0, 0.0, 0.5, 0.0, false, false, false);
  });
}

// A rank uses the scalars of the positions whose meshes contain it, in any order of meshes.
TEST(ListOrder, ScalarTensorForPositionsOnSeveralMeshes) {
  run_local(2, [](Communicator world) {
    const auto both = init_device_mesh(world, at::kCPU, {2}), first = device_mesh(world, at::kCPU, {0}, {1});
    const at::Tensor numbers = at::tensor({0.5, 2.0}, at::kDouble);
    for (const auto& meshes : {std::vector{both, first}, std::vector{first, both}}) {
      const auto filled = [&](double value) {
        Tensors all;
        for (const auto& mesh : meshes) {
          all.push_back(distribute_tensor(at::full({3}, value, at::kDouble), mesh, {Replicate()}));
        }
        return all;
      };
      const Tensors sums = filled(1), quotients = at::_foreach_addcdiv(filled(1), filled(6), filled(3), numbers);
      at::_foreach_addcmul_(sums, filled(2), filled(5), numbers);
      for (std::size_t k = 0; k < meshes.size(); ++k) {
        if (!meshes[k].is_member()) continue;
        const auto factor = numbers[static_cast<std::int64_t>(k)].item<double>();
        require_close(sums[k], at::full({3}, 1 + factor * 10, at::kDouble), c10::str("addcmul_ ", k));
        require_close(quotients[k], at::full({3}, 1 + factor * 2, at::kDouble), c10::str("addcdiv ", k));
      }
    }
  });
}

// Ranks outside the mesh write nothing, and no rank waits.
TEST(ListOrder, MeshOnPartOfTheWorld) {
  run_local(3, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    const auto mine = at::full({2}, 0.5 + world.rank(), at::kDouble);
    const auto a =
        DTensor::from_local(mesh.is_member() ? mine : at::empty({0}, at::kDouble), mesh, {Partial()}, {2}, {1});
    at::_foreach_exp_({a, a});
    if (mesh.is_member()) require_close(a, at::full({2}, 2.0, at::kDouble).exp().exp(), "exp");
  });
}

}  // namespace
}  // namespace dtensor::test
