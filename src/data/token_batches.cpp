// The sequences of a step: each epoch permutes all sequences. The permutation is computed per index, so nothing is
// stored and any step can be read directly.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <bit>
#include <limits>

#include "dtensor/data.h"
#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/device_copy.h"
#include "internal/shard_segments.h"

namespace dtensor {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA'14).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A permutation of [0, n): a Feistel network over the next power of four, repeated until the value is below n (Black
// and Rogaway, CT-RSA 2002).
std::int64_t permuted(std::int64_t index, std::int64_t n, std::uint64_t key) {
  const auto half = std::max<std::uint64_t>(1, (std::bit_width(static_cast<std::uint64_t>(n - 1)) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto x = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = x >> half, right = x & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t next = left ^ (mixed(right ^ mixed(key + round)) & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<std::uint64_t>(n));
  return static_cast<std::int64_t>(x);
}

// Checks the placements of [batch, sequence] and makes negative dimensions non-negative.
Placements resolved(Placements placements, const DeviceMesh& mesh) {
  TORCH_CHECK(static_cast<std::int64_t>(placements.size()) == mesh.ndim(), "TokenBatches: expected ", mesh.ndim(),
              " placements for ", mesh.str(), ", got ", to_string(placements));
  for (Placement& p : placements) {
    TORCH_CHECK(!p.is_partial(), "TokenBatches: token ids cannot be Partial, got ", to_string(placements));
    if (p.is_shard() && p.dim() < 0) p = p.with_dim(p.dim() + 2);
  }
  return placements;
}

// Sequence numbers of the step must be below the maximum of int64.
void check_step(std::int64_t step, std::int64_t batch) {
  const std::int64_t end = std::numeric_limits<std::int64_t>::max() / batch;
  TORCH_CHECK(step >= 0 && step < end, "TokenBatches: expected a step in [0, ", end, ") for ", batch,
              " sequences per step, got ", step);
}

}  // namespace

TokenBatches::TokenBatches(TokenFiles files, Options options) : files_(std::move(files)), options_(options) {
  TORCH_CHECK(options.batch > 0 && options.sequence > 0,
              "TokenBatches: expected batch and sequence of at least 1, got ", options.batch, " and ",
              options.sequence);
  sequences_ = (files_.size() - 1) / options.sequence;
  TORCH_CHECK(files_.size() > options.sequence, "TokenBatches: expected more than ", options.sequence,
              " tokens (one sequence and its last target), got ", files_.size());
}

std::int64_t TokenBatches::first_token(std::int64_t step, std::int64_t row) const {
  const std::int64_t number = step * options_.batch + row, epoch = number / sequences_;
  const std::int64_t index = number % sequences_;
  const std::uint64_t key = mixed(options_.seed ^ mixed(static_cast<std::uint64_t>(epoch)));
  return options_.sequence * (options_.shuffle ? permuted(index, sequences_, key) : index);
}

TokenBatches::Batch TokenBatches::at(std::int64_t step) const {
  check_step(step, options_.batch);
  const NoMeshScopeGuard scope;
  const std::int64_t length = options_.sequence;
  Batch batch{at::empty({options_.batch, length}, at::kLong), {}};
  batch.targets = at::empty_like(batch.ids);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(length) + 1);
  for (std::int64_t row = 0; row < options_.batch; ++row) {
    files_.read(first_token(step, row), length + 1, tokens.data());
    std::copy_n(tokens.data(), length, batch.ids.mutable_data_ptr<std::int64_t>() + row * length);
    std::copy_n(tokens.data() + 1, length, batch.targets.mutable_data_ptr<std::int64_t>() + row * length);
  }
  return batch;
}

TokenBatches::Batch TokenBatches::at(std::int64_t step, const DeviceMesh& mesh, const Placements& given) const {
  check_step(step, options_.batch);
  const NoMeshScopeGuard scope;
  const Placements placements = resolved(given, mesh);
  const std::vector<std::int64_t> sizes{options_.batch, options_.sequence};
  std::vector<std::int64_t> ids, targets;
  std::int64_t rows = 0, columns = 0;
  if (const auto coordinate = mesh.coordinate()) {
    const Segments held = shard_segments(sizes[1], 1, placements, mesh.shape(), *coordinate);
    for (const Segment& s : held) columns += s.length;
    for (const Segment& s : shard_segments(sizes[0], 0, placements, mesh.shape(), *coordinate)) {
      rows += s.length;
      for (std::int64_t row = s.offset; row < s.offset + s.length; ++row) {
        for (const Segment& part : held) {
          if (part.length == 0) continue;
          std::vector<std::int64_t> tokens(static_cast<std::size_t>(part.length) + 1);
          files_.read(first_token(step, row) + part.offset, part.length + 1, tokens.data());
          ids.insert(ids.end(), tokens.begin(), tokens.end() - 1);
          targets.insert(targets.end(), tokens.begin() + 1, tokens.end());
        }
      }
    }
  }
  const auto wrap = [&](std::vector<std::int64_t>& values) -> at::Tensor {
    const auto local = copy_without_wait(at::tensor(values, at::kLong).view({rows, columns}), mesh.device_type());
    return DTensor::from_local(local, mesh, placements, sizes);
  };
  return {wrap(ids), wrap(targets)};
}

}  // namespace dtensor
