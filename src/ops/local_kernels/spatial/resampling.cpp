// Paddings that repeat rows, interpolation and roll with sharded dimensions. Each is separable, so sharded dimensions
// are processed one after the other by RowTaps, and the ATen operator processes the unsharded ones.
#include <ATen/native/UpSample.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cmath>

#include "ops/local_kernels/exchanged_pieces.h"
#include "ops/local_kernels/spatial/row_taps.h"

namespace dtensor {
namespace {

using Stack = torch::jit::Stack;

// One sharded dimension of a resampling operator: sizes before and after, and the arguments that interpolation has.
struct Resampled {
  std::int64_t before, after;
  std::int64_t padding;  // rows before the first one
  bool align_corners;
  std::optional<double> scale;
  at::ScalarType type;
};
using MakeTaps = TapsOfRow (*)(const Resampled&);

TapsOfRow reflected(const Resampled& r) {
  return [r](std::int64_t row) {
    const auto at = row - r.padding, last = r.before - 1;
    return Taps{{at < 0 ? -at : at > last ? 2 * last - at : at}};
  };
}

TapsOfRow replicated(const Resampled& r) {
  return [r](std::int64_t row) { return Taps{{std::clamp(row - r.padding, std::int64_t{0}, r.before - 1)}}; };
}

TapsOfRow nearest(const Resampled& r) {
  return [r](std::int64_t row) { return Taps{{at::native::nearest_idx(row, r.before, r.after, r.scale)}}; };
}

TapsOfRow nearest_exact(const Resampled& r) {
  return [r](std::int64_t row) { return Taps{{at::native::nearest_exact_idx(row, r.before, r.after, r.scale)}}; };
}

template <class Real>
TapsOfRow linear_in(const Resampled& r) {
  const auto ratio = at::native::area_pixel_compute_scale<Real>(r.before, r.after, r.align_corners, r.scale);
  return [r, ratio](std::int64_t row) {
    std::int64_t first = 0, second = 0;
    Real of_first = 0, of_second = 0;
    at::native::compute_source_index_and_lambda(first, second, of_first, of_second, ratio, row, r.before, r.after,
                                                r.align_corners);
    return Taps{{first, of_first}, {second, of_second}};
  };
}

template <class Real>
TapsOfRow cubic_in(const Resampled& r) {
  const auto ratio = at::native::area_pixel_compute_scale<Real>(r.before, r.after, r.align_corners, r.scale);
  return [r, ratio](std::int64_t row) {
    const Real source = at::native::area_pixel_compute_source_index<Real>(ratio, row, r.align_corners, /*cubic=*/true);
    std::int64_t index = 0;
    Real fraction = 0, weights[4];
    at::native::guard_index_and_lambda(source, r.before, index, fraction);
    at::native::get_cubic_upsample_coefficients<Real>(weights, fraction);
    Taps taps;
    for (std::int64_t t = 0; t < 4; ++t) {
      taps.push_back({std::clamp(index - 1 + t, std::int64_t{0}, r.before - 1), weights[t]});
    }
    return taps;
  };
}

// The filters of antialiased interpolation: their support, and their value at a distance.
struct Triangle {
  static constexpr double kSupport = 1;
  template <class Real>
  static Real at(Real x) {
    return std::max<Real>(0, 1 - std::abs(x));
  }
};
struct Cubic {
  static constexpr double kSupport = 2;
  template <class Real>
  static Real at(Real x) {
    constexpr Real kA = -0.5;  // as Pillow and ATen
    x = std::abs(x);
    if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * kA : 0;
  }
};

// Weights that sum to 1. Rows of the result at the edges have fewer taps; the others have weight 0.
template <class Real, class Filter>
TapsOfRow antialiased_in(const Resampled& r) {
  const auto ratio = at::native::area_pixel_compute_scale<Real>(r.before, r.after, r.align_corners, r.scale);
  const Real stretch = std::max<Real>(ratio, 1), support = static_cast<Real>(Filter::kSupport) * stretch;
  const auto count = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  return [=](std::int64_t row) {
    const Real center = ratio * (static_cast<Real>(row) + Real(0.5));
    const auto begin = std::max(static_cast<std::int64_t>(center - support + Real(0.5)), std::int64_t{0});
    const auto end = std::min(static_cast<std::int64_t>(center + support + Real(0.5)), r.before);
    Taps taps;
    Real sum = 0;
    for (std::int64_t t = 0; t < count; ++t) {
      const auto from = begin + t;
      const Real weight = from < end ? Filter::at((static_cast<Real>(from) - center + Real(0.5)) / stretch) : Real(0);
      taps.push_back({std::min(from, r.before - 1), weight});
      sum += weight;
    }
    for (Tap& tap : taps) tap.weight /= sum;
    return taps;
  };
}

// Positions and weights are computed in the dtype that ATen computes them in.
template <class Filter>
TapsOfRow antialiased(const Resampled& r) {
  return r.type == at::kDouble ? antialiased_in<double, Filter>(r) : antialiased_in<float, Filter>(r);
}
TapsOfRow linear(const Resampled& r) { return r.type == at::kDouble ? linear_in<double>(r) : linear_in<float>(r); }
TapsOfRow cubic(const Resampled& r) { return r.type == at::kDouble ? cubic_in<double>(r) : cubic_in<float>(r); }

// A resampling call, forward or backward: its dimensions, and the arguments along each.
class Call {
 public:
  // `input`, `output`: the tensors before and after resampling, or their gradients.
  Call(LocalCall& call, const TensorSpec& input, const TensorSpec& output)
      : call_(call), args_(call), input_(input), output_(output) {
    const auto arguments = torch::jit::last(call.stack, call.info.args.size());
    stack_.assign(arguments.begin(), arguments.end());
    pads_ = args_.has("padding");
    const auto count = args_.value(pads_ ? "padding" : "output_size").toListRef().size() / (pads_ ? 2 : 1);
    first_ = input.dim() - static_cast<std::int64_t>(count);
  }

