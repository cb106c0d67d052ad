// as_strided of expanded DTensors, whose memory has strides of zero.
#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

struct Pattern {
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset;
};

// x [3] as [4, 3] with strides [0, 1].
TEST(AsStrided, ExpandedTensorMatchesSingleDevice) {
  for (const auto& p : {Pattern{{2, 3}, {0, 1}, 0},
                        {{4, 2}, {0, 2}, 0},
                        {{3, 2}, {1, 0}, 0},
                        {{2}, {1}, 1},
                        {{1, 3}, {7, 1}, 0},
                        {{4}, {0}, 2}}) {
    equal_everywhere(
        "as_strided", {at::arange(3, at::kDouble) + 1},
        [&](const std::vector<at::Tensor>& in) {
          return at::as_strided(in[0].expand({4, 3}), p.sizes, p.strides, p.offset) * 2;
        },
        true, 3);
  }
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = distribute_tensor(at::arange(3), mesh, {Replicate()}).expand({4, 3});
    EXPECT_TRUE(raises(mesh, [&] { at::as_strided(x, {5, 3}, {0, 1}); }));
  });
}

}  // namespace
}  // namespace dtensor::test
