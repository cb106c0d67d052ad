// Splits and assembles tensors for the oracle: operands of Partial reductions, shards by the shard map, and replicas
// that must agree.
#include <ATen/ATen.h>

#include "placement/shard_map.h"
#include "redistribute/regions/part_views.h"
#include "verify/oracle.h"

namespace dtensor {
namespace {

Coordinate coordinate_at(at::IntArrayRef shape, std::int64_t rank) {
  return coordinate_along(shape, ~AxisMask{0}, rank, Coordinate(shape.size()));
}

at::Tensor noise(at::IntArrayRef sizes, std::uint64_t seed) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randint(-4, 5, sizes, generator, at::TensorOptions(at::kLong));
}

// A factor of `full`: the product over all ranks is `full`. Factors have either sign; fractions are powers of two with
// exact inverses.
at::Tensor product_share(const at::Tensor& full, std::int64_t parts, std::int64_t index, std::uint64_t seed) {
  const bool fractions = full.is_floating_point() || full.is_complex();
  const auto factor = [&](std::int64_t r) {
    const at::Tensor negative = noise(full.sizes(), seed + static_cast<std::uint64_t>(r)).lt(0);
    return at::where(negative, fractions ? -2 : -1, fractions ? 2 : 1).to(full.scalar_type());
  };
  if (index > 0) return factor(index);
  at::Tensor rest = full;
  for (std::int64_t r = 1; r < parts; ++r) rest = fractions ? rest / factor(r) : rest * factor(r);
  return rest;
}

// The operand of rank `index` of `parts` in a reduction whose result is `full`. Operands differ between ranks.
at::Tensor contribution(const at::Tensor& full, ReduceOp op, std::int64_t parts, std::int64_t index,
                        std::uint64_t seed) {
  const auto at_rank = [&](std::int64_t r) {
    return noise(full.sizes(), seed * 31 + static_cast<std::uint64_t>(r)).to(full.scalar_type());
  };
  if (full.scalar_type() == at::kBool) return full;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: {
      const at::Tensor target = op == ReduceOp::avg ? full * parts : full;
      if (index + 1 < parts) return at_rank(index);
      at::Tensor rest = target.clone();
      for (std::int64_t r = 0; r + 1 < parts; ++r) rest = rest - at_rank(r);
      return rest;
    }
    case ReduceOp::max:
    case ReduceOp::min: {
      const at::Tensor away = at_rank(index).abs();
      const at::Tensor holder = at_rank(parts).abs().to(at::kLong).remainder(parts).eq(index);
      // For integers, overflow may move the value to the other side.
      const at::Tensor other = op == ReduceOp::max ? at::minimum(full - away, full) : at::maximum(full + away, full);
      return at::where(holder, full, other);
    }
    case ReduceOp::product:
      return product_share(full, parts, index, seed * 31);
  }
  return full;
}

struct Positions {
  std::vector<at::Tensor> index;  // per dimension, the global indices
};

Positions positions_of(at::IntArrayRef sizes, const Placements& placements, at::IntArrayRef shape,
                       at::IntArrayRef coordinate) {
  Positions positions;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const at::Tensor all = at::arange(sizes[d], at::kLong);
    positions.index.push_back(
        select_segments(all, 0, shard_segments(sizes[d], static_cast<std::int64_t>(d), placements, shape, coordinate)));
  }
  return positions;
}

// Advanced indices that address the outer product of the positions.
c10::List<std::optional<at::Tensor>> grid(const Positions& positions) {
  c10::List<std::optional<at::Tensor>> indices;
  for (std::size_t d = 0; d < positions.index.size(); ++d) {
    std::vector<std::int64_t> shape(positions.index.size(), 1);
    shape[d] = -1;
    indices.push_back(positions.index[d].view(shape));
  }
  return indices;
}

// Values, and a mask of the known ones.
struct Canvas {
  at::Tensor values, known;
};

void paint(Canvas& canvas, const at::Tensor& part, const Positions& positions) {
  if (part.dim() == 0) {
    TORCH_CHECK(!canvas.known.item<bool>() || same_values(canvas.values, part), "replicas differ");
    canvas.values.copy_(part);
    canvas.known.fill_(true);
    return;
  }
  const auto at = grid(positions);
  const at::Tensor known = canvas.known.index(at), before = canvas.values.index(at);
  TORCH_CHECK(same_values(at::where(known, before, part), part), "replicas differ");
  canvas.values.index_put_(at, part);
  canvas.known.index_put_(at, at::ones_like(part, at::kBool));
}

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  if (op == ReduceOp::max) return at::maximum(a, b);
  if (op == ReduceOp::min) return at::minimum(a, b);
  if (a.scalar_type() == at::kBool) return at::logical_or(a, b);
  return op == ReduceOp::product ? a * b : a + b;
}

