// Maps dtypes and reduce operations to those of NCCL.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <nccl.h>

#include "dtensor/placement.h"

namespace dtensor::nccl {

// The arguments of an NCCL reduction: `type`, `op`, and `count` NCCL elements per element.
struct Reduction {
  ncclDataType_t type;
  ncclRedOp_t op;
  std::int64_t count = 1;
};

inline ncclRedOp_t nccl_op(ReduceOp op) {
  static constexpr ncclRedOp_t kOps[] = {ncclSum, ncclAvg, ncclMax, ncclMin, ncclProd};
  return kOps[static_cast<int>(op)];
}

// Whether NCCL supports the reduction with ATen's values. It has no 16-bit integers and no complex numbers, of which
// only sums are sums of the parts, and its max and min of floating-point numbers ignore NaN.
inline bool supports_reduction(at::ScalarType dtype, ReduceOp op) {
  const bool order = op == ReduceOp::max || op == ReduceOp::min;
  if (dtype == at::kShort || dtype == at::kUInt16) return false;
  if (c10::isComplexType(dtype)) return op == ReduceOp::sum;
  return !order || !c10::isFloatingType(dtype);
}

// Requires supports_reduction. Bools reduce as bytes of 0 and 1; complex sums as twice as many real ones.
inline Reduction nccl_reduction(at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
      return {ncclFloat32, nccl_op(op)};
    case at::kDouble:
      return {ncclFloat64, nccl_op(op)};
    case at::kHalf:
      return {ncclFloat16, nccl_op(op)};
    case at::kBFloat16:
      return {ncclBfloat16, nccl_op(op)};
    case at::kByte:
      return {ncclUint8, nccl_op(op)};
    case at::kChar:
      return {ncclInt8, nccl_op(op)};
    case at::kInt:
      return {ncclInt32, nccl_op(op)};
    case at::kLong:
      return {ncclInt64, nccl_op(op)};
    case at::kUInt32:
      return {ncclUint32, nccl_op(op)};
    case at::kUInt64:
      return {ncclUint64, nccl_op(op)};
    case at::kBool:
      return {ncclUint8, op == ReduceOp::sum || op == ReduceOp::max ? ncclMax : ncclMin};
    case at::kComplexFloat:
    case at::kComplexDouble:
      return {dtype == at::kComplexFloat ? ncclFloat32 : ncclFloat64, nccl_op(op), 2};
    default:
      TORCH_CHECK(false, "nccl: reductions do not support ", c10::toString(dtype), "; cast first");
  }
}

}  // namespace dtensor::nccl
