// Reductions built from other collectives equal those of the backend.
#include "comm/composite/reduce_by_exchange.h"
#include "comm/fixture.h"
#include "dtensor/comm_backend.h"

namespace dtensor::test {
namespace {

class ReduceViaAllToAll : public ::testing::TestWithParam<int> {};

CollectiveCall next_call(CommBackend& backend, CollectiveKind kind, at::ScalarType dtype, ReduceOp op) {
  CollectiveCall call{.kind = kind, .op = op, .dtype = dtype};
  call.sequence = backend.next_sequence(kind);
  return call;
}

// Values for what NCCL lacks: float with NaN, products of complex numbers, short integers that wrap.
at::Tensor values(at::IntArrayRef sizes, at::ScalarType dtype, std::int64_t seed) {
  at::Tensor t = sample(sizes, at::kDouble, seed);
  if (dtype == at::kShort) return (t * 13000).to(at::kLong).to(at::kShort);
  if (c10::isComplexType(dtype)) return at::complex(t / 3, t - 2).to(dtype);
  t = t / 3 - 0.7;
  if (t.numel() > 2) t.view(-1)[seed % t.numel()] = std::nan("");
  return t.to(dtype);
}

struct Kind {
  at::ScalarType dtype;
  ReduceOp op;
};
const std::vector<Kind> kKinds = {{at::kFloat, ReduceOp::max},    {at::kDouble, ReduceOp::min},
                                  {at::kBFloat16, ReduceOp::max}, {at::kHalf, ReduceOp::avg},
                                  {at::kShort, ReduceOp::sum},    {at::kShort, ReduceOp::product},
                                  {at::kShort, ReduceOp::min},    {at::kComplexFloat, ReduceOp::product},
                                  {at::kFloat, ReduceOp::avg}};

// Compares bit for bit, except for products of complex numbers, which ATen may compute with fused multiply-add.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const double tolerance = a.is_complex() ? 1e-6 : 0;
  return a.sizes() == b.sizes() &&
         at::allclose(a.to(at::kComplexDouble), b.to(at::kComplexDouble), tolerance, tolerance, true);
}

TEST_P(ReduceViaAllToAll, AllReduceEqualsTheBackend) {
  on_ranks(GetParam(), [&](Communicator world) {
    for (const auto& [dtype, op] : kKinds) {
      for (const std::int64_t rows : {0, 1, 37}) {
        const at::Tensor x = values({rows, 3}, dtype, world.rank());
        const at::Tensor expected = x.clone(), mine = strided_like(x, static_cast<int>(rows + world.rank()) % 4);
        world.all_reduce(expected, op).wait();
        CommBackend& backend = *backend_of(world);
        all_reduce_via_all_to_all(backend, next_call(backend, CollectiveKind::all_reduce, dtype, op), mine, at::kCPU);
        EXPECT_TRUE(same_bits(mine, expected)) << dtype << ' ' << static_cast<int>(op) << mine << expected;
      }
    }
  });
}

TEST_P(ReduceViaAllToAll, ReduceScatterEqualsTheBackend) {
  on_ranks(GetParam(), [&](Communicator world) {
    for (const auto& [dtype, op] : kKinds) {
      std::vector<at::Tensor> inputs;
      for (int i = 0; i < world.size(); ++i) inputs.push_back(values({i * 3 % 4, 2}, dtype, world.rank() + i));
      const at::Tensor expected = at::zeros_like(inputs[world.rank()]), mine = strided_like(expected, 1);
      world.reduce_scatter(expected, inputs, op).wait();
      CommBackend& backend = *backend_of(world);
      reduce_scatter_via_all_to_all(backend, next_call(backend, CollectiveKind::reduce_scatter, dtype, op), mine,
                                    inputs, at::kCPU);
      EXPECT_TRUE(same_bits(mine, expected)) << dtype << ' ' << static_cast<int>(op) << mine << expected;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReduceViaAllToAll, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace dtensor::test
