// Visits strided memory in runs along the innermost dimension, after merging contiguous dimensions. So a slice of a
// large tensor is a few long runs, and a dense tensor is one run.
#include "comm/memory/strided_runs.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace dtensor {
namespace {

template <class T>
[[gnu::always_inline]] inline void copy_run(const char* from, std::int64_t from_stride, char* to,
                                            std::int64_t to_stride, std::int64_t count) {
  const auto* source = reinterpret_cast<const T*>(from);
  auto* target = reinterpret_cast<T*>(to);
  for (std::int64_t i = 0; i < count; ++i) target[i * to_stride] = source[i * from_stride];
}

constexpr std::size_t kMaxDims = 64;  // as in ATen

struct alignas(16) Bytes16 {
  std::uint64_t words[2];
};

// Calls `use` with a value of an integer type of the given size: bytes are moved, not interpreted.
template <class Use>
void with_element(std::size_t size, Use&& use) {
  switch (size) {
    case 1:
      return use(std::uint8_t{});
    case 2:
      return use(std::uint16_t{});
    case 4:
      return use(std::uint32_t{});
    case 8:
      return use(std::uint64_t{});
    default:
      return use(Bytes16{});
  }
}

}  // namespace

DimOrder memory_order(const at::Tensor& tensor) {
  DimOrder order(tensor.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return tensor.stride(a) > tensor.stride(b); });
  return order;
}

FlatView::FlatView(const at::Tensor& tensor, const DimOrder& order)
    : data_(static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()))),
      element_size_(tensor.element_size()),
      numel_(tensor.numel()) {
  TORCH_CHECK(tensor.dim() <= static_cast<std::int64_t>(kMaxDims), "expected at most ", kMaxDims, " dimensions, got ",
              tensor.dim());
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    const std::int64_t d = order.empty() ? i : order[i];
    const std::int64_t size = tensor.size(d), stride = tensor.stride(d);
    if (size == 1) continue;
    if (!sizes_.empty() && strides_.back() == stride * size) {
      sizes_.back() *= size;
      strides_.back() = stride;
    } else {
      sizes_.push_back(size);
      strides_.push_back(stride);
    }
  }
  if (sizes_.empty() || numel_ == 0) {
    sizes_ = {numel_};
    strides_ = {1};
  }
}

template <class Visit>
void FlatView::for_each_run(std::int64_t begin, std::int64_t count, Visit&& visit) const {
  const auto last = static_cast<std::int64_t>(sizes_.size()) - 1;
  std::array<std::int64_t, kMaxDims> index;
  std::int64_t rest = begin, offset = 0;
  for (std::int64_t d = last; d >= 0; --d) {
    index[d] = rest % sizes_[d];
    rest /= sizes_[d];
    offset += index[d] * strides_[d];
  }
  while (count > 0) {
    const std::int64_t run = std::min(count, sizes_[last] - index[last]);
    visit(data_ + offset * static_cast<std::int64_t>(element_size_), run);
    count -= run;
    offset -= index[last] * strides_[last];
    index[last] = 0;
    for (std::int64_t d = last - 1; d >= 0; --d) {
      offset += strides_[d];
      if (++index[d] < sizes_[d]) break;
      offset -= sizes_[d] * strides_[d];
      index[d] = 0;
    }
  }
}

std::int64_t FlatView::contiguous_run_length(std::int64_t begin) const {
  if (strides_.back() != 1) return 1;
  return sizes_.size() == 1 ? numel_ - begin : sizes_.back() - begin % sizes_.back();
}

char* FlatView::contiguous_pointer(std::int64_t begin, std::int64_t count) const {
  if (contiguous()) return data_ + begin * static_cast<std::int64_t>(element_size_);
  if (count > 1 && count > contiguous_run_length(begin)) return nullptr;
  std::int64_t rest = begin, offset = 0;
  for (std::size_t d = sizes_.size(); d-- > 0;) {
    offset += rest % sizes_[d] * strides_[d];
    rest /= sizes_[d];
  }
  return data_ + offset * static_cast<std::int64_t>(element_size_);
}

void FlatView::gather(std::int64_t begin, std::int64_t count, void* out) const {
  auto* to = static_cast<char*>(out);
  const std::int64_t stride = strides_.back();
  for_each_run(begin, count, [&](const char* at, std::int64_t run) {
    if (stride == 1) {
      std::memcpy(to, at, run * element_size_);
    } else {
      with_element(element_size_, [&](auto e) { copy_run<decltype(e)>(at, stride, to, 1, run); });
    }
    to += run * element_size_;
  });
}

void FlatView::scatter(std::int64_t begin, std::int64_t count, const void* in) const {
  const auto* from = static_cast<const char*>(in);
  const std::int64_t stride = strides_.back();
  for_each_run(begin, count, [&](char* at, std::int64_t run) {
    if (stride == 1) {
      std::memcpy(at, from, run * element_size_);
    } else {
      with_element(element_size_, [&](auto e) { copy_run<decltype(e)>(from, 1, at, stride, run); });
    }
    from += run * element_size_;
  });
}

const char* FlatView::read(std::int64_t begin, std::int64_t count, void* scratch) const {
  if (const char* at = contiguous_pointer(begin, count)) return at;
  gather(begin, count, scratch);
  return static_cast<const char*>(scratch);
}

}  // namespace dtensor
