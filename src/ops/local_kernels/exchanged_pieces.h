// Shared functions of kernels over sharded spatial dimensions: halo exchanges of several dimensions in sequence, and
// operator calls on pieces of the fetched rows.
#pragma once

#include <functional>

#include "ops/local_kernels/local_args.h"
#include "redistribute/regions/halo_exchange.h"

namespace dtensor {

// One exchange for each sharded dimension, in ascending order.
using HaloExchanges = std::vector<HaloExchange>;
using Piece = HaloExchange::Piece;

// The number of an int[] argument for spatial dimension `place`. A list of one number applies to all dimensions.
std::int64_t number_at(const LocalArgs& args, const char* name, std::size_t place);

// Adds rows of `value` before and after; negative numbers remove rows. A view if none are added.
at::Tensor resized(const at::Tensor& rows, std::int64_t dim, std::int64_t before, std::int64_t after,
                   const at::Scalar& value = 0);
// The rows of a piece, padded with `value` where its windows extend beyond the tensor.
at::Tensor padded_rows(const at::Tensor& fetched, std::int64_t dim, const Piece& piece, const at::Scalar& value = 0);
// The same of what fetch_halo(halos, ...) returned for `exchange`.
at::Tensor padded_rows(const at::Tensor& fetched, const HaloExchange& exchange, const Piece& piece,
                       const at::Scalar& value = 0);

// The rows that a piece reads, of those that were fetched for this exchange.
using RowsOfPiece = std::function<at::Tensor(const at::Tensor& fetched, const HaloExchange& exchange, const Piece&)>;
// padded_rows().
RowsOfPiece padded_with(const at::Scalar& value);
// The computation of one piece of each exchange: on the piece's rows of local tensors, and on the rows that it reads.
using PieceKernel =
    std::function<void(const std::vector<at::Tensor>& parts, const at::Tensor& rows, const std::vector<Piece>& pieces)>;
// Calls `run` for each combination of pieces. Tensors of `local` have the rows of the result of all exchanges;
// undefined ones stay undefined.
void for_each_piece(const HaloExchanges& halos, const std::vector<at::Tensor>& local, const at::Tensor& fetched,
                    const PieceKernel& run, const RowsOfPiece& rows_of = padded_with(0),
                    const std::vector<Piece>& outer = {});
bool has_one_piece(const HaloExchanges& halos);

at::Tensor joined(const std::vector<at::Tensor>& parts, std::int64_t dim);
at::Tensor sum_but_channels(const at::Tensor& grad);              // the gradient of a convolution's bias
at::Tensor zeros_of(const LocalCall& call, const SpecPtr& spec);  // undefined if `spec` is null
at::Tensor empty_of(const LocalCall& call, const SpecPtr& spec);  // the same without values

// The exchanges for all spatial dimensions (2 and later) along which a convolution's `operand` is sharded, to compute
// `result` (or its gradient). `transposed`: the operand is the input of a transposed convolution.
HaloExchanges halo_exchanges_of_convolution(const LocalCall& call, const LocalArgs& args, const TensorSpec& operand,
                                            const TensorSpec& result, bool transposed = false);
// The convolution's arguments for a piece, without padding along sharded dimensions: the piece already contains it, or
// the result is cropped.
torch::jit::Stack convolution_piece_arguments(const LocalCall& call, const LocalArgs& args, const HaloExchanges& halos,
                                              std::int64_t groups);

// Calls the operator on the arguments of one piece, of which `of_piece` replaces some by name, and returns its results.
// An out= argument is dropped, since it belongs to all pieces.
torch::jit::Stack run_piece(const LocalCall& call, torch::jit::Stack arguments,
                            std::initializer_list<std::pair<const char*, at::Tensor>> of_piece);

// The rows that this rank reads. Along a dimension with one piece, they include its padding of `value`.
at::Tensor fetch_halo(const HaloExchanges& halos, const at::Tensor& local, const at::Scalar& value = 0);
// The same with other margins.
at::Tensor fetch_halo(const HaloExchanges& halos, at::Tensor local, at::ArrayRef<HaloExchange::Margin> margins,
                      const at::Scalar& value);
at::Tensor reduce_halo(const HaloExchanges& halos, at::Tensor shares);

}  // namespace dtensor
