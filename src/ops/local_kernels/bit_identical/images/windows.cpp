// Exchanges the rows that windows read, and copies them to columns.
#include "ops/local_kernels/bit_identical/images/windows.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "ops/local_kernels/exchanged_pieces.h"
#include "redistribute/regions/part_views.h"

namespace dtensor::bit_identical {
namespace {

constexpr std::int64_t kElements = 1 << 20;  // of the columns of a part

// `held`: the rows of the source that this rank has, of `n`.
Reads reads_of(const Segments& result, const Segments& held, std::int64_t n, const Window& window,
               std::int64_t dilation, std::int64_t kernel) {
  Reads reads{total_length(result), kernel, {}};
  for (std::int64_t k = 0; k < kernel; ++k) {
    for (const Segment& s : result) {
      for (std::int64_t row = s.offset; row < s.offset + s.length; ++row) {
        std::int64_t from = row * window.stride - window.before + k * dilation;
        if (window.transposed) {
          const std::int64_t distance = row + window.before - k * dilation;
          from = distance % window.stride == 0 ? distance / window.stride : -1;
        }
        reads.source.push_back(from < 0 || from >= n ? -1 : concatenated_index(held, from));
      }
    }
  }
  return reads;
}

}  // namespace

Windows::Windows(const LocalCall& call, const at::Tensor& source, const Placed& of_source, const Placed& of_result,
                 bool reversed) {
  const LocalArgs args(call);
  const auto weight = args.tensor("weight");
  const std::int64_t spatial = source.dim() - 2;
  TORCH_CHECK_NOT_IMPLEMENTED(spatial >= 1 && spatial <= 3, call.info.name(), " of ", spatial,
                              " spatial dimensions has no bit-identical form; expected 1 to 3");
  std::vector<std::int64_t> sizes{source.size(0), source.size(1), 1, 1, 1};
  at::Tensor rows = source;
  for (std::int64_t d = 2; d < source.dim(); ++d) {
    const auto i = static_cast<std::size_t>(d - 2), at = static_cast<std::size_t>(3 - spatial) + i;
    const std::int64_t n = of_source.sizes[i + 2], kernel = weight.size(d), dilation = number_at(args, "dilation", i);
    const Window window{number_at(args, "stride", i), number_at(args, "padding", i), dilation * (kernel - 1) + 1,
                        /*mirrored=*/false, reversed};
    Segments held{{0, n}};
    if (shard_axes(of_source.spec, d) != 0) {
      const HaloExchange exchange(call.mesh, *of_source.spec, *of_result.spec, d, window);
      rows = exchange.fetch_halo(rows);
      held = exchange.fetched();
    }
    dims_[at] = reads_of(own_segments(of_result.spec, d, of_result.sizes[i + 2]), held, n, window, dilation, kernel);
    sizes[2 + at] = rows.size(d);
  }
  source_ = rows.contiguous().view(sizes);
}

std::vector<ResultPart> Windows::parts(std::int64_t images, std::int64_t channels, std::int64_t block) const {
  std::vector<ResultPart> all;
  const std::int64_t of_line = positions(), most = std::max(kElements / (channels * kernel()), block);
  if (of_line == 0 || lines() == 0) return all;
  const std::int64_t width = std::min(of_line, most / block * block);
  const std::int64_t height = std::clamp<std::int64_t>(most / of_line, 1, lines());
  const std::int64_t depth = std::clamp<std::int64_t>(most / (of_line * lines()), 1, std::max<std::int64_t>(images, 1));
  for (std::int64_t n = 0; n < images; n += depth) {
    for (std::int64_t y = 0; y < lines(); y += height) {
      for (std::int64_t x = 0; x < of_line; x += width) {
        all.push_back(
            {n, std::min(depth, images - n), y, std::min(height, lines() - y), x, std::min(width, of_line - x)});
      }
    }
  }
  return all;
}

at::Tensor Windows::columns(std::int64_t first_channel, std::int64_t channels, const ResultPart& part) const {
  const auto out = at::empty({channels * kernel(), part.count()}, source_.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "a convolution in a BitIdentical scope",
                                  [&] { copy_columns<scalar_t>(first_channel, part, out); });
  return out;
}

template <class T>
void Windows::copy_columns(std::int64_t first_channel, const ResultPart& part, const at::Tensor& out) const {
  const T* all = source_.const_data_ptr<T>();
  const auto& [z, y, x] = dims_;
  at::parallel_for(0, out.size(0), 1, [&, &z = z, &y = y, &x = x](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t channel = first_channel + row / kernel(), k = row % kernel();
      const std::int64_t kx = k % x.kernel, ky = k / x.kernel % y.kernel, kz = k / x.kernel / y.kernel;
      const std::int64_t* in_line = x.source.data() + kx * x.positions + part.position;
      T* to = out.mutable_data_ptr<T>() + row * out.size(1);
      for (std::int64_t i = 0; i < part.images * part.lines; ++i, to += part.positions) {
        const std::int64_t image = part.image + i / part.lines, line = part.line + i % part.lines;
        const std::int64_t from_z = z.source[static_cast<std::size_t>(kz * z.positions + line / y.positions)];
        const std::int64_t from_y = y.source[static_cast<std::size_t>(ky * y.positions + line % y.positions)];
        if (from_z < 0 || from_y < 0) {
          std::fill_n(to, part.positions, T(0));
          continue;
        }
        const T* from = all + (((image * channels() + channel) * source_.size(2) + from_z) * source_.size(3) + from_y) *
                                  source_.size(4);
        for (std::int64_t p = 0; p < part.positions; ++p) to[p] = in_line[p] < 0 ? T(0) : from[in_line[p]];
      }
    }
  });
}

}  // namespace dtensor::bit_identical