  std::vector<std::int64_t> sharded() const {
    std::vector<std::int64_t> dims;
    for (std::int64_t d = first_; d < input_.dim(); ++d) {
      const bool unchanged = pads_ && padding(d, 0) == 0 && padding(d, 1) == 0;
      if (shard_axes(&input_, d) != 0 && !unchanged) dims.push_back(d);
    }
    return dims;
  }

  Resampled along(std::int64_t dim) const {
    return {size(input_, dim),
            size(output_, dim),
            pads_ ? padding(dim, 0) : 0,
            args_.flag("align_corners"),
            pads_ ? std::nullopt : scale(dim),
            input_.dtype};
  }

  bool all_sharded(const std::vector<std::int64_t>& sharded) const {
    return std::ssize(sharded) == input_.dim() - first_;
  }

  // Runs the ATen operator on the dimensions that are not in `sharded`; along those the sizes are `tensor`'s. `tensor`
  // is the argument `name`.
  at::Tensor run_unsharded(const std::vector<std::int64_t>& sharded, const char* name, const at::Tensor& tensor) {
    // ATen's antialiased kernels ignore the vertical weights if rows have one element.
    if (!pads_ && tensor.size(-1) == 1 && sharded.back() == tensor.dim() - 1) {
      auto sizes = tensor.sizes().vec();
      sizes.back() = 2;
      return run_unsharded(sharded, name, tensor.expand(sizes).contiguous()).narrow(-1, 0, 1).contiguous();
    }
    at::DimVector before(tensor.sizes()), after(tensor.sizes());
    for (std::int64_t d = first_; d < input_.dim(); ++d) {
      if (std::find(sharded.begin(), sharded.end(), d) != sharded.end()) {
        drop(d);
        continue;
      }
      before[static_cast<std::size_t>(d)] = input_.local_sizes[static_cast<std::size_t>(d)];
      after[static_cast<std::size_t>(d)] = output_.local_sizes[static_cast<std::size_t>(d)];
    }
    const bool backward = std::string_view(name) == "grad_output";
    if (tensor.numel() == 0) return at::empty(backward ? before : after, tensor.options());
    if (pads_ && backward) stack_[index_of(call_, "self")] = at::empty(before, tensor.options());
    if (!pads_) stack_[index_of(call_, "output_size")] = std::vector(after.begin() + first_, after.end());
    if (!pads_ && backward) stack_[index_of(call_, "input_size")] = std::vector(before.begin(), before.end());
    return run_piece(call_, stack_, {{name, tensor}}).back().toTensor();
  }

