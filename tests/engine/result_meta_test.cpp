// Types and orders of memory of results are those of one device, where LibTorch has no meta kernel that says so.
#include "support/ranks.h"

namespace dtensor::test {
namespace {

void expect_like(const at::Tensor& result, const at::Tensor& expected, const std::string& what) {
  EXPECT_EQ(result.scalar_type(), expected.scalar_type()) << what;
  EXPECT_EQ(result.strides(), expected.strides()) << what;
  expect_close(result, expected, what);
}

// A sum of bytes that was said to be a byte, over a local tensor of longs.
TEST(ResultMeta, TheTraceOfIntegersIsALong) {
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    const auto x = at::full({20, 20}, 100, type);
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      on_mesh({2}, [&](const DeviceMesh& mesh) {
        const auto trace = at::trace(distribute_tensor(x, mesh, {placement}));
        EXPECT_EQ(trace.scalar_type(), at::kLong) << type;
        EXPECT_EQ(DTensor(trace).to_local().scalar_type(), at::kLong) << type;
        EXPECT_EQ((trace + 1).item<std::int64_t>(), 2001) << type;
      });
    }
  }
}

// Contiguous or of channels last, so that `view` takes what it takes on one device.
TEST(ResultMeta, NormsAndLogSigmoidLieAsOnOneDevice) {
  const auto lines = Draw(1).normal({4, 5, 3}), images = Draw(2).normal({4, 5, 6, 3});
  for (const auto& x : {lines, lines.transpose(1, 2), lines.permute({2, 0, 1}), images, images.permute({0, 3, 1, 2}),
                        images.permute({0, 3, 2, 1}), images.transpose(1, 2)}) {
    const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>> operators{
        {"batch norm", [](const auto& t) { return at::batch_norm(t, {}, {}, {}, {}, true, 0.1, 1e-5, false); }},
        {"group norm", [](const auto& t) { return at::group_norm(t, 1); }},
        {"log sigmoid", [](const auto& t) { return at::log_sigmoid(t); }}};
    for (const auto& [name, run] : operators) {
      const auto expected = run(x);
      for (const auto& placement : {Shard(0), Shard(2), Replicate()}) {
        on_mesh({2}, [&, &name = name, &run = run](const DeviceMesh& mesh) {
          expect_like(run(distribute_tensor(x, mesh, {placement})), expected,
                      c10::str(name, " of strides ", x.strides(), ' ', placement.str()));
        });
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::test
