// The operators on rows: loops on the CPU, and compositions of ATen operators for devices without kernels. One thread
// writes each row and sums are in order of the choices, so results do not depend on the number of threads.
#include "moe/row_kernels.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <cstring>
#include <limits>

#include "internal/library_operator.h"

namespace dtensor::moe {
namespace {

using Optional = std::optional<at::Tensor>;

constexpr std::int64_t kGrain = 1 << 14;  // minimum number of elements per thread

std::int64_t grain_rows(std::int64_t width) {
  return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, width));
}

// For the implementation with ATen operators: dropped entries refer to an additional zero row at the end.
at::Tensor clamp_to_last(const at::Tensor& position, std::int64_t last) {
  return at::where(position < 0, last, position).flatten();
}
at::Tensor with_zero_row(const at::Tensor& rows) { return at::constant_pad_nd(rows, {0, 0, 0, 1}); }

at::ScalarType sum_type(const at::Tensor& rows) { return at::toOpMathType(rows.scalar_type()); }

Optional in_sum_type(const at::Tensor& weight, const at::Tensor& rows) {
  return weight.defined() ? Optional(weight.to(sum_type(rows)).contiguous()) : std::nullopt;
}

struct Extent {
  std::int64_t tokens, choices, width;
  Extent(const at::Tensor& position, const at::Tensor& rows)
      : tokens(position.size(0)), choices(position.size(1)), width(rows.size(1)) {}
};

// `adds`: adds the sum, rounded to T, to the existing value, like a separate addition.
template <class T, class Sum>
void unpermute_loop(const Extent& e, const T* rows, const std::int64_t* position, const Sum* weight, T* out,
                    bool adds) {
  at::parallel_for(0, e.tokens, grain_rows(e.width * e.choices), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Sum> sum(e.width);
    for (std::int64_t t = begin; t < end; ++t) {
      std::fill(sum.begin(), sum.end(), Sum(0));
      for (std::int64_t entry = t * e.choices; entry < (t + 1) * e.choices; ++entry) {
        if (position[entry] < 0) continue;
        const Sum w = weight != nullptr ? weight[entry] : Sum(1);
        const T* row = rows + position[entry] * e.width;
        for (std::int64_t d = 0; d < e.width; ++d) sum[d] += w * static_cast<Sum>(row[d]);
      }
      T* result = out + t * e.width;
      for (std::int64_t d = 0; d < e.width; ++d) {
        const T value = static_cast<T>(sum[d]);
        result[d] = adds ? static_cast<T>(static_cast<Sum>(result[d]) + static_cast<Sum>(value)) : value;
      }
    }
  });
}

template <class T, class Sum>
void unpermute_backward_loop(const Extent& e, const T* grad, const T* rows, const std::int64_t* position,
                             const Sum* weight, T* d_rows, Sum* d_weight) {
  at::parallel_for(0, e.tokens * e.choices, grain_rows(e.width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t entry = begin; entry < end; ++entry) {
      Sum dot = 0;
      if (position[entry] >= 0) {
        const T* g = grad + entry / e.choices * e.width;
        const T* row = rows + position[entry] * e.width;
        T* out = d_rows + position[entry] * e.width;
        for (std::int64_t d = 0; d < e.width; ++d) {
          dot += static_cast<Sum>(row[d]) * static_cast<Sum>(g[d]);
          out[d] = static_cast<T>(weight[entry] * static_cast<Sum>(g[d]));
        }
      }
      d_weight[entry] = dot;
    }
  });
}

// The entry at each sorted position; position.numel() for unused rows.
at::Tensor entry_of_row(const at::Tensor& position, std::int64_t kept) {
  const auto entries = at::arange(position.numel(), position.options());
  return at::full({kept + 1}, position.numel(), position.options())
      .scatter_(0, clamp_to_last(position, kept), entries)
      .narrow(0, 0, kept);
}

