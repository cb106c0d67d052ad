// What kernels over split places share: several exchanges one after the other, and pieces of what they brought.
#pragma once

#include "ops/handlers/local_args.h"
#include "ops/handlers/windows.h"

namespace dtensor {

// One for each dimension that is split, in rising order.
using Exchanges = std::vector<WindowExchange>;
using Piece = WindowExchange::Piece;

// An int[] argument that may name one number for all places.
std::int64_t number_at(const LocalArgs& args, const char* name, std::size_t place);

// The rows of a piece, `value` where its windows look at padding.
at::Tensor looked_at(const at::Tensor& fetched, std::int64_t dim, const Piece& piece, const at::Scalar& value = 0);
at::Tensor joined(const std::vector<at::Tensor>& parts, std::int64_t dim);
at::Tensor zeros_of(const LocalCall& call, const SpecPtr& spec);  // undefined for no spec

// Of each place (dimension 2 and on) that a convolution's `operand` and `result` (or its gradient) split; `transposed`:
// rows of the operand are those that reach the result's.
Exchanges exchanges_of_convolution(const LocalCall& call, const LocalArgs& args, const TensorSpec& operand,
                                   const TensorSpec& result, bool transposed = false);
// Its arguments for a piece: no padding along the places that are split, which pieces bring along or whose results come
// whole.
torch::jit::Stack arguments_of_convolution(const LocalCall& call, const LocalArgs& args, const Exchanges& places,
                                           std::int64_t groups);

// The operator on the arguments of one piece, which its results replace. A destination (out=) is of all pieces
// together, so they go without.
void run_piece(const LocalCall& call, torch::jit::Stack& piece);

at::Tensor fetch(const Exchanges& places, at::Tensor local);
at::Tensor give_back(const Exchanges& places, at::Tensor shares);

}  // namespace dtensor
