// Halo exchanges of several dimensions in sequence, and operator calls on pieces of the fetched rows.
#include "ops/local_kernels/exchanged_pieces.h"

#include <algorithm>

#include "ops/dispatch/functional_overload.h"

namespace dtensor {

std::int64_t number_at(const LocalArgs& args, const char* name, std::size_t place) {
  const auto list = args.value(name).toIntVector();
  return list[list.size() == 1 ? 0 : place];
}

at::Tensor resized(const at::Tensor& rows, std::int64_t dim, std::int64_t before, std::int64_t after,
                   const at::Scalar& value) {
  const auto begin = std::max<std::int64_t>(-before, 0), end = rows.size(dim) - std::max<std::int64_t>(-after, 0);
  const auto kept = rows.narrow(dim, begin, end - begin);
  if (before <= 0 && after <= 0) return kept;
  std::vector<std::int64_t> amounts(static_cast<std::size_t>(2 * (rows.dim() - dim)), 0);
  amounts[amounts.size() - 2] = std::max<std::int64_t>(before, 0);
  amounts[amounts.size() - 1] = std::max<std::int64_t>(after, 0);
  return at::constant_pad_nd(kept, amounts, value);
}

at::Tensor padded_rows(const at::Tensor& fetched, std::int64_t dim, const Piece& piece, const at::Scalar& value) {
  return resized(fetched.narrow(dim, piece.from, piece.length), dim, piece.before, piece.after, value);
}

at::Tensor padded_rows(const at::Tensor& fetched, const HaloExchange& exchange, const Piece& piece,
                       const at::Scalar& value) {
  return exchange.pieces().size() == 1 ? fetched : padded_rows(fetched, exchange.dim(), piece, value);
}

RowsOfPiece padded_with(const at::Scalar& value) {
  return [value](const at::Tensor& fetched, const HaloExchange& exchange, const Piece& piece) {
    return padded_rows(fetched, exchange, piece, value);
  };
}

void for_each_piece(const HaloExchanges& halos, const std::vector<at::Tensor>& local, const at::Tensor& fetched,
                    const PieceKernel& run, const RowsOfPiece& rows_of, const std::vector<Piece>& outer) {
  if (outer.size() == halos.size()) return run(local, fetched, outer);
  const auto& exchange = halos[outer.size()];
  for (const Piece& piece : exchange.pieces()) {
    std::vector<at::Tensor> parts;
    for (const auto& t : local) parts.push_back(t.defined() ? t.narrow(exchange.dim(), piece.first, piece.rows) : t);
    auto pieces = outer;
    pieces.push_back(piece);
    for_each_piece(halos, parts, rows_of(fetched, exchange, piece), run, rows_of, pieces);
  }
}

bool has_one_piece(const HaloExchanges& halos) {
  return std::all_of(halos.begin(), halos.end(), [](const auto& exchange) { return exchange.pieces().size() == 1; });
}

at::Tensor sum_but_channels(const at::Tensor& grad) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t d = 2; d < grad.dim(); ++d) dims.push_back(d);
  return grad.sum(dims);
}

at::Tensor joined(const std::vector<at::Tensor>& parts, std::int64_t dim) {
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim);
}

at::Tensor zeros_of(const LocalCall& call, const SpecPtr& spec) {
  if (!spec) return {};
  return at::zeros(spec->local_sizes, at::TensorOptions(spec->dtype).device(at::Device(call.mesh.device)));
}

at::Tensor empty_of(const LocalCall& call, const SpecPtr& spec) {
  if (!spec) return {};
  return at::empty(spec->local_sizes, at::TensorOptions(spec->dtype).device(at::Device(call.mesh.device)));
}

torch::jit::Stack run_piece(const LocalCall& call, torch::jit::Stack arguments,
                            std::initializer_list<std::pair<const char*, at::Tensor>> of_piece) {
  for (const auto& [name, tensor] : of_piece) arguments[index_of(call, name)] = tensor;
  while (call.info.has_out && call.info.args[arguments.size() - 1].out) arguments.pop_back();
  (call.info.has_out ? functional_overload(call.info.op) : call.info.op).callBoxed(arguments);
  return arguments;
}

at::Tensor fetch_halo(const HaloExchanges& halos, const at::Tensor& local, const at::Scalar& value) {
  std::vector<HaloExchange::Margin> margins;
  for (const auto& exchange : halos) {
    if (exchange.pieces().size() != 1) continue;
    margins.push_back({exchange.dim(), exchange.pieces()[0].before, exchange.pieces()[0].after});
  }
  return fetch_halo(halos, local, margins, value);
}

at::Tensor fetch_halo(const HaloExchanges& halos, at::Tensor local, at::ArrayRef<HaloExchange::Margin> margins,
                      const at::Scalar& value) {
  // The last exchange adds all margins, since the others would send them.
  for (const auto& exchange : halos) {
    local = &exchange == &halos.back() ? exchange.fetch_halo(local, margins, value) : exchange.fetch_halo(local);
  }
  return local;
}

at::Tensor reduce_halo(const HaloExchanges& halos, at::Tensor shares) {
  for (auto exchange = halos.rbegin(); exchange != halos.rend(); ++exchange) shares = exchange->reduce_halo(shares);
  return shares;
}

HaloExchanges halo_exchanges_of_convolution(const LocalCall& call, const LocalArgs& args, const TensorSpec& operand,
                                            const TensorSpec& result, bool transposed) {
  HaloExchanges all;
  const auto weight = args.tensor("weight");
  for (std::int64_t d = 2; d < std::ssize(operand.sizes); ++d) {
    if (shard_axes(&operand, d) == 0) continue;
    const auto i = static_cast<std::size_t>(d - 2);
    const auto length = number_at(args, "dilation", i) * (weight.size(d) - 1) + 1;
    all.emplace_back(
        call.mesh, operand, result, d,
        Window{number_at(args, "stride", i), number_at(args, "padding", i), length, /*mirrored=*/false, transposed});
  }
  return all;
}

torch::jit::Stack convolution_piece_arguments(const LocalCall& call, const LocalArgs& args, const HaloExchanges& halos,
                                              std::int64_t groups) {
  const auto arguments = torch::jit::last(call.stack, call.info.args.size());
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  for (const char* name : {"padding", "output_padding"}) {
    std::vector<std::int64_t> amounts;
    for (std::int64_t d = 2; d < args.tensor("input").dim(); ++d) {
      amounts.push_back(number_at(args, name, static_cast<std::size_t>(d - 2)));
    }
    for (const auto& exchange : halos) amounts[static_cast<std::size_t>(exchange.dim() - 2)] = 0;
    stack[index_of(call, name)] = c10::IValue(amounts);
  }
  stack[index_of(call, "groups")] = groups;
  return stack;
}

}  // namespace dtensor