// The rows of `rows` [tokens, D] for each sorted position; zeros for unused rows.
at::Tensor rows_of_entries(const at::Tensor& rows, const at::Tensor& entry, std::int64_t choices) {
  return with_zero_row(rows).index_select(0, at::div(entry, choices, "floor"));
}

// Memory for `kept` rows that `position` refers to, initialized with zeros unless all rows will be written. CPU only.
at::Tensor rows_to_fill(const at::Tensor& position, std::int64_t kept, std::int64_t width,
                        const at::TensorOptions& options) {
  const auto* place = position.const_data_ptr<std::int64_t>();
  const auto entries = position.numel();
  const bool all = kept <= entries && std::count_if(place, place + entries, [](auto p) { return p >= 0; }) == kept;
  return all ? at::empty({kept, width}, options) : at::zeros({kept, width}, options);
}

// The narrowest type for 0 .. `largest`. A GPU's radix sort reads and writes all entries once for each byte of a key.
at::ScalarType key_type(std::int64_t largest) {
  if (largest <= std::numeric_limits<std::uint8_t>::max()) return at::kByte;
  return largest <= std::numeric_limits<std::int16_t>::max() ? at::kShort : at::kLong;
}

SortedBins sort_with_aten(const at::Tensor& ids, const at::Tensor& counts, std::int64_t kept) {
  const auto bins = counts.size(0);
  const auto keys = at::clamp_max(ids, bins).to(key_type(bins));
  const auto [sorted, by_bin] = at::sort(keys, /*stable=*/true, 0, /*descending=*/false);
  if (kept < 0) kept = counts.sum().item<std::int64_t>();
  const auto positions = at::arange(ids.numel(), ids.options());
  auto position = at::empty_like(ids).scatter_(0, by_bin, at::where(positions < kept, positions, -1));
  return {by_bin.narrow(0, 0, kept), position, counts};
}

// --- compositions of ATen operators ---

at::Tensor permute_of_aten(const at::Tensor& x, const at::Tensor& position, std::int64_t kept) {
  return rows_of_entries(x, entry_of_row(position, kept), position.size(1));
}

at::Tensor unpermute_of_aten(const at::Tensor& rows, const at::Tensor& position, const Optional& weight) {
  const auto each = with_zero_row(rows)
                        .index_select(0, clamp_to_last(position, rows.size(0)))
                        .view({position.size(0), position.size(1), rows.size(1)})
                        .to(sum_type(rows));
  return (weight ? each * weight->unsqueeze(2) : each).sum(1).to(rows.scalar_type());
}

at::Tensor& add_of_aten(at::Tensor& base, const at::Tensor& rows, const at::Tensor& position, const Optional& weight) {
  return base.add_(unpermute_of_aten(rows, position, weight));
}

std::tuple<at::Tensor, at::Tensor> gradients_of_aten(const at::Tensor& grad, const at::Tensor& rows,
                                                     const at::Tensor& position, const at::Tensor& weight) {
  const auto entry = entry_of_row(position, rows.size(0));
  const auto spread = rows_of_entries(grad, entry, position.size(1)).to(sum_type(rows));
  const auto dots = at::constant_pad_nd((rows.to(sum_type(rows)) * spread).sum(1), {0, 1});
  const auto by_entry = dots.index_select(0, clamp_to_last(position, rows.size(0))).view(weight.sizes());
  const auto factor = at::constant_pad_nd(weight.flatten(), {0, 1}).index_select(0, entry).unsqueeze(1);
  return {(spread * factor).to(rows.scalar_type()), by_entry};
}

// at::bincount would synchronize to read the largest id.
at::Tensor count_of_aten(const at::Tensor& ids, std::int64_t bins) {
  const auto each = at::clamp_max(ids.flatten(), bins);
  return at::zeros({bins + 1}, ids.options()).scatter_add_(0, each, at::ones_like(each)).narrow(0, 0, bins);
}

