// Sizes of oneDNN's LSTM by its own layout: each tensor is a number of rows, rows are aligned, and tensors begin on
// pages. `DryRunRecurrent` compares with the kernel.
#include "dry_run/recurrent.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "sharding_prop/rules/shared_parts.h"

namespace dtensor::dry {
namespace {

constexpr std::int64_t kGates = 4, kLine = 64, kPage = 4096, kFloat = 4;
constexpr std::int64_t kBookkeeping = 4664;  // bytes of a call, for any sizes
// Arguments of backward: gradients of the output, of the state and of the cell's state.
constexpr std::size_t kGradientOfOutput = 10, kGradientOfState = 11, kGradientOfCell = 12;

bool is_backward(const OpInfo& info) { return info.op.schema().name() == "aten::mkldnn_rnn_layer_backward"; }

std::int64_t rounded_up(std::int64_t number, std::int64_t unit) { return (number + unit - 1) / unit * unit; }
std::int64_t pages(std::int64_t bytes) { return rounded_up(bytes, kPage); }

// Bytes of a row of so many elements. Rows of a multiple of 256 elements would share lines of the cache.
std::int64_t row_bytes(std::int64_t count, std::int64_t element) {
  const auto line = kLine / element, aligned = rounded_up(count, line);
  return (aligned % 256 == 0 ? aligned + line : aligned) * element;
}

struct Layer {
  std::int64_t steps, rows, input, hidden, element;

  explicit Layer(const at::Tensor& x, const at::Tensor& recurrent_weight)
      : steps(x.size(0)),
        rows(x.size(1)),
        input(x.size(2)),
        hidden(recurrent_weight.size(1)),
        element(static_cast<std::int64_t>(x.element_size())) {}

  // Gates and states of all steps, in the order of forward. States are those before and after each step, of the layer's
  // input and output.
  std::int64_t workspace() const {
    const auto cells = steps * rows, states = 2 * (steps + 1) * rows;
    const auto widest = std::max(input, hidden);
    return pages(cells * row_bytes(kGates * hidden, element)) + pages(cells * row_bytes(hidden, element)) +
           pages(states * row_bytes(widest, element)) + 2 * pages(states * row_bytes(widest, kFloat)) +
           pages(states * hidden * element) + pages(states * hidden * kFloat);
  }

  // Packed weights, the sum of the biases, and gates and states of the kernel.
  std::int64_t forward_temporaries() const {
    return kGates * hidden * element + (input + hidden) * row_bytes(kGates * hidden, element) + scratch();
  }

  // Weights in the other order, which aligned rows need, gradients of the weights in rows, sums of biases, a copy of a
  // state; and all gradients in float before they are rounded.
  std::int64_t backward_temporaries() const {
    const auto transposed = [&](std::int64_t width) {
      const auto row = row_bytes(width, element);
      return row == width * kFloat ? 0 : kGates * hidden * row;
    };
    const auto wide = element == kFloat ? 0
                                        : kFloat * (2 * steps * rows * (input + hidden) + 4 * rows * hidden) / 2 +
                                              kFloat * kGates * hidden * (input + hidden) / 2;
    return 2 * kGates * hidden * element + rows * hidden * element + transposed(input) + transposed(hidden) +
           (input + hidden) * row_bytes(kGates * hidden, kFloat) + scratch() + wide;
  }

 private:
  // Gates of all steps; in bfloat16 of one, nearly.
  std::int64_t scratch() const {
    const auto cells = element == kFloat ? steps * rows : rows;
    return kBookkeeping + pages(cells * row_bytes(kGates * hidden, element)) + 2 * pages(rows * hidden * kFloat);
  }
};

Layer layer_of(c10::ArrayRef<c10::IValue> args) { return Layer(args[0].toTensor(), args[2].toTensor()); }

}  // namespace

bool is_recurrent(const OpInfo& info) {
  return info.op.schema().name() == "aten::mkldnn_rnn_layer" || is_backward(info);
}

// Operands: x, weights of the input and of the state, both biases (or tensors of other sizes for none), h, c. Results
// of backward: their gradients.
std::vector<OutputMeta> recurrent_outputs(const OpCall& call) {
  const auto layer = layer_of(call.args);
  const auto type = call.dtype(0);
  if (is_backward(*call.info)) {
    auto gradients = like_operands(call, {0, 1, 2, 3, 4, 5, 6});
    gradients[3] = gradients[4] = dense_meta({kGates * layer.hidden}, type);
    return gradients;
  }
  return {dense_meta({layer.steps, layer.rows, layer.hidden}, type), dense_meta(call.sizes(5), type),
          dense_meta(call.sizes(6), type), dense_meta({layer.workspace()}, at::kByte)};
}

// Backward copies a gradient of the output with gaps (of one of two directions), and makes zeros of gradients of states
// that it does not get.
std::int64_t recurrent_temporaries(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  const auto layer = layer_of(args);
  if (!is_backward(info)) return layer.forward_temporaries();
  const auto state = layer.rows * layer.hidden * layer.element;
  auto bytes = layer.backward_temporaries();
  if (args[kGradientOfOutput].isNone() || !args[kGradientOfOutput].toTensor().is_contiguous()) {
    bytes += layer.steps * state;
  }
  for (const auto gradient : {kGradientOfState, kGradientOfCell}) bytes += args[gradient].isNone() ? state : 0;
  return bytes;
}

}  // namespace dtensor::dry
