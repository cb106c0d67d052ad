// Pooling, padding, resampling and their backward. Batch and channels may be sharded. Spatial dimensions may be sharded
// if windows of fixed sizes slide over them.
#include <ATen/native/Pool.h>

#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {
namespace {

// `count` trailing dimensions are unsharded in every operand and result.
Rule spatial_rule(std::size_t count) {
  return Rule("N S!* -> N S*; S = " + std::to_string(count)).sharded_by_kernel("N", kSkipEmpty);
}

// The same for windows of fixed sizes, where spatial dimensions may be sharded: the kernel exchanges the elements that
// a rank's windows need.
Rule windowed_spatial_dims(std::size_t count, const char* kernel) {
  return elastic(
      Rule("N S* -> N S*; S = " + std::to_string(count)).sharded_by_kernel("N", kernel).sharded_by_kernel("S", kernel),
      "S");
}

// The windows of adaptive pooling follow from the sizes. Each rank adds its rows to the averages, which are Partial.
Rule adaptive_average(std::size_t count) {
  return Rule("N S -> N S=_; S = " + std::to_string(count))
      .sharded_by_kernel("N", "adaptive_avg_split")
      .sharded_by_kernel("S", "adaptive_avg_split")
      .linear({0});
}
Rule adaptive_average_backward(std::size_t count) {
  return Rule("N S=_, N S -> N S; S = " + std::to_string(count))
      .sharded_by_kernel("N", "adaptive_avg_split_backward")
      .sharded_by_kernel("S", "adaptive_avg_split_backward");
}

// Kernels that round their results to integers are linear only for floating-point dtypes.
Rule::Function linear_in_fractions(const Rule& rule) {
  return [rule, linear = Rule(rule).linear({0})](const OpArgs& call) {
    return c10::isIntegralType(call.dtype(0), true) ? rule : linear;
  };
}

void add_rounding(RuleBook& book, const std::string& op, const Rule& rule) {
  book.rule(op, linear_in_fractions(rule), Rule(rule).linear({0}).str() + ", linear in fractions");
}

// Kernels write to the positions given by indices, one per element of the gradient, and do not check the sizes.
void check_gradient(const OpArgs& call, std::size_t count) {
  TORCH_CHECK(call.sizes(1).size() <= count + 2, "the gradient of a pooling of ", count,
              " dimensions: the input has sizes ", call.sizes(1),
              ", expected at most a batch and a channel dimension besides these");
  TORCH_CHECK(call.sizes(0).size() == call.sizes(1).size() &&
                  call.sizes(0).drop_back(count).equals(call.sizes(1).drop_back(count)),
              "the gradient of a pooling: an upstream gradient of sizes ", call.sizes(0),
              " does not belong to an input of sizes ", call.sizes(1));
  const int indices = call.operand("indices");
  TORCH_CHECK(indices < 0 || call.sizes(indices).equals(call.sizes(0)), "the gradient of a pooling: indices of sizes ",
              call.sizes(indices), ", expected those of the gradient, ", call.sizes(0));
}

std::vector<OutputMeta> suggested_gradient(const OpArgs& op) { return {suggested_meta(op, op.sizes(1), 1)}; }
std::vector<OutputMeta> contiguous_gradient(const OpArgs& op) { return like_operands(op, {1}); }

// Gradients of operators that select or average: linear in the incoming gradient, with the sizes of operand 1.
void add_gradients(RuleBook& book, const Rule& full, std::size_t count, std::initializer_list<const char*> ops,
                   Rule::Outputs outputs = suggested_gradient) {
  const auto checked = [rule = linear_in_fractions(full), count](const OpArgs& call) {
    return check_gradient(call, count), rule(call);
  };
  for (const char* op : ops) {
    book.rule(std::string("aten::") + op, checked,
              Rule(full).linear({0}).str() + ", indices of the gradient's sizes, linear in fractions")
        .outputs(outputs);
  }
}

at::DimVector with_spatial_sizes(const OpArgs& op, const std::vector<std::int64_t>& spatial_sizes) {
  return joined(op.sizes(0).drop_back(spatial_sizes.size()), spatial_sizes);
}

std::vector<OutputMeta> output_size(const OpArgs& op) {
  return {dense_meta(with_spatial_sizes(op, op.integers("output_size")), op.dtype(0))};
}

std::vector<OutputMeta> suggested_output_size(const OpArgs& op) {
  return {suggested_meta(op, with_spatial_sizes(op, op.integers("output_size")))};
}

std::vector<OutputMeta> unpooled_outputs(const OpArgs& op) {
  TORCH_CHECK(op.sizes(0).equals(op.sizes(1)), "Expected shape of indices to be same as that of the input tensor (",
              op.sizes(0), ") but got indices tensor with shape: ", op.sizes(1));
  const bool of_images = op.integers("output_size").size() == 2;
  return of_images ? suggested_output_size(op) : output_size(op);
}

std::vector<OutputMeta> max_pool3d_outputs(const OpArgs& op) {
  const auto input = op.sizes(0);
  TORCH_CHECK(input.size() == 4 || input.size() == 5,
              "max_pool3d: non-empty 4D or 5D (batch mode) tensor expected for input, got sizes ", input);
  TORCH_CHECK(c10::multiply_integers(input.slice(input.size() - 4)) != 0,
              "max_pool3d: expected input to have non-zero size for non-batch dimensions, but input has sizes ", input);
  const auto kernel = op.integers("kernel_size", 3), padding = op.integers("padding", 3);
  const auto dilation = op.integers("dilation", 3);
  const auto stride = op.integers("stride").empty() ? kernel : op.integers("stride", 3);
  std::vector<std::int64_t> spatial_sizes;
  for (std::size_t d = 0; d < 3; ++d) {
    spatial_sizes.push_back(at::native::pooling_output_shape(op.sizes(0).from_end(3 - d), kernel[d], padding[d],
                                                             stride[d], dilation[d], op.boolean("ceil_mode")));
  }
  TORCH_CHECK(std::all_of(spatial_sizes.begin(), spatial_sizes.end(), [](std::int64_t size) { return size > 0; }),
              "max_pool3d: given input size ", input, ", calculated output size ", at::IntArrayRef(spatial_sizes),
              ": output size is too small");
  OutputMeta values = suggested_meta(op, with_spatial_sizes(op, spatial_sizes)), indices = values;
  indices.dtype = c10::ScalarType::Long;
  return {values, indices};
}

std::vector<OutputMeta> padded_outputs(const OpArgs& op) {
  const auto padding = op.integers("padding");
  at::DimVector sizes(op.sizes(0).require(padding.size() / 2));
  for (std::size_t i = 0; i < padding.size(); ++i) sizes[sizes.size() - 1 - i / 2] += padding[i];
  return {suggested_on_cpu(op, sizes)};
}

// [N, C, H, W] to [N, C kernel, windows].
std::vector<OutputMeta> im2col_outputs(const OpArgs& op) {
  const auto kernel = op.integers("kernel_size", 2), padding = op.integers("padding", 2);
  const auto dilation = op.integers("dilation", 2), stride = op.integers("stride", 2);
  at::DimVector sizes(op.sizes(0).require(3).drop_back(2));
  std::int64_t windows = 1;
  for (std::size_t d = 0; d < 2; ++d) {
    sizes.back() *= kernel[d];
    const auto span = dilation[d] * (kernel[d] - 1) + 1;
    windows *= div_rtn<std::int64_t>(op.sizes(0).from_end(2 - d) + 2 * padding[d] - span, stride[d]) + 1;
  }
  sizes.push_back(windows);
  return {dense_meta(sizes, op.dtype(0))};
}

std::vector<OutputMeta> col2im_outputs(const OpArgs& op) {
  const auto kernel = op.integers("kernel_size", 2), spatial_sizes = op.integers("output_size", 2);
  at::DimVector sizes(op.sizes(0).require(2).drop_back(1));
  for (const auto length : kernel) sizes.back() /= length;
  return {dense_meta(joined(sizes, spatial_sizes), op.dtype(0))};
}

// Without elements, the CPU kernel of pixel_unshuffle returns its operand's sizes.
std::vector<OutputMeta> shuffled_outputs(const OpArgs& op) {
  at::DimVector sizes(op.sizes(0).require(3).drop_back(3));
  const bool nothing = c10::multiply_integers(op.sizes(0)) == 0 && op.device() == c10::DeviceType::CPU;
  const bool together = op.has_arg("upscale_factor");
  if (nothing && !together) return like_operands(op, {0});
  const auto factor = op.integer(together ? "upscale_factor" : "downscale_factor"), spatial_sizes = factor * factor;
  sizes.push_back(together ? op.sizes(0).from_end(3) / spatial_sizes : op.sizes(0).from_end(3) * spatial_sizes);
  for (const std::size_t d : {2, 1}) {
    sizes.push_back(together ? op.sizes(0).from_end(d) * factor : op.sizes(0).from_end(d) / factor);
  }
  return {suggested_on_cpu(op, sizes)};
}

void add_pooling(RuleBook& book) {
  for (const auto& [op, count] : {std::pair{"avg_pool2d", 2}, {"avg_pool3d", 3}}) {
    add_rounding(book, std::string("aten::") + op, windowed_spatial_dims(count, "avg_pool_split"));
  }
  add_rounding(book, "aten::avg_pool1d", spatial_rule(1));
  book.rule("aten::adaptive_avg_pool1d", adaptive_average(1));
  book.rule("aten::max_pool2d_with_indices", windowed_spatial_dims(2, "max_pool_split"));
  book.rule("aten::max_pool3d_with_indices", windowed_spatial_dims(3, "max_pool_split")).outputs(max_pool3d_outputs);
  book.rule("aten::adaptive_max_pool2d", spatial_rule(2));
  book.rule("aten::adaptive_max_pool3d", spatial_rule(3));
  for (const char* op : {"aten::_adaptive_avg_pool2d", "aten::adaptive_avg_pool2d"}) {
    book.rule(op, adaptive_average(2)).outputs(suggested_output_size);
  }
  for (const char* op : {"aten::_adaptive_avg_pool3d", "aten::adaptive_avg_pool3d"}) {
    book.rule(op, adaptive_average(3)).outputs(output_size);
  }
  book.rule("aten::max_unpool2d", spatial_rule(2)).outputs(unpooled_outputs);
  book.rule("aten::max_unpool3d", spatial_rule(3)).outputs(unpooled_outputs);
  for (const std::size_t count : {2, 3}) {
    const std::string name = "pool" + std::to_string(count) + "d", max = "max_" + name + "_with_indices_backward";
    add_gradients(book, windowed_spatial_dims(count, "avg_pool_split_backward"), count,
                  {("avg_" + name + "_backward").c_str()});
    add_gradients(book, windowed_spatial_dims(count, "max_pool_split_backward").kernel("max_pool_split_backward"),
                  count, {max.c_str()});
    const std::string adaptive = "adaptive_max_" + name + "_backward",
                      fractional = "fractional_max_" + name + "_backward", kernel = name + "_backward_by_indices";
    add_gradients(book, spatial_rule(count).sharded_by_kernel("N", kernel).kernel(kernel), count,
                  {adaptive.c_str(), fractional.c_str()});
  }
  add_gradients(book, adaptive_average_backward(2), 2, {"_adaptive_avg_pool2d_backward"});
  add_gradients(book, adaptive_average_backward(3), 3,
                {"_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward"}, contiguous_gradient);
  // The samples are [batch, channel, spatial dimensions].
  for (const char* count : {"2", "3"}) {
    book.rule(std::string("aten::fractional_max_pool") + count + "d",
              Rule(std::string("ncS!, nc_ -> ncS, ncS | cS!, _c_ -> cS, cS; S = ") + count)
                  .sharded_by_kernel("nc", kSkipEmpty));
  }
}

void add_padding(RuleBook& book) {
  const auto pad = [](const std::string& kernel) {
    return elastic(Rule("X[padded]* -> X[padded]")
                       .dims("padded", padded_by("padding"))
                       .sharded_by_kernel("X", kernel)
                       .sharded_by_kernel("padded", kernel)
                       .linear({0}),
                   "padded");
  };
  for (const std::string kind : {"reflection_pad", "replication_pad"}) {
    for (const char* dims : {"1d", "2d", "3d"}) {
      const std::string name = "aten::" + kind + dims;
      book.rule(name, pad(kind + "_split")).outputs(padded_outputs);
      book.rule(name + "_backward", pad(kind + "_split_backward")).outputs([](const OpArgs& op) {
        return std::vector{suggested_on_cpu(op, op.sizes(1), 1)};
      });
    }
  }
}

// Nearest-neighbor variants move elements; the others compute weighted sums, which are rounded for integers. Kernels
// for sharded spatial dimensions do not round.
void add_interpolation(RuleBook& book, const std::string& kind, std::size_t count, const char* kernel) {
  const bool picks = kind.starts_with("nearest");
  const auto forward = kernel != nullptr ? windowed_spatial_dims(count, kernel) : spatial_rule(count);
  const auto backward =
      kernel != nullptr ? windowed_spatial_dims(count, (std::string(kernel) + "_backward").c_str()) : forward;
  for (const char* prefix : {"aten::upsample_", "aten::_upsample_"}) {
    const std::string name = prefix + kind;
    if (picks) {
      book.rule(name, Rule(forward).linear({0}));
    } else if (kernel == nullptr) {
      add_rounding(book, name, forward);
    } else {
      const auto rounding = [count, linear = Rule(forward).linear({0})](const OpArgs& call) {
        return c10::isIntegralType(call.dtype(0), true) ? spatial_rule(count) : linear;
      };
      book.rule(name, rounding, Rule(forward).linear({0}).str() + ", linear and split in fractions");
    }
    book.rule(name + "_backward", Rule(backward).linear({0})).local_size("input_size");
  }
}

void add_resampling(RuleBook& book) {
  for (const std::size_t count : {1, 2, 3}) {
    const std::string dims = std::to_string(count) + "d";
    add_interpolation(book, "nearest" + dims, count, "nearest_split");
    add_interpolation(book, "nearest_exact" + dims, count, "nearest_exact_split");
  }
  add_interpolation(book, "linear1d", 1, "linear_split");
  add_interpolation(book, "bilinear2d", 2, "linear_split");
  add_interpolation(book, "trilinear3d", 3, "linear_split");
  add_interpolation(book, "bicubic2d", 2, "cubic_split");
  add_interpolation(book, "bilinear2d_aa", 2, "linear_aa_split");
  add_interpolation(book, "bicubic2d_aa", 2, "cubic_aa_split");
  for (const char* kind : {"lanczos2d", "lanczos2d_aa"}) add_interpolation(book, kind, 2, nullptr);
}

// The kernel computes the gradients of grid and input together, so the gradient of the grid is always returned.
std::vector<OutputMeta> grid_gradients(const OpArgs& op) {
  auto outputs = like_operands(op, {1, 2});
  if (op.has_arg("output_mask") && !op.arg("output_mask").toBoolList()[0]) outputs[0] = undefined_meta();
  return outputs;
}

std::vector<OutputMeta> sampled_outputs(const OpArgs& op) {
  const auto input = op.sizes(0).require(3), grid = op.sizes(1).require(2);
  TORCH_CHECK(input[0] == grid[0],
              "grid_sampler(): expected grid and input to have same batch size, but got input with sizes ", input,
              " and grid with sizes ", grid);
  at::DimVector sizes(grid.drop_back(1));
  sizes.insert(sizes.begin() + 1, input[1]);
  return {dense_meta(sizes, op.dtype(0))};
}

void add_grids(RuleBook& book) {
  for (const char* op : {"aten::grid_sampler_2d", "aten::_grid_sampler_2d_cpu_fallback"}) {
    book.rule(op, "nc__, nhw_ -> nchw").linear({0}).outputs(sampled_outputs);
    book.rule(std::string(op) + "_backward", Rule("nchw, nc__, nhw_ -> nc__, nhw_").linear({0}))
        .outputs(grid_gradients);
  }
  book.rule("aten::grid_sampler_3d", "nc___, ndhw_ -> ncdhw").linear({0}).outputs(sampled_outputs);
  book.rule("aten::grid_sampler_3d_backward", Rule("ncdhw, nc___, ndhw_ -> nc___, ndhw_").linear({0}))
      .outputs(grid_gradients);
  book.rule("aten::cudnn_grid_sampler", "nc__, nhw_ -> nchw").linear({0});
  book.rule("aten::cudnn_grid_sampler_backward", Rule("nc__, nhw_, nchw -> nc__, nhw_").linear({2}))
      .outputs([](const OpArgs& call) {
        return like_operands(call, {0, 1});
      });
}

}  // namespace