 private:
  static std::int64_t size(const TensorSpec& spec, std::int64_t dim) {
    return spec.sizes[static_cast<std::size_t>(dim)];
  }
  std::size_t padding_index(std::int64_t dim, std::int64_t side) const {
    return static_cast<std::size_t>(2 * (input_.dim() - 1 - dim) + side);
  }
  std::int64_t padding(std::int64_t dim, std::int64_t side) const {
    return args_.value("padding").toIntVector()[padding_index(dim, side)];
  }
  std::string scale_name(std::int64_t dim) const {
    constexpr const char* kNames[] = {"scales_w", "scales_h", "scales_d"};
    return input_.dim() - first_ == 1 ? "scales" : kNames[input_.dim() - 1 - dim];
  }
  std::optional<double> scale(std::int64_t dim) const {
    const auto& value = args_.value(scale_name(dim));
    return value.isNone() ? std::nullopt : std::optional(value.toDouble());
  }
  // Makes the ATen operator the identity along a dimension.
  void drop(std::int64_t dim) {
    if (!pads_) return stack_[index_of(call_, scale_name(dim).c_str())] = c10::IValue(), void();
    auto amounts = stack_[index_of(call_, "padding")].toIntVector();
    amounts[padding_index(dim, 0)] = amounts[padding_index(dim, 1)] = 0;
    stack_[index_of(call_, "padding")] = amounts;
  }

  LocalCall& call_;
  const LocalArgs args_;
  const TensorSpec &input_, &output_;
  Stack stack_;
  std::int64_t first_;  // first resampled dimension
  bool pads_;           // padding instead of interpolation
};

template <MakeTaps taps>
void resample(LocalCall& call) {
  const LocalArgs args(call);
  const TensorSpec &input = *args.spec("self"), &output = *call.outputs[0];
  Call resampling(call, input, output);
  const auto sharded = resampling.sharded();
  if (sharded.empty()) return return_zeros_if_empty(call) ? void() : call.info.op.callBoxed(call.stack);
  auto local = args.tensor("self");
  for (const auto dim : sharded) {
    local = RowTaps(call.mesh, input, output, dim, taps(resampling.along(dim))).apply(local);
  }
  set_results(call, {resampling.all_sharded(sharded) ? local : resampling.run_unsharded(sharded, "self", local)});
}

template <MakeTaps taps>
void resample_backward(LocalCall& call) {
  const LocalArgs args(call);
  const TensorSpec &input = *call.outputs[0], &output = *args.spec("grad_output");
  Call resampling(call, input, output);
  const auto sharded = resampling.sharded();
  if (sharded.empty()) return return_zeros_if_empty(call) ? void() : call.info.op.callBoxed(call.stack);
  auto grad = args.tensor("grad_output");
  if (!resampling.all_sharded(sharded)) grad = resampling.run_unsharded(sharded, "grad_output", grad);
  for (auto dim = sharded.rbegin(); dim != sharded.rend(); ++dim) {
    grad = RowTaps(call.mesh, input, output, *dim, taps(resampling.along(*dim))).apply_adjoint(grad);
  }
  set_results(call, {grad});
}

void roll_split(LocalCall& call) {
  const LocalArgs args(call);
  const auto* spec = args.spec("self");
  auto local = args.tensor("self");
  auto shifts = args.value("shifts").toIntVector();
  const auto dims = args.value("dims").toIntVector();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const auto dim = c10::maybe_wrap_dim(dims[i], local.dim());
    if (shard_axes(spec, dim) == 0) continue;
    const auto n = spec->sizes[static_cast<std::size_t>(dim)];
    const auto shift = n > 0 ? (shifts[i] % n + n) % n : 0;
    const auto taps = [=](std::int64_t row) { return Taps{{row < shift ? row - shift + n : row - shift}}; };
    local = RowTaps(call.mesh, *spec, *call.outputs[0], dim, taps).apply(local);
    shifts[i] = 0;
  }
  set_results(call, {local.roll(shifts, dims)});
}

}  // namespace

void add_resampling_kernels(LocalKernels& kernels) {
  const auto add = [&](const std::string& name, LocalKernel forward, LocalKernel backward) {
    kernels.emplace(name, forward);
    kernels.emplace(name + "_backward", backward);
  };
  add("reflection_pad_split", resample<reflected>, resample_backward<reflected>);
  add("replication_pad_split", resample<replicated>, resample_backward<replicated>);
  add("nearest_split", resample<nearest>, resample_backward<nearest>);
  add("nearest_exact_split", resample<nearest_exact>, resample_backward<nearest_exact>);
  add("linear_split", resample<linear>, resample_backward<linear>);
  add("cubic_split", resample<cubic>, resample_backward<cubic>);
  add("linear_aa_split", resample<antialiased<Triangle>>, resample_backward<antialiased<Triangle>>);
  add("cubic_aa_split", resample<antialiased<Cubic>>, resample_backward<antialiased<Cubic>>);
  kernels.emplace("roll_split", roll_split);
}

}  // namespace dtensor
