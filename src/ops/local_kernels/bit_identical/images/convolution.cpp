// Convolutions and their gradients in a BitIdentical scope. A position of a result is a column of a product: a matrix
// of the weight times what the position reads. The weight's gradient is a tree over the batch; its leaves are trees
// over blocks of positions of an image, which end with each line.
#include "internal/microbatch_sums.h"
#include "ops/local_kernels/bit_identical/images/windows.h"
#include "ops/local_kernels/bit_identical/tiles.h"
#include "ops/local_kernels/exchanged_pieces.h"

namespace dtensor {
namespace {

using namespace bit_identical;

Placed placed(const LocalArgs& args, const char* name) { return {args.spec(name), args.global_sizes(name)}; }
Placed placed_result(const LocalCall& call, std::size_t i) { return {call.outputs[i].get(), call.outputs[i]->sizes}; }

// The number of groups whose channels this rank has.
std::int64_t own_groups(const LocalArgs& args) {
  const auto groups = args.integer("groups");
  return groups == 1 ? 1 : groups * args.tensor("weight").size(0) / args.global_sizes("weight")[0];
}

// Equal parts of the first dimension; none for a rank without groups.
std::vector<at::Tensor> parts_of_groups(const at::Tensor& channels, std::int64_t groups) {
  return groups == 0 ? std::vector<at::Tensor>() : channels.chunk(groups);
}

// For each group a matrix [channels of the result, channels of the source times the kernel].
std::vector<at::Tensor> matrices(const LocalArgs& args, bool reversed) {
  const auto weight = args.tensor("weight").flatten(2);
  std::vector<at::Tensor> all;
  for (const at::Tensor& part : parts_of_groups(weight, own_groups(args))) {
    all.push_back((reversed ? part.transpose(0, 1) : part).flatten(1).contiguous());
  }
  return all;
}

// This rank's part of the result.
at::Tensor convolve(const LocalCall& call, const Windows& windows, const std::vector<at::Tensor>& weights,
                    const at::Tensor& bias, const TensorSpec& result) {
  const auto out = at::empty(result.local_sizes, at::TensorOptions(result.dtype));
  if (weights.empty()) return out;
  const std::int64_t groups = std::ssize(weights), rows = weights[0].size(0), contracted = weights[0].size(1);
  const auto by_line = out.view({windows.images(), groups, rows, windows.lines(), windows.positions()});
  const Contracted k = contracted_of(call.mesh, nullptr, {contracted}, {0});
  const std::int64_t channels = contracted / windows.kernel();
  for (const ResultPart& part : windows.parts(windows.images(), channels, k.block)) {
    for (std::int64_t g = 0; g < groups; ++g) {
      auto product = multiply(weights[static_cast<std::size_t>(g)], windows.columns(g * channels, channels, part), k);
      if (bias.defined()) product = at::add(product, bias.narrow(0, g * rows, rows).to(product.dtype()).unsqueeze(1));
      by_line.narrow(0, part.image, part.images)
          .select(1, g)
          .narrow(2, part.line, part.lines)
          .narrow(3, part.position, part.positions)
          .copy_(product.view({rows, part.images, part.lines, part.positions}).transpose(0, 1));
    }
  }
  return out;
}

// The blocks of a part of an image, whose lines consist of `of_line` blocks.
Contracted blocks_of(const Contracted& image, const ResultPart& part, std::int64_t of_line) {
  Contracted blocks;
  blocks.block = image.block;
  blocks.leaves.count = image.leaves.count;
  const std::int64_t first = part.line * of_line + part.position / image.block;
  const std::int64_t count = part.lines * ((part.positions + image.block - 1) / image.block);
  std::int64_t begin = 0;
  for (std::int64_t i = first; i < first + count; ++i) {
    const auto& range = image.ranges[static_cast<std::size_t>(i)];
    append_range(blocks.leaves.own, {range.leaf, 1});
    blocks.ranges.push_back({range.leaf, begin, range.length});
    begin += range.length;
  }
  return blocks;
}

// The gradient of one group's weight by one image. `grad` [channels, positions of an image] belongs to the windows.
at::Tensor image_gradient(const at::Tensor& grad, const Windows& windows, std::int64_t image,
                          std::int64_t first_channel, std::int64_t channels, const Contracted& positions) {
  TensorSum sum(positions.leaves.count);
  const std::int64_t of_line = (windows.positions() + positions.block - 1) / positions.block;
  TORCH_INTERNAL_ASSERT(std::ssize(positions.ranges) == windows.lines() * of_line, "lines consist of entire blocks");
  for (ResultPart part : windows.parts(1, channels, positions.block)) {
    part.image = image;
    const Contracted blocks = blocks_of(positions, part, of_line);
    const auto rows = grad.narrow(1, part.line * windows.positions() + part.position, part.count());
    const auto products = multiply_nodes(rows, windows.columns(first_channel, channels, part).t(), blocks);
    const auto nodes = nodes_of(blocks.leaves.own, blocks.leaves.count);
    for (std::size_t i = 0; i < nodes.size(); ++i) sum.add(nodes[i], products[static_cast<std::int64_t>(i)]);
  }
  const auto options = grad.options().dtype(sum_type(grad.scalar_type()));
  return complete(sum.nodes({grad.size(0), channels * windows.kernel()}, options), positions.leaves);
}

at::Tensor weight_gradient(const LocalCall& call, const LocalArgs& args) {
  const bool transposed = args.flag("transposed");
  const char *image = transposed ? "grad_output" : "input", *grad_name = transposed ? "input" : "grad_output";
  const Placed of_grad = placed(args, grad_name);
  const Windows windows(call, args.tensor(image), placed(args, image), of_grad, /*reversed=*/false);
  const auto grad = args.tensor(grad_name).flatten(2);
  const auto spatial = first_dims(std::ssize(of_grad.sizes));
  const Contracted positions = contracted_of(call.mesh, of_grad.spec, of_grad.sizes, at::IntArrayRef(spatial).slice(2));
  const Leaves batch = leaves_of(call.mesh, of_grad.spec, of_grad.sizes, {0}, 1);
  note_batch_sum(batch.count);
  const std::int64_t groups = own_groups(args), channels = args.tensor("weight").size(1);
  const auto options = grad.options().dtype(sum_type(grad.scalar_type()));
  const auto none = at::empty({0, channels * windows.kernel()}, options);
  TensorSum sum(batch.count);
  std::int64_t local = 0;
  for (const Segment& s : batch.own) {
    for (std::int64_t i = s.offset; i < s.offset + s.length; ++i, ++local) {
      std::vector<at::Tensor> parts{none};
      for (const at::Tensor& of_group : parts_of_groups(grad[local], groups)) {
        const std::int64_t first_channel = (std::ssize(parts) - 1) * channels;
        parts.push_back(image_gradient(of_group, windows, local, first_channel, channels, positions));
      }
      sum.add({0, i}, at::cat(parts));
    }
  }
  return complete(sum.nodes({grad.size(1), channels * windows.kernel()}, options), batch);
}

at::Tensor input_gradient(const LocalCall& call, const LocalArgs& args) {
  const bool reversed = !args.flag("transposed");
  const Windows windows(call, args.tensor("grad_output"), placed(args, "grad_output"), placed_result(call, 0),
                        reversed);
  return convolve(call, windows, matrices(args, reversed), {}, *call.outputs[0]);
}

bool has_elements(const LocalArgs& args, std::initializer_list<const char*> names) {
  return std::all_of(names.begin(), names.end(),
                     [&](const char* name) { return c10::multiply_integers(args.global_sizes(name)) != 0; });
}

void tiled_convolution(LocalCall& call) {
  const LocalArgs args(call);
  const auto input = args.tensor("input");
  check_values(call, input);
  if (!has_elements(args, {"input", "weight"})) return set_results(call, {zeros_of(call, call.outputs[0])});
  const bool reversed = args.flag("transposed");
  const Windows windows(call, input, placed(args, "input"), placed_result(call, 0), reversed);
  set_results(call, {convolve(call, windows, matrices(args, reversed), args.tensor("bias"), *call.outputs[0])});
}

void tiled_convolution_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto mask = args.value("output_mask").toBoolList();
  const auto grad = args.tensor("grad_output");
  check_values(call, grad);
  std::vector<at::Tensor> results(3);
  if (!has_elements(args, {"input", "weight", "grad_output"})) {
    for (std::size_t i = 0; i < 3; ++i) results[i] = zeros_of(call, call.outputs[i]);
    return set_results(call, std::move(results));
  }
  if (mask[0]) results[0] = input_gradient(call, args);
  if (mask[1]) {
    const TensorSpec& weight = *call.outputs[1];
    results[1] = weight_gradient(call, args).view(weight.local_sizes).to(weight.dtype);
  }
  if (mask[2]) {
    const Placed of_grad = placed(args, "grad_output");
    results[2] = sum_of_channels(call.mesh, of_grad.spec, of_grad.sizes, grad).to(call.outputs[2]->dtype);
  }
  set_results(call, std::move(results));
}

}  // namespace

void add_tiled_convolution_kernels(LocalKernels& kernels) {
  kernels.emplace("tiled_convolution", tiled_convolution);
  kernels.emplace("tiled_convolution_backward", tiled_convolution_backward);
}

}  // namespace dtensor
