// Runs plans for all ranks in one thread, on maps from global element to value: an independent implementation of each
// step. A rank reads only elements of its group, so a step over too few axes fails.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "layouts.h"
#include "placement/shard_map.h"
#include "redistribute/plan/plan.h"

namespace dtensor::test {

using Part = std::map<std::int64_t, double>;  // Global flat index -> value.

inline double reduce(ReduceOp op, const std::vector<double>& values) {
  double result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    switch (op) {
      case ReduceOp::max:
        result = std::max(result, values[i]);
        break;
      case ReduceOp::min:
        result = std::min(result, values[i]);
        break;
      case ReduceOp::product:
        result *= values[i];
        break;
      default:
        result += values[i];
    }
  }
  return op == ReduceOp::avg ? result / static_cast<double>(values.size()) : result;
}

inline double identity(ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
      return -std::numeric_limits<double>::infinity();
    case ReduceOp::min:
      return std::numeric_limits<double>::infinity();
    case ReduceOp::product:
      return 1;
    default:
      return 0;
  }
}

class Simulator {
 public:
  Simulator(Shape mesh, Shape sizes)
      : mesh_(std::move(mesh)), sizes_(std::move(sizes)), ranks_(all_coordinates(mesh_)) {}

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t size : sizes_) n *= size;
    return n;
  }

  // The elements of a rank as flat global indices.
  std::vector<std::int64_t> held(const Placements& placements, const Coordinate& at) const {
    std::vector<std::int64_t> flat{0};
    for (std::size_t dim = 0; dim < sizes_.size(); ++dim) {
      std::vector<std::int64_t> next;
      const Segments segments = shard_segments(sizes_[dim], static_cast<std::int64_t>(dim), placements, mesh_, at);
      for (const std::int64_t base : flat) {
        for (const Segment& s : segments) {
          for (std::int64_t i = 0; i < s.length; ++i) next.push_back(base * sizes_[dim] + s.offset + i);
        }
      }
      flat = std::move(next);
    }
    return flat;
  }

  // Small integers that differ along Partial axes and are equal along replicated ones.
  std::vector<Part> scatter(const Placements& placements) const {
    std::vector<Part> parts;
    for (const Coordinate& at : ranks_) {
      std::int64_t salt = 0;
      for (std::size_t i = 0; i < mesh_.size(); ++i) salt = salt * 5 + (placements[i].is_partial() ? at[i] : 0);
      Part part;
      for (const std::int64_t g : held(placements, at)) part[g] = static_cast<double>((g * 7 + salt * 13) % 11) - 4;
      parts.push_back(std::move(part));
    }
    return parts;
  }

  // The global value of every element: Partial axes are reduced from the right, shards and replicas are looked up.
  Part global(std::vector<Part> parts, const Placements& placements) const {
    for (std::size_t axis = mesh_.size(); axis-- > 0;) {
      if (!placements[axis].is_partial()) continue;
      parts = reduced(parts, AxisMask{1} << axis, placements[axis].reduce_op());
    }
    Part all;
    for (const Part& part : parts) all.insert(part.begin(), part.end());
    return all;
  }

  std::vector<Part> run(const RedistributePlan& plan, std::vector<Part> parts) {
    for (const Edge& edge : plan.edges) {
      parts = run(edge, parts);
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        std::vector<std::int64_t> keys;
        for (const auto& [g, value] : parts[r]) keys.push_back(g);
        EXPECT_EQ(keys, held(edge.to, ranks_[r])) << edge.str();
      }
    }
    return parts;
  }

  std::int64_t exchanged() const { return exchanged_; }  // Elements of all exchanges so far on the rank with the most.

 private:
  std::vector<std::size_t> group(std::size_t rank, AxisMask axes) const {
    std::vector<std::size_t> members;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      bool same = true;
      for (std::size_t i = 0; i < mesh_.size(); ++i) same &= (axes >> i & 1) || ranks_[r][i] == ranks_[rank][i];
      if (same) members.push_back(r);
    }
    return members;
  }

  std::vector<Part> reduced(const std::vector<Part>& parts, AxisMask axes, ReduceOp op) const {
    std::vector<Part> result(parts.size());
    for (std::size_t r = 0; r < parts.size(); ++r) {
      for (const auto& [g, mine] : parts[r]) {
        std::vector<double> values;
        for (const std::size_t peer : group(r, axes)) values.push_back(parts[peer].at(g));
        result[r][g] = reduce(op, values);
      }
    }
    return result;
  }

  std::vector<Part> restricted(const std::vector<Part>& parts, const Placements& to) const {
    std::vector<Part> result(parts.size());
    for (std::size_t r = 0; r < parts.size(); ++r) {
      for (const std::int64_t g : held(to, ranks_[r]))
        result[r][g] = parts[r].at(g);  // at() throws if the rank lacks the element.
    }
    return result;
  }

  std::vector<Part> exchange(const std::vector<Part>& parts, const Edge& edge) {
    std::vector<Part> result(parts.size());
    std::int64_t busiest = 0;
    for (std::size_t r = 0; r < parts.size(); ++r) {
      std::int64_t received = 0;
      for (const std::int64_t g : held(edge.to, ranks_[r])) {
        received += !parts[r].contains(g);
        for (const std::size_t peer : group(r, edge.axes)) {
          if (parts[peer].contains(g)) result[r][g] = parts[peer].at(g);
        }
      }
      busiest = std::max(busiest, received);
    }
    exchanged_ += busiest;
    return result;
  }

  std::vector<Part> made_partial(const std::vector<Part>& parts, const Edge& edge) const {
    std::vector<Part> result(parts.size());
    for (std::size_t r = 0; r < parts.size(); ++r) {
      bool keep = true;
      ReduceOp op = ReduceOp::sum;
      for (std::size_t i = 0; i < mesh_.size(); ++i) {
        if (!(edge.axes >> i & 1)) continue;
        op = edge.to[i].reduce_op();
        const bool first_only = (op == ReduceOp::sum || op == ReduceOp::product) && edge.from[i].is_replicate();
        keep &= !first_only || ranks_[r][i] == 0;
      }
      for (const std::int64_t g : held(edge.to, ranks_[r])) {
        result[r][g] = keep && parts[r].contains(g) ? parts[r].at(g) : identity(op);
      }
    }
    return result;
  }

  std::vector<Part> run(const Edge& edge, const std::vector<Part>& parts) {
    const ReduceOp op = edge.from[std::countr_zero(edge.axes)].reduce_op();
    switch (edge.kind) {
      case EdgeKind::slice:
        return restricted(parts, edge.to);
      case EdgeKind::all_reduce:
        return reduced(parts, edge.axes, op);
      case EdgeKind::reduce_scatter:
        return restricted(reduced(parts, edge.axes, op), edge.to);
      case EdgeKind::make_partial:
        return made_partial(parts, edge);
      default:
        return exchange(parts, edge);
    }
  }

  Shape mesh_, sizes_;
  std::vector<Coordinate> ranks_;
  std::int64_t exchanged_ = 0;
};

}  // namespace dtensor::test