// The tolerance for sums in another order.
double rounding(c10::ScalarType type) {
  if (c10::isFloat8Type(type)) return 0.13;
  if (type == at::kBFloat16) return 0.06;
  return type == at::kHalf ? 0.01 : 1e-4;
}

// 8-bit types have no arithmetic.
at::Tensor wide(const at::Tensor& t) { return c10::isFloat8Type(t.scalar_type()) ? t.to(at::kFloat) : t; }

}  // namespace

bool all_finite(const at::Tensor& tensor) {
  return (!tensor.is_floating_point() && !tensor.is_complex()) || wide(tensor).isfinite().all().item<bool>();
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_floating_point() && !a.is_complex()) return at::equal(a, b);
  const double tolerance = rounding(a.scalar_type());
  return at::allclose(wide(a), wide(b), tolerance, tolerance, true);
}

at::Tensor part_of_rank(const at::Tensor& full, const Placements& placements, at::IntArrayRef mesh_shape,
                        std::int64_t rank, std::uint64_t seed) {
  const Coordinate coordinate = coordinate_at(mesh_shape, rank);
  at::Tensor part = full;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (!placements[a].is_partial()) continue;
    // Equal for ranks that differ only on other axes.
    part = contribution(part, placements[a].reduce_op(), mesh_shape[a], coordinate[a], seed * 7 + a);
  }
  for (std::int64_t d = 0; d < full.dim(); ++d) {
    part = select_segments(part, d, shard_segments(full.size(d), d, placements, mesh_shape, coordinate));
  }
  return part;
}

at::Tensor assemble_parts(const std::vector<at::Tensor>& parts, at::IntArrayRef sizes, const Placements& placements,
                          at::IntArrayRef mesh_shape) {
  // One canvas for each coordinate along the Partial axes. Axes are then reduced from the right.
  std::vector<std::int64_t> partial_shape;
  for (std::size_t a = 0; a < placements.size(); ++a)
    partial_shape.push_back(placements[a].is_partial() ? mesh_shape[a] : 1);
  const at::Tensor& first = parts.at(0);
  std::vector<Canvas> canvases;
  for (std::int64_t i = 0; i < c10::multiply_integers(partial_shape); ++i) {
    canvases.push_back({at::zeros(sizes, first.options()), at::zeros(sizes, at::kBool)});
  }
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const Coordinate coordinate = coordinate_at(mesh_shape, static_cast<std::int64_t>(r));
    std::int64_t index = 0;
    for (std::size_t a = 0; a < placements.size(); ++a) {
      index = index * partial_shape[a] + (placements[a].is_partial() ? coordinate[a] : 0);
    }
    const Positions positions = positions_of(sizes, placements, mesh_shape, coordinate);
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      TORCH_CHECK(parts[r].dim() == static_cast<std::int64_t>(sizes.size()) &&
                      parts[r].size(static_cast<std::int64_t>(d)) == positions.index[d].numel(),
                  "rank ", r, " has sizes ", parts[r].sizes(), " for global sizes ", sizes, " ", to_string(placements));
    }
    paint(canvases[static_cast<std::size_t>(index)], parts[r], positions);
  }
  for (std::size_t a = placements.size(); a-- > 0;) {
    if (!placements[a].is_partial()) continue;
    const auto n = static_cast<std::size_t>(mesh_shape[a]);
    std::vector<Canvas> reduced;
    for (std::size_t i = 0; i < canvases.size(); i += n) {
      Canvas sum = canvases[i];
      for (std::size_t k = 1; k < n; ++k) {
        sum.values = combine(sum.values, canvases[i + k].values, placements[a].reduce_op());
      }
      if (placements[a].reduce_op() == ReduceOp::avg) sum.values = sum.values / static_cast<double>(n);
      reduced.push_back(sum);
    }
    canvases = std::move(reduced);
  }
  TORCH_CHECK(canvases[0].known.all().item<bool>(), "no rank has some of the elements");
  return canvases[0].values;
}

}  // namespace dtensor