TORCH_LIBRARY_IMPL(dtensor, CompositeExplicitAutograd, m) {
  m.impl("permute_rows", permute_of_aten);
  m.impl("unpermute_rows", unpermute_of_aten);
  m.impl("add_unpermuted_rows_", add_of_aten);
  m.impl("unpermute_rows_backward", gradients_of_aten);
  m.impl("count_bins", count_of_aten);
  m.impl("has_grouped_mm", [](const at::Tensor&) { return true; });
}

// --- loops on the CPU ---

at::Tensor permute(const at::Tensor& x, const at::Tensor& position, std::int64_t kept) {
  auto result = rows_to_fill(position, kept, x.size(1), x.options());
  const auto bytes = static_cast<std::int64_t>(x.size(1) * x.element_size());
  const auto choices = position.size(1);
  const auto* place = position.const_data_ptr<std::int64_t>();
  const auto* source = static_cast<const char*>(x.const_data_ptr());
  auto* out = static_cast<char*>(result.mutable_data_ptr());
  at::parallel_for(0, position.numel(), grain_rows(x.size(1)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t entry = begin; entry < end; ++entry) {
      if (place[entry] >= 0) std::memcpy(out + place[entry] * bytes, source + entry / choices * bytes, bytes);
    }
  });
  return result;
}

void write_unpermuted(const at::Tensor& result, const at::Tensor& rows, const at::Tensor& position,
                      const Optional& weight, bool adds) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows.scalar_type(), "unpermute_tokens", [&] {
    using Sum = at::opmath_type<scalar_t>;
    unpermute_loop(Extent(position, rows), rows.const_data_ptr<scalar_t>(), position.const_data_ptr<std::int64_t>(),
                   weight ? weight->const_data_ptr<Sum>() : nullptr, result.mutable_data_ptr<scalar_t>(), adds);
  });
}

at::Tensor unpermute(const at::Tensor& rows, const at::Tensor& position, const Optional& weight) {
  auto result = at::empty({position.size(0), rows.size(1)}, rows.options());
  write_unpermuted(result, rows, position, weight, /*adds=*/false);
  return result;
}

at::Tensor& add_unpermuted(at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                           const Optional& weight) {
  write_unpermuted(base, rows, position, weight, /*adds=*/true);
  return base;
}

std::tuple<at::Tensor, at::Tensor> unpermute_backward(const at::Tensor& grad, const at::Tensor& rows,
                                                      const at::Tensor& position, const at::Tensor& weight) {
  auto d_rows = rows_to_fill(position, rows.size(0), rows.size(1), rows.options()), d_weight = at::empty_like(weight);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows.scalar_type(), "combine_rows_backward", [&] {
    using Sum = at::opmath_type<scalar_t>;
    unpermute_backward_loop(Extent(position, rows), grad.const_data_ptr<scalar_t>(), rows.const_data_ptr<scalar_t>(),
                            position.const_data_ptr<std::int64_t>(), weight.const_data_ptr<Sum>(),
                            d_rows.mutable_data_ptr<scalar_t>(), d_weight.mutable_data_ptr<Sum>());
  });
  return {d_rows, d_weight};
}

at::Tensor count_loop(const at::Tensor& ids, std::int64_t bins) {
  auto counts = at::zeros({bins}, ids.options());
  auto* count = counts.mutable_data_ptr<std::int64_t>();
  const auto* id = ids.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    TORCH_CHECK(id[i] >= 0, "count_bins: expected ids >= 0, but entry ", i, " is ", id[i]);
    if (id[i] < bins) ++count[id[i]];
  }
  return counts;
}

TORCH_LIBRARY_IMPL(dtensor, CPU, m) {
  m.impl("permute_rows", permute);
  m.impl("unpermute_rows", unpermute);
  m.impl("add_unpermuted_rows_", add_unpermuted);
  m.impl("unpermute_rows_backward", unpermute_backward);
  m.impl("count_bins", count_loop);
}

