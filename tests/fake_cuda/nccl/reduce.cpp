// Reductions in rank order with ATen's values, so that results equal those of the other backends bit by bit.
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <type_traits>

#include "fake_cuda/nccl/state.h"

namespace dtensor::test::fake_cuda {
namespace {

// Integers wrap: their sums and products are computed without sign.
template <class T, class Wide>
T reduced(const std::vector<const void*>& inputs, std::size_t i, ncclRedOp_t op) {
  const auto element = [&](std::size_t j) { return static_cast<const T*>(inputs[j])[i]; };
  if (op == ncclMax || op == ncclMin) {
    T best = element(0);
    for (std::size_t j = 1; j < inputs.size(); ++j) {
      const T next = element(j);
      if (op == ncclMax ? best < next : next < best) best = next;
    }
    return best;
  }
  auto total = static_cast<Wide>(element(0));
  for (std::size_t j = 1; j < inputs.size(); ++j) {
    const auto next = static_cast<Wide>(element(j));
    total = static_cast<Wide>(op == ncclProd ? total * next : total + next);
  }
  if (op == ncclAvg) total = static_cast<Wide>(total / static_cast<Wide>(inputs.size()));
  return static_cast<T>(total);
}

template <class T, class Wide>
void reduce_all(const std::vector<void*>& outputs, const std::vector<const void*>& inputs, const Operation& like) {
  for (std::size_t i = 0; i < like.count; ++i) {
    const T value = reduced<T, Wide>(inputs, i, like.op);
    for (void* out : outputs) static_cast<T*>(out)[i] = value;
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t dtype) {
  static constexpr std::size_t kSizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kSizes[dtype];
}

void reduce(const std::vector<void*>& outputs, const std::vector<const void*>& inputs, const Operation& like) {
  switch (like.dtype) {
    case ncclInt8:
      return reduce_all<std::int8_t, std::uint64_t>(outputs, inputs, like);
    case ncclUint8:
      return reduce_all<std::uint8_t, std::uint64_t>(outputs, inputs, like);
    case ncclInt32:
      return reduce_all<std::int32_t, std::uint64_t>(outputs, inputs, like);
    case ncclUint32:
      return reduce_all<std::uint32_t, std::uint64_t>(outputs, inputs, like);
    case ncclInt64:
      return reduce_all<std::int64_t, std::uint64_t>(outputs, inputs, like);
    case ncclUint64:
      return reduce_all<std::uint64_t, std::uint64_t>(outputs, inputs, like);
    case ncclFloat16:
      return reduce_all<c10::Half, float>(outputs, inputs, like);
    case ncclBfloat16:
      return reduce_all<c10::BFloat16, float>(outputs, inputs, like);
    case ncclFloat32:
      return reduce_all<float, float>(outputs, inputs, like);
    case ncclFloat64:
      return reduce_all<double, double>(outputs, inputs, like);
    default:
      Simulator::instance().fail("fake_cuda: reductions of " + describe(like) + " are not implemented");
  }
}

}  // namespace dtensor::test::fake_cuda