void add_pooling_rules(RuleBook& book) {
  add_pooling(book);
  add_padding(book);
  add_resampling(book);
  add_grids(book);
  // Channels and spatial dimensions are converted into each other, so channels are unsharded. The kernel fetches the
  // rows of shards that do not consist of full blocks.
  for (const std::string op : {"pixel_shuffle", "pixel_unshuffle"}) {
    const std::string kernel = op + "_split";
    book.rule("aten::" + op,
              elastic(Rule("..._hw -> ..._hw").sharded_by_kernel("...", kernel).sharded_by_kernel("hw", kernel), "hw"))
        .linear({0})
        .outputs(shuffled_outputs);
  }
  // Windows are in row-major order, so shards of rows are shards of windows.
  const auto windows = [](const char* text, const char* kernel) {
    return elastic(Rule(text).sharded_by_kernel("...", kernel).sharded_by_kernel("h", kernel), "h").linear({0});
  };
  book.rule("aten::im2col", windows("..._h_ -> ..._h", "im2col_split")).outputs(im2col_outputs);
  book.rule("aten::col2im", windows("..._h -> ..._h_", "col2im_split")).outputs(col2im_outputs);
  book.rule("aten::native_channel_shuffle", "nc!S -> ncS").structural({0});
  book.rule("aten::channel_shuffle", "nc!S -> ncS").structural({0}).outputs([](const OpArgs& call) {
    return std::vector{suggested_on_cpu(call, call.sizes(0))};
  });
}

}  // namespace dtensor