// Sizes only: operators of the compositions have no meta kernels.
TORCH_LIBRARY_IMPL(dtensor, Meta, m) {
  using at::Tensor;
  m.impl("permute_rows", [](const Tensor& x, const Tensor&, std::int64_t kept) {
    return at::empty({kept, x.size(1)}, x.options());
  });
  m.impl("unpermute_rows", [](const Tensor& rows, const Tensor& position, const Optional&) {
    return at::empty({position.size(0), rows.size(1)}, rows.options());
  });
  m.impl("add_unpermuted_rows_",
         [](Tensor& base, const Tensor&, const Tensor&, const Optional&) -> Tensor& { return base; });
  m.impl("unpermute_rows_backward", [](const Tensor&, const Tensor& rows, const Tensor&, const Tensor& weight) {
    return std::tuple(at::empty_like(rows), at::empty_like(weight));
  });
  m.impl("count_bins", [](const Tensor& ids, std::int64_t bins) { return at::empty({bins}, ids.options()); });
}

}  // namespace

bool multiplies_groups(const at::Tensor& x) {
  static const auto op = library_operator<bool(const at::Tensor&)>("dtensor::has_grouped_mm");
  return op.call(x);
}

at::Tensor count_kernel(const at::Tensor& ids, std::int64_t bins) {
  static const auto op = library_operator<decltype(count_loop)>("dtensor::count_bins");
  return op.call(ids, bins);
}

SortedBins sort_kernel(const at::Tensor& ids, const at::Tensor& counts, std::int64_t kept) {
  if (!ids.is_cpu()) return sort_with_aten(ids, counts, kept);
  const auto bins = counts.size(0);
  SortedBins result{{}, at::empty_like(ids), counts};
  const auto* count = result.counts.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> next(bins + 1, 0);
  for (std::int64_t b = 0; b < bins; ++b) next[b + 1] = next[b] + count[b];
  result.order = at::empty({next[bins]}, ids.options());
  const auto* id = ids.const_data_ptr<std::int64_t>();
  auto* order = result.order.mutable_data_ptr<std::int64_t>();
  auto* position = result.position.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    position[i] = id[i] < bins ? next[id[i]]++ : -1;
    if (position[i] >= 0) order[position[i]] = i;
  }
  return result;
}

at::Tensor permute_kernel(const at::Tensor& x, const at::Tensor& position, std::int64_t kept) {
  static const auto op = library_operator<decltype(permute)>("dtensor::permute_rows");
  return op.call(x.contiguous(), position.contiguous(), kept);
}

at::Tensor unpermute_kernel(const at::Tensor& rows, const at::Tensor& position, const at::Tensor& weight) {
  static const auto op = library_operator<decltype(unpermute)>("dtensor::unpermute_rows");
  return op.call(rows.contiguous(), position.contiguous(), in_sum_type(weight, rows));
}

void add_combined_kernel(const at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                         const at::Tensor& weight) {
  TORCH_CHECK(base.scalar_type() == rows.scalar_type() && base.size(0) == position.size(0),
              "add_unpermuted_tokens: ", base.sizes(), " of ", base.scalar_type(), " and rows of ", rows.scalar_type());
  static const auto op = library_operator<decltype(add_unpermuted)>("dtensor::add_unpermuted_rows_");
  at::Tensor result = base;
  op.call(result, rows.contiguous(), position.contiguous(), in_sum_type(weight, rows));
}

std::pair<at::Tensor, at::Tensor> unpermute_backward_kernel(const at::Tensor& grad, const at::Tensor& rows,
                                                            const at::Tensor& position, const at::Tensor& weight) {
  static const auto op = library_operator<decltype(unpermute_backward)>("dtensor::unpermute_rows_backward");
  auto [d_rows, d_weight] =
      op.call(grad.contiguous(), rows.contiguous(), position.contiguous(), *in_sum_type(weight, rows));
  return {std::move(d_rows), d_weight.to(weight.scalar_type())};
}

}  // namespace dtensor::moe
