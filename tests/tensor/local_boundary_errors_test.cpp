// Invalid arguments at the local/global boundary raise the same error on every rank and change nothing.
#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "internal/gather_hook.h"
#include "internal/gradient_hooks.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

at::Tensor numbers() { return at::arange(8, at::kDouble).view({4, 2}); }

TEST(LocalGlobalBoundaryErrors, LocalMapOptionsNeedOneEntryPerTensor) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(numbers(), mesh, {Shard(0)}).requires_grad_();
    const auto message = [&](const std::vector<Placements>& outputs, const LocalMapOptions& options) {
      const auto sum = [](const auto& in) { return std::vector<at::Tensor>{in[0] + in[1]}; };
      return error_of([&] { local_map(sum, {x, x}, outputs, options); });
    };
    EXPECT_NE(message({{Shard(0)}}, {{}, {{Shard(0)}}, {}}).find("1 in_grad_placements for 2 inputs"),
              std::string::npos);
    EXPECT_NE(message({{Shard(0)}}, {{{Shard(0)}}, {}, {}}).find("1 in_placements for 2 inputs"), std::string::npos);
    EXPECT_NE(message({{Shard(0)}}, {{}, {}, {{4, 2}, {4, 2}}}).find("2 out_sizes for 1 out_p"), std::string::npos);
    EXPECT_NE(message({{}}, {}).find("one placement per mesh dimension is needed"), std::string::npos);
    EXPECT_EQ(message({{Shard(0)}}, {}), "no error");
  });
}

// Placements refer to the axes of one mesh, so inputs of another mesh are refused.
TEST(LocalGlobalBoundaryErrors, LocalMapInputsMustBeOnOneMesh) {
  run_local(4, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"a", "b"});
    const at::Tensor x = distribute_tensor(numbers(), mesh, {Replicate(), Replicate()});
    const at::Tensor y = distribute_tensor(numbers(), mesh["b"], {Shard(0)});
    const auto sum = [](const auto& in) { return std::vector<at::Tensor>{in[0] + in[1].sum()}; };
    const auto error = error_of([&] { local_map(sum, {x, y}, {{Replicate(), Replicate()}}); });
    EXPECT_NE(error.find("inputs on two meshes"), std::string::npos) << error;
  });
}

TEST(LocalGlobalBoundaryErrors, UndefinedTensorsAndNegativeStridesAreRefused) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const bool first = mesh.coordinate()->at(0) == 0;
    const auto nothing = [&] { DTensor::from_local(first ? at::ones({1}) : at::Tensor(), mesh, {Shard(0)}, {1}); };
    EXPECT_EQ(error_of(nothing).find("from_local: expected a defined tensor") != std::string::npos, !first);
    const auto backwards = [&] { DTensor::from_local(at::ones({2, 2}), mesh, {Shard(0)}, {4, 2}, {-2, 1}); };
    EXPECT_NE(error_of(backwards).find("from_local: expected strides >= 0, got [-2, 1]"), std::string::npos);
    EXPECT_EQ(DTensor::from_local(at::ones({first ? 1 : 0}), mesh, {Shard(0)}, {1}).numel(), 1);
  });
}

// Like a wrapper subclass of Python: sizes, and a storage without memory.
at::Tensor without_memory() {
  const at::Tensor like = numbers();
  c10::Storage storage(c10::Storage::use_byte_size_t(), like.nbytes(), at::DataPtr(nullptr, at::kCPU));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), like.key_set(), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return tensor;
}

TEST(LocalGlobalBoundaryErrors, TensorsWithoutMemoryAreRefused) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const at::Tensor& tensor : {without_memory(), numbers().to_sparse()}) {
      for (const auto& error : {error_of([&] {
                                  DTensor::from_local(tensor, mesh, {Shard(0)}, {8, 2});
                                }),
                                error_of([&] { distribute_tensor(tensor, mesh, {Shard(0)}); }),
                                error_of([&] { distribute_tensor_from(tensor, mesh, {Shard(0)}, 0); }), error_of([&] {
                                  auto weight = tensor;
                                  fully_shard({{"weight", &weight}}, mesh);
                                })}) {
        EXPECT_NE(error.find("expected a tensor with memory of its own"), std::string::npos) << error;
      }
    }
    EXPECT_EQ(distribute_tensor(at::_efficientzerotensor({4}, at::kFloat), mesh, {Shard(0)}).numel(), 4);
    EXPECT_EQ(distribute_tensor(at::empty({0, 3}), mesh, {Shard(0)}).numel(), 0);
  });
}

TEST(LocalGlobalBoundaryErrors, UndefinedTensorsHaveNoGradientsAndAreNotGathered) {
  EXPECT_NE(error_of([] { gradient_placements(DTensor()); }).find("undefined DTensor"), std::string::npos);
  EXPECT_NE(error_of([] { gathered_local(DTensor(), {Replicate()}); }).find("undefined DTensor"), std::string::npos);
}

// Gradients are not storage shards or Partial.
TEST(LocalGlobalBoundaryErrors, GradientsAreRedistributedToGradientPlacements) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    DTensor x = distribute_tensor(numbers(), mesh, {Shard(1)});
    x.requires_grad_();
    x.square().sum().backward();
    for (const auto& p : {Placement(Shard(0).as_storage()), Placement(Partial()), Placement(Replicate())}) {
      x.redistribute_({p});
      EXPECT_EQ(DTensor(x.grad()).placements(), gradient_placements(x)) << p.str();
      expect_close(x.grad(), numbers() * 2, "gradient");
    }
  });
}

}  // namespace
}  // namespace dtensor::test
