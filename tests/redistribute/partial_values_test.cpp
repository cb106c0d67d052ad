// What ranks hold of a Partial that was made of shards or replicas adds up to the same bits, in types whose zeros and
// extremes are special.
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

// Some have no infinity with which to pad: it would be NaN, which wins every comparison.
TEST(PartialValues, OfTypesOf8BitsAreReducedToWhatTheyWere) {
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

// The sum travels in float, in which an infinity is one; what is made of it is of 8 bits again.
TEST(PartialValues, AreMadeInTheTensorsOwnTypeAfterASum) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    for (const auto type : kTypesOf8Bits) {
      const at::Tensor full = at::tensor({1.0f, -2.0f, 3.0f, -4.0f}).to(type);
      const DTensor x = distribute_tensor(full, mesh, {Partial(), Shard(0)});
      expect_bits(x.redistribute({Replicate(), Partial(ReduceOp::max)}).full_tensor(), full, c10::str(type));
    }
  });
}

// Made on one axis before another is reduced, which costs no more; the sum travels in float meanwhile.
TEST(PartialValues, AreMadeInTheTensorsOwnTypeBeforeAReduction) {
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

TEST(PartialValues, KeepNegativeZerosOfComplexNumbers) {
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
