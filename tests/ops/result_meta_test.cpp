// Dtypes and strides of results equal those of one device where LibTorch's meta kernels are missing or wrong.
#include "support/ranks.h"

namespace dtensor::test {
namespace {

void expect_like(const at::Tensor& result, const at::Tensor& expected, const std::string& what) {
  EXPECT_EQ(result.scalar_type(), expected.scalar_type()) << what;
  EXPECT_EQ(result.strides(), expected.strides()) << what;
  expect_close(result, expected, what);
}

// The meta kernel gives a byte for the sum of bytes, but the local result is a long.
TEST(ResultMeta, TraceOfIntegersIsLong) {
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

// Results are contiguous or channels-last, so that `view` accepts the same sizes as on one device.
TEST(ResultMeta, NormsAndLogSigmoidHaveSingleDeviceStrides) {
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

// The meta kernel gives the mask the dtype of the operand, which the derivative refuses.
TEST(ResultMeta, FakeQuantizationMaskIsBool) {
  const auto lines = Draw(3).normal({6, 4}, at::kFloat).mul(3), scale = at::full({6}, 0.1f);
  const auto zero = at::zeros({6}, at::kInt);
  for (const auto& x : {lines, Draw(4).normal({4, 6}, at::kFloat).t()}) {
    const auto [values, mask] = at::fake_quantize_per_tensor_affine_cachemask(x, 0.1, 0, -8, 7);
    const auto [rows, rows_mask] = at::fake_quantize_per_channel_affine_cachemask(x, scale, zero, 0, -8, 7);
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      on_mesh({2}, [&, values = values, mask = mask, rows = rows, rows_mask = rows_mask](const DeviceMesh& mesh) {
        const auto d = distribute_tensor(x, mesh, {placement});
        const auto [v, m] = at::fake_quantize_per_tensor_affine_cachemask(d, 0.1, 0, -8, 7);
        const auto [r, n] = at::fake_quantize_per_channel_affine_cachemask(d, scale, zero, 0, -8, 7);
        expect_like(v, values, "values"), expect_like(m, mask, "mask");
        expect_like(r, rows, "rows"), expect_like(n, rows_mask, "mask of rows");
        auto leaf = distribute_tensor(x, mesh, {placement}).requires_grad_();
        at::fake_quantize_per_tensor_affine(leaf, 0.1, 0, -8, 7).sum().backward();
        expect_close(leaf.grad(), mask.to(at::kFloat), "gradient");
      });
    }
  }
}

TEST(ResultMeta, ProductsHaveTheRequestedOrAccumulationDtype) {
  const auto bytes = Draw(5).integers({8, 16}, 100).to(at::kChar);
  const auto other = Draw(6).integers({16, 24}, 100).to(at::kChar);
  const auto a = Draw(7).normal({16, 32}).to(at::kFloat8_e4m3fn);
  const auto b = Draw(8).normal({8, 32}).to(at::kFloat8_e4m3fn).t();
  const auto one = at::ones({}, at::kFloat), rows = at::rand({16, 1}), columns = at::rand({1, 8});
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto product = at::_int_mm(distribute_tensor(bytes, mesh, {Shard(0)}), other);
    EXPECT_EQ(product.scalar_type(), DTensor(product).to_local().scalar_type());
    expect_like(product, at::_int_mm(bytes, other), "int_mm");
    const auto split = distribute_tensor(a, mesh, {Shard(0)});
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const auto expected = at::_scaled_mm(a, b, one, one, {}, {}, type);
      expect_like(at::_scaled_mm(split, b, one, one, {}, {}, type), expected, "one scale");
    }
    const auto scaled = at::_scaled_mm(split, b, rows, columns, {}, {}, at::kBFloat16);
    EXPECT_EQ(DTensor(scaled).placements(), (Placements{Shard(0)}));
    expect_like(scaled, at::_scaled_mm(a, b, rows, columns, {}, {}, at::kBFloat16), "by rows and columns");
  });
}

}  // namespace
}  // namespace dtensor::test
