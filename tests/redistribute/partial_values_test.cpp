// A Partial that was made of shards or replicas reduces to the same bits, in dtypes with special zeros and extremes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace dtensor {
namespace {

using test::on_mesh;

const std::vector<at::ScalarType> kTypesOf8Bits{at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz,
                                                at::kFloat8_e5m2fnuz};

void expect_bits(const at::Tensor& got, const at::Tensor& full, const std::string& what) {
  ASSERT_EQ(got.scalar_type(), full.scalar_type()) << what;
  EXPECT_TRUE(at::equal(got.contiguous().view(at::kByte), full.contiguous().view(at::kByte)))
      << what << "\n"
      << (got.is_complex() ? got : got.to(at::kFloat));
}

// Some dtypes have no infinity for padding: it would be NaN, which propagates through every comparison.
TEST(PartialValues, Float8PartialsReduceToTheSameBits) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto type : kTypesOf8Bits) {
      const at::Tensor full = at::tensor({1.0f, -2.0f, 3.0f, -4.0f}).to(type);
      for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
        for (const Placement& p : {Replicate(), Shard(0)}) {
          const DTensor x = distribute_tensor(full, mesh, {p}).redistribute({Partial(op)});
          expect_bits(x.full_tensor(), full, c10::str(type, " from ", p.str(), " over ", to_string(op)));
        }
      }
    }
  });
}

// The sum is communicated in float, which has an infinity; the result is converted back to 8 bits.
TEST(PartialValues, AreMadeInTheDtypeOfTheTensorAfterASum) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    for (const auto type : kTypesOf8Bits) {
      const at::Tensor full = at::tensor({1.0f, -2.0f, 3.0f, -4.0f}).to(type);
      const DTensor x = distribute_tensor(full, mesh, {Partial(), Shard(0)});
      expect_bits(x.redistribute({Replicate(), Partial(ReduceOp::max)}).full_tensor(), full, c10::str(type));
    }
  });
}

// The Partial is made on one axis before the reduction over another, at no extra cost, while the sum is in float.
TEST(PartialValues, AreMadeInTheDtypeOfTheTensorBeforeAReduction) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    for (const auto type : kTypesOf8Bits) {
      for (const auto op : {ReduceOp::max, ReduceOp::min}) {
        for (const at::Tensor& full : {at::tensor({-2.0f}).to(type), at::tensor({1.0f, -2.0f, 3.0f}).to(type)}) {
          const DTensor x = distribute_tensor(full, mesh, {Shard(0), Partial(op)});
          const std::string what = c10::str(type, " over ", to_string(op), " of ", full.numel());
          expect_bits(x.redistribute({Partial(op), Replicate()}).full_tensor(), full, what);
          expect_bits(x.redistribute({Partial(op), Shard(0)}).full_tensor(), full, what);
        }
      }
    }
  });
}

TEST(PartialValues, KeepNegativeZerosOfComplexTensors) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor parts = at::tensor({-0.0, 0.0, -0.0, 1.0}), full = at::complex(parts, parts.flip(0));
    for (const auto type : {at::kComplexFloat, at::kComplexDouble}) {
      for (const Placement& p : {Replicate(), Shard(0)}) {
        const DTensor x = distribute_tensor(full.to(type), mesh, {p}).redistribute({Partial()});
        expect_bits(x.full_tensor(), full.to(type), c10::str(type, " from ", p.str()));
      }
    }
  });
}

}  // namespace
}  // namespace dtensor
