// Grouped matrix products: groups of rows with one matrix each (experts). `offs` holds the ends of groups in the global
// tensor. A rank with a shard of the rows computes the ends of groups among its own rows. A rank with a shard of the
// groups multiplies the rows of its groups; its contribution to the result is zero elsewhere.
#include <ATen/ATen.h>

#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

std::int64_t elements_of_16_bytes(const at::Tensor& t) { return 16 / static_cast<std::int64_t>(t.element_size()); }

// Whether a tensor has the layout that ATen's kernels require: contiguous rows or columns, aligned to 16 bytes.
bool is_aligned(const at::Tensor& t) {
  if (!t.is_cpu() && reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 != 0) return false;
  const auto follows = [&](std::int64_t inner, std::int64_t outer) {
    return t.stride(inner) == 1 && t.stride(outer) >= std::max<std::int64_t>(1, t.size(inner));
  };
  if (follows(-2, -1)) return t.stride(-1) % elements_of_16_bytes(t) == 0;
  return follows(-1, -2) && t.stride(-2) % elements_of_16_bytes(t) == 0;
}

at::Tensor aligned(const at::Tensor& t) {
  if (is_aligned(t)) return t;
  const auto columns = t.size(-1), unit = elements_of_16_bytes(t);
  auto sizes = t.sizes().vec();
  sizes.back() = (columns + unit - 1) / unit * unit;
  return at::empty(sizes, t.options()).narrow(-1, 0, columns).copy_(t);
}

// One call. For each tensor: the dimension that contains the groups one after another (`along`), and the dimension that
// indexes groups (`groups`); -1 for none.
struct Grouped {
  at::Tensor a, b, ends;
  at::DimVector sizes;  // of the result
  std::int64_t along_a = -1, along_b = -1, along_result = -1, groups_a = -1, groups_b = -1, groups_result = -1;
};

Grouped read(const LocalCall& call, const LocalArgs& args) {
  Grouped g{args.tensor("self"), args.tensor("mat2"), args.tensor("offs"), call.outputs[0]->local_sizes};
  const bool a_is_stack = g.a.dim() == 3, b_is_stack = g.b.dim() == 3;
  g.along_a = a_is_stack ? -1 : b_is_stack ? 0 : 1;
  g.along_b = b_is_stack ? -1 : a_is_stack ? 1 : 0;
  g.along_result = a_is_stack == b_is_stack ? -1 : a_is_stack ? 1 : 0;
  g.groups_a = a_is_stack ? 0 : -1;
  g.groups_b = b_is_stack ? 0 : -1;
  g.groups_result = a_is_stack == b_is_stack ? 0 : -1;
  return g;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends, at::IntArrayRef sizes) {
  if (a.numel() == 0 || b.numel() == 0) return at::zeros(sizes, a.options());
  const auto given = ends.defined() ? std::optional(ends) : std::nullopt;
  return at::_grouped_mm(aligned(a), aligned(b), given).contiguous();
}

// The ends of groups among this rank's rows.
at::Tensor local_ends(const at::Tensor& ends, const Segments& rows) {
  auto own = at::zeros_like(ends);
  for (const Segment& s : rows) own += (ends - s.offset).clamp(0, s.length);
  return own;
}

at::Tensor sliced(const at::Tensor& t, std::int64_t dim, std::int64_t begin, std::int64_t end) {
  return dim < 0 ? t : t.slice(dim, begin, end);
}

// The product of this rank's groups, one segment of groups at a time.
at::Tensor product_of_groups(const Grouped& g, const Segments& groups) {
  const auto on_host = g.ends.cpu().to(at::kLong);
  const auto* ends = on_host.const_data_ptr<std::int64_t>();
  auto result = at::zeros(g.sizes, g.a.options());
  std::int64_t own = 0;
  for (const Segment& s : groups) {
    const auto first = s.offset == 0 ? 0 : ends[s.offset - 1], last = ends[s.offset + s.length - 1];
    const auto part = [&](const at::Tensor& t, std::int64_t along, std::int64_t of_groups) {
      return sliced(sliced(t, along, first, last), of_groups, own, own + s.length);
    };
    const auto a = part(g.a, g.along_a, g.groups_a), b = part(g.b, g.along_b, g.groups_b);
    const auto target = part(result, g.along_result, g.groups_result);
    target.copy_(product(a, b, g.ends.slice(0, s.offset, s.offset + s.length) - first, target.sizes()));
    own += s.length;
  }
  return result;
}

// Zeroes the result after the last group, which ATen leaves uninitialized. Only on the CPU: on a device, reading `offs`
// would synchronize.
void clear_behind(const Grouped& g, const at::Tensor& result) {
  if (g.along_result < 0 || !result.is_cpu() || g.ends.numel() == 0) return;
  result.slice(g.along_result, g.ends[-1].item<std::int64_t>()).zero_();
}

const TensorSpec* split_spec(const LocalArgs& args, const char* name, std::int64_t dim) {
  const auto* spec = dim < 0 ? nullptr : args.spec(name);
  return shard_axes(spec, dim) == 0 ? nullptr : spec;
}

void grouped_mm(LocalCall& call) {
  const LocalArgs args(call);
  auto g = read(call, args);
  const auto one_of = [&](std::int64_t a, std::int64_t b) {
    const auto* spec = split_spec(args, "self", a);
    return spec != nullptr ? std::pair(spec, a) : std::pair(split_spec(args, "mat2", b), b);
  };
  if (const auto [rows, dim] = one_of(g.along_a, g.along_b); rows != nullptr) {
    g.ends = local_ends(g.ends, own_segments(rows, dim, rows->sizes[static_cast<std::size_t>(dim)]));
  }
  const auto* result = call.outputs[0].get();
  auto [groups, dim] = one_of(g.groups_a, g.groups_b);
  if (g.groups_a < 0 && g.groups_b < 0 && shard_axes(result, 0) != 0) groups = result, dim = 0;
  if (groups != nullptr && g.ends.defined()) {
    return set_results(call,
                       {product_of_groups(g, own_segments(groups, dim, groups->sizes[static_cast<std::size_t>(dim)]))});
  }
  const auto result_of_all = product(g.a, g.b, g.ends, g.sizes);
  clear_behind(g, result_of_all);
  set_results(call, {result_of_all});
}

}  // namespace

void add_grouped_product_kernels(LocalKernels& kernels) { kernels.emplace("grouped_mm", grouped_mm); }

}  // namespace dtensor
