// Memory layout of tensors that are passed to NCCL. The CPU stands for the device.
#include "comm/nccl/staging.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace dtensor::nccl {
namespace {

// The values as views of one buffer (how = 0), as separate tensors (1), or as columns of matrices (2).
std::vector<at::Tensor> laid_out(const std::vector<at::Tensor>& values, int how) {
  std::vector<at::Tensor> list;
  if (how == 0) {
    const at::Tensor buffer = at::cat(values);
    std::int64_t begin = 0;
    for (const at::Tensor& t : values) list.push_back(buffer.narrow(0, begin, t.numel())), begin += t.numel();
  }
  for (const at::Tensor& t : values) {
    if (how == 1) list.push_back(t.clone());
    if (how == 2) list.push_back(at::zeros({t.numel(), 3}, t.options()).select(1, 1).copy_(t));
  }
  return list;
}

RC_GTEST_PROP(NcclStaging, StagedTensorsAreContiguousAndAdjacent, ()) {
  const auto length = *rc::gen::inRange<std::int64_t>(0, 6);
  const auto count = *rc::gen::inRange<std::int64_t>(1, 5);
  const auto how = *rc::gen::inRange(0, 3);
  const bool adjacent = *rc::gen::arbitrary<bool>();
  std::vector<at::Tensor> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(at::arange(length, at::kFloat) + 10 * i);
  const auto list = laid_out(values, how);
  const auto out = staged_tensors(list, adjacent ? list.size() : 1, /*filled=*/true);
  RC_ASSERT(out.size() == list.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    RC_ASSERT(out[i].is_contiguous() && at::equal(out[i], values[i]));
    RC_ASSERT(how != 0 || out[i].is_same(list[i]));  // No copy if they are adjacent already.
    const bool follows = i == 0 || out[i].data_ptr<float>() == out[i - 1].data_ptr<float>() + length;
    RC_ASSERT(!adjacent || length == 0 || follows);
  }
}

// The result selects the NCCL call, so it must be equal on all ranks and must not depend on addresses. An allocator may
// place blocks side by side on one rank only.
RC_GTEST_PROP(NcclStaging, EqualNumelDoesNotDependOnMemoryLayout, ()) {
  const auto length = rc::gen::inRange<std::int64_t>(0, 3);
  const auto lengths = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::int64_t>>(length));
  std::vector<at::Tensor> values;
  for (const auto n : lengths) values.push_back(at::ones({n}));
  const bool equal = std::all_of(lengths.begin(), lengths.end(), [&](auto n) { return n == lengths[0]; });
  for (const int how : {0, 1, 2}) RC_ASSERT(have_equal_numel(laid_out(values, how)) == equal);
}

}  // namespace
}  // namespace dtensor::nccl
