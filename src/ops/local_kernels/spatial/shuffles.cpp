// Operators that exchange spatial positions and channels, with sharded spatial dimensions: pixel_shuffle,
// pixel_unshuffle, and im2col and col2im, whose windows are sharded in row-major order.
#include "ops/local_kernels/exchanged_pieces.h"
#include "redistribute/regions/part_views.h"

namespace dtensor {
namespace {

using Stack = torch::jit::Stack;

Stack arguments_of(const LocalCall& call) {
  const auto arguments = torch::jit::last(call.stack, call.info.args.size());
  return Stack(arguments.begin(), arguments.end());
}

at::Tensor run_on(const LocalCall& call, const Stack& stack, const at::Tensor& self) {
  return run_piece(call, stack, {{"self", self}}).back().toTensor();
}

void run_regular(LocalCall& call) {
  if (!return_zeros_if_empty(call)) call.info.op.callBoxed(call.stack);
}

// --- pixel_shuffle ---

// The operand rows that a range of result rows reads: each operand row becomes `factor` result rows, or `factor` rows
// become one.
Segment block_rows(const Segment& rows, std::int64_t factor, bool expands) {
  if (!expands) return {rows.offset * factor, rows.length * factor};
  const auto first = rows.offset / factor, end = (rows.offset + rows.length + factor - 1) / factor;
  return {first, rows.length > 0 ? end - first : 0};
}

HaloExchange exchange_of_blocks(const LocalCall& call, const TensorSpec& spec, std::int64_t dim, std::int64_t factor,
                                bool expands) {
  const AxisMask axes = shard_axes(&spec, dim);
  std::vector<Segments> fetched;
  for (const Segments& rows : segments_of_ranks(*call.outputs[0], dim, axes)) {
    auto& of_member = fetched.emplace_back();
    for (const Segment& s : rows) append_range(of_member, block_rows(s, factor, expands));
  }
  return {call.mesh.communicator(axes), dim, segments_of_ranks(spec, dim, axes), std::move(fetched)};
}

// This rank's result rows of the operator's result on all fetched rows.
at::Tensor own_rows(const LocalCall& call, const HaloExchange& exchange, const at::Tensor& result, std::int64_t factor,
                    bool expands) {
  const auto dim = exchange.dim();
  std::vector<at::Tensor> parts;
  for (const Segment& s : own_segments(call.outputs[0].get(), dim, call.outputs[0]->sizes[dim])) {
    const auto from = concatenated_index(exchange.fetched(), block_rows(s, factor, expands).offset);
    parts.push_back(result.narrow(dim,
                                  s.length == 0 ? 0
                                  : expands     ? from * factor + s.offset % factor
                                                : from / factor,
                                  s.length));
  }
  return joined(parts, dim);
}

template <bool expands>
void shuffle(LocalCall& call) {
  const LocalArgs args(call);
  const auto factor = args.integer(expands ? "upscale_factor" : "downscale_factor");
  const auto* spec = args.spec("self");
  auto local = args.tensor("self");
  HaloExchanges exchanges;
  for (const auto dim : {local.dim() - 2, local.dim() - 1}) {
    if (shard_axes(spec, dim) != 0) exchanges.push_back(exchange_of_blocks(call, *spec, dim, factor, expands));
  }
  if (exchanges.empty()) return run_regular(call);
  local = fetch_halo(exchanges, local);
  auto result = zeros_of(call, call.outputs[0]);
  if (result.numel() > 0) {
    result = run_on(call, arguments_of(call), local);
    for (const auto& exchange : exchanges) result = own_rows(call, exchange, result, factor, expands);
  }
  set_results(call, {result});
}

// --- im2col ---

// Rows of windows: `columns` windows in each of `rows` rows.
struct Grid {
  std::int64_t rows, columns;
  Window window;  // along the rows
};

Grid grid_of(const LocalArgs& args, std::int64_t height, std::int64_t width) {
  const auto span = [&](std::size_t i) {
    return number_at(args, "dilation", i) * (number_at(args, "kernel_size", i) - 1) + 1;
  };
  const auto count = [&](std::size_t i, std::int64_t n) {
    return (n + 2 * number_at(args, "padding", i) - span(i)) / number_at(args, "stride", i) + 1;
  };
  return {count(0, height), count(1, width), {number_at(args, "stride", 0), number_at(args, "padding", 0), span(0)}};
}

// The rows of windows that contain these windows.
Segment rows_of_windows(const Segment& windows, const Grid& grid) {
  const auto first = windows.offset / grid.columns, last = (windows.offset + windows.length - 1) / grid.columns;
  return {first, windows.length > 0 ? last + 1 - first : 0};
}

// The arguments for a piece, which contains the padding along the rows.
Stack grid_arguments(const LocalCall& call, const LocalArgs& args) {
  Stack stack = arguments_of(call);
  stack[index_of(call, "padding")] = std::vector<std::int64_t>{0, number_at(args, "padding", 1)};
  return stack;
}

void im2col_split(LocalCall& call) {
  const LocalArgs args(call);
  const auto* spec = args.spec("self");
  const auto self = args.tensor("self");
  const auto dim = self.dim() - 2, windows = call.outputs[0]->dim() - 1;
  const AxisMask axes = shard_axes(spec, dim);
  if (axes == 0) return run_regular(call);
  const Grid grid = grid_of(args, spec->sizes[dim], spec->sizes[dim + 1]);
  std::vector<Segments> rows;
  for (const Segments& of_member : segments_of_ranks(*call.outputs[0], windows, axes)) {
    auto& all = rows.emplace_back();
    for (const Segment& s : of_member) all.push_back(rows_of_windows(s, grid));
  }
  const HaloExchange exchange(call.mesh.communicator(axes), dim, segments_of_ranks(*spec, dim, axes), rows, grid.window,
                              spec->sizes[dim]);
  const auto fetched = exchange.fetch_halo(self);
  auto result = zeros_of(call, call.outputs[0]);
  std::vector<at::Tensor> parts;
  auto piece = exchange.pieces().begin();
  for (const Segment& s : own_segments(call.outputs[0].get(), windows, call.outputs[0]->sizes[windows])) {
    if (s.length == 0 || result.numel() == 0) continue;
    const auto part = run_on(call, grid_arguments(call, args), padded_rows(fetched, dim, *piece));
    parts.push_back(part.narrow(windows, s.offset - piece->row * grid.columns, s.length));
    ++piece;
  }
  set_results(call, {parts.empty() ? result : joined(parts, windows)});
}

// The windows that reach these rows of the result.
Segment windows_of_rows(const Segment& rows, const Grid& grid) {
  if (rows.length == 0) return {0, 0};
  Window window = grid.window;
  window.transposed = true;
  const Segment span = window_span(rows, window);
  const auto first = std::clamp<std::int64_t>(span.offset, 0, grid.rows),
             end = std::clamp(span.offset + span.length, first, grid.rows);
  return {first * grid.columns, (end - first) * grid.columns};
}

// The rows `own` of the sum of these windows.
at::Tensor sum_of_windows(const LocalCall& call, const LocalArgs& args, const Grid& grid, const at::Tensor& columns,
                          std::int64_t first_window, const Segment& own) {
  const auto rows = columns.size(-1) / grid.columns;
  const auto height = (rows - 1) * grid.window.stride + grid.window.length;
  Stack stack = grid_arguments(call, args);
  stack[index_of(call, "output_size")] = std::vector<std::int64_t>{height, number_at(args, "output_size", 1)};
  const auto begin = first_window / grid.columns * grid.window.stride - grid.window.before;
  const auto sum = run_on(call, std::move(stack), columns);
  return at::constant_pad_nd(sum, {0, 0, begin - own.offset, own.offset + own.length - begin - height});
}

void col2im_split(LocalCall& call) {
  const LocalArgs args(call);
  const auto* spec = args.spec("self");
  const auto self = args.tensor("self");
  const auto windows = self.dim() - 1, dim = call.outputs[0]->dim() - 2;
  const AxisMask axes = shard_axes(spec, windows);
  if (axes == 0) return run_regular(call);
  const auto& sizes = call.outputs[0]->sizes;
  const Grid grid = grid_of(args, sizes[dim], sizes[dim + 1]);
  std::vector<Segments> wanted;
  for (const Segments& of_member : segments_of_ranks(*call.outputs[0], dim, axes)) {
    auto& all = wanted.emplace_back();
    for (const Segment& s : of_member) append_range(all, windows_of_rows(s, grid));
  }
  const HaloExchange exchange(call.mesh.communicator(axes), windows, segments_of_ranks(*spec, windows, axes),
                              std::move(wanted));
  const auto fetched = exchange.fetch_halo(self);
  auto result = zeros_of(call, call.outputs[0]);
  std::int64_t first = 0;
  for (const Segment& s : own_segments(call.outputs[0].get(), dim, sizes[dim])) {
    const Segment read = windows_of_rows(s, grid);
    if (read.length > 0 && result.numel() > 0) {
      const auto columns = fetched.narrow(windows, concatenated_index(exchange.fetched(), read.offset), read.length);
      result.narrow(dim, first, s.length).copy_(sum_of_windows(call, args, grid, columns, read.offset, s));
    }
    first += s.length;
  }
  set_results(call, {result});
}

}  // namespace

void add_shuffle_kernels(LocalKernels& kernels) {
  kernels.emplace("pixel_shuffle_split", shuffle<true>);
  kernels.emplace("pixel_unshuffle_split", shuffle<false>);
  kernels.emplace("im2col_split", im2col_split);
  kernels.emplace("col2im_split", col2im_split);
}

}  // namespace dtensor
