// What kernels over split spatial dimensions share: several exchanges one after the other, and pieces of what they
// brought.
#pragma once

#include "ops/local_kernels/local_args.h"
#include "ops/local_kernels/spatial/halo_exchange.h"

namespace dtensor {

// One for each dimension that is split, in rising order.
using HaloExchanges = std::vector<HaloExchange>;
using Piece = HaloExchange::Piece;

// An int[] argument that may name one number for all spatial dimensions.
std::int64_t number_at(const LocalArgs& args, const char* name, std::size_t place);

// The rows of a piece, `value` where its windows look at padding.
at::Tensor padded_rows(const at::Tensor& fetched, std::int64_t dim, const Piece& piece, const at::Scalar& value = 0);
at::Tensor joined(const std::vector<at::Tensor>& parts, std::int64_t dim);
at::Tensor zeros_of(const LocalCall& call, const SpecPtr& spec);  // undefined for no spec

// Of each place (dimension 2 and on) that a convolution's `operand` and `result` (or its gradient) split; `transposed`:
// rows of the operand are those that reach the result's.
HaloExchanges halo_exchanges_of_convolution(const LocalCall& call, const LocalArgs& args, const TensorSpec& operand,
                                            const TensorSpec& result, bool transposed = false);
// Its arguments for a piece: no padding along the spatial dimensions that are split, which pieces bring along or whose
// results come whole.
torch::jit::Stack convolution_piece_arguments(const LocalCall& call, const LocalArgs& args, const HaloExchanges& halos,
                                              std::int64_t groups);

// The operator on the arguments of one piece, which its results replace. A destination (out=) is of all pieces
// together, so they go without.
void run_piece(const LocalCall& call, torch::jit::Stack& piece);

at::Tensor fetch_halo(const HaloExchanges& halos, at::Tensor local);
at::Tensor reduce_halo(const HaloExchanges& halos, at::Tensor shares);

}  // namespace dtensor
