// broadcast_state(): broadcasts the source's full tensors in pieces; each rank copies the elements of its shard.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/values.h"
#include "checkpoint/local_part.h"
#include "checkpoint/mismatches.h"
#include "checkpoint/save/manifest.h"
#include "dtensor/tensor.h"

namespace dtensor {
namespace files {
namespace {

constexpr const char* kFunctionName = "broadcast_state";

// Throws if the tensor's memory does not hold its values.
void check_memory(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), "'", name, "' is undefined");
  TORCH_CHECK(!tensor.is_meta(), "'", name, "' is on the meta device: it has no values");
  TORCH_CHECK(tensor.layout() == at::kStrided, "'", name, "': expected a strided tensor, got ", tensor.layout());
  TORCH_CHECK(!tensor.is_quantized(), "'", name, "' is ", tensor.scalar_type(),
              ", whose scale is not in its memory; broadcast at::int_repr() and the scale instead");
}

// The source's entries, on all ranks.
std::vector<CheckpointEntry> agree_on_source(const StateTensors& full, const Communicator& ranks, int source) {
  std::string text, error;
  if (source < 0 || source >= ranks.size()) {
    error = c10::str("expected a source rank in [0, ", ranks.size(), "), got ", source);
  } else if (ranks.rank() == source) {
    error = error_of([&] {
      CheckpointIndex index;
      std::unordered_set<std::string> names;
      for (const auto& [name, tensor] : full) {
        TORCH_CHECK(tensor.defined() && !is_dtensor(tensor), "'", name, "' at the source is not a regular tensor");
        check_memory(name, tensor);
        TORCH_CHECK(names.insert(name).second, "duplicate tensor name at the source: '", name, "'");
        index.entries.push_back({.name = name, .dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()});
      }
      text = index_text(index);
    });
  }
  raise_on_all(ranks, kFunctionName, error);
  return parse_index(broadcast_string(ranks, text, source)).entries;
}

// Copies the local elements in the piece [first, first + count) of the full tensor, starting at local element `next`;
// advances `next`.
void take(const ContiguousRanges& ranges, std::int64_t first, std::int64_t count, const char* data, std::int64_t item,
          char* to, std::int64_t& next) {
  while (next < ranges.numel()) {
    const Range range = ranges.at(next);
    if (range.global >= first + count) return;
    const std::int64_t length = std::min(range.length, first + count - range.global);
    std::memcpy(to + next * item, data + (range.global - first) * item, static_cast<std::size_t>(length * item));
    next += length;
  }
}

at::Tensor row_major_on_host(const at::Tensor& local) {
  if (is_contiguous_host_memory(local, local.scalar_type())) return local;
  return at::detail::empty_cpu(local.sizes(), local.scalar_type());
}

// Buffer for one piece of any tensor.
at::Tensor piece_buffer(const std::vector<CheckpointEntry>& entries) {
  std::int64_t most = 0;
  for (const CheckpointEntry& e : entries) {
    most = std::max(most, c10::multiply_integers(e.sizes) * static_cast<std::int64_t>(c10::elementSize(e.dtype)));
  }
  return at::detail::empty_cpu({std::min(most, kBufferBytes)}, at::kByte);
}

// Errors of a rank are kept until the end, so that its broadcasts still match those of other ranks.
void broadcast_one(const at::Tensor& full, const at::Tensor& target, const at::Tensor& buffer,
                   const Communicator& ranks, int source, std::string& error) {
  const auto keep = [&](const auto& fn) {
    const std::string own = error_of(fn);
    if (error.empty()) error = own;
  };
  const at::NoGradGuard no_grad;
  const at::Tensor read_buffer = read_buffer_for(target);
  const Part part = part_of(read_buffer, 0);
  const auto item = static_cast<std::int64_t>(target.element_size());
  const std::int64_t numel = target.numel(), most = kBufferBytes / item;
  at::Tensor host;
  keep([&] { host = part.local.defined() ? row_major_on_host(part.local) : at::Tensor(); });
  char* to = host.defined() ? static_cast<char*>(host.mutable_data_ptr()) : nullptr;
  std::int64_t next = 0;
  for (std::int64_t first = 0; first < numel; first += most) {
    const std::int64_t count = std::min(most, numel - first);
    const at::Tensor piece = buffer.narrow(0, 0, count * item);
    char* data = static_cast<char*>(piece.mutable_data_ptr());
    if (ranks.rank() == source) {
      const auto put = [&](std::int64_t at, const char* from, std::int64_t length) {
        std::memcpy(data + (at - first) * item, from, static_cast<std::size_t>(length * item));
      };
      keep([&] { for_each_piece(full, first, first + count, put); });
    }
    ranks.broadcast(piece, source).wait();
    if (to != nullptr) take(part.ranges, first, count, data, item, to, next);
  }
  if (host.defined() && !host.is_same(part.local)) keep([&] { part.local.copy_(host); });
  mark_written(read_buffer);
  copy_from_read_buffer(target, read_buffer);
}

void compare(const std::vector<CheckpointEntry>& entries, const StateTensors& targets, LoadProblems& problems) {
  std::unordered_map<std::string, at::Tensor> wanted;
  for (const auto& [name, target] : targets) {
    check_memory(name, target);
    TORCH_CHECK(wanted.emplace(name, target).second, "duplicate target name: '", name, "'");
    problems.requested.push_back(name);
  }
  for (const CheckpointEntry& e : entries) {
    problems.available.push_back(e.name);
    const auto found = wanted.find(e.name);
    if (found == wanted.end()) {
      problems.unexpected.push_back(e.name);
      continue;
    }
    const at::Tensor& t = found->second;
    if (t.sizes() != e.sizes || t.scalar_type() != e.dtype) {
      problems.mismatched.push_back(c10::str("'", e.name, "' is ", e.dtype, " ", at::IntArrayRef(e.sizes),
                                             " at the source, ", t.scalar_type(), " ", t.sizes(), " here"));
    } else if (needs_reduction(t)) {
      problems.mismatched.push_back(
          c10::str("'", e.name, "' is ", DTensor(t).spec_str(), " here; use a target without Partial placements"));
    }
    wanted.erase(found);
  }
  for (const auto& [name, target] : targets) {
    if (wanted.contains(name)) problems.missing.push_back(name);
  }
}

}  // namespace
}  // namespace files

void broadcast_state(const StateTensors& full, const Communicator& ranks, const StateTensors& targets, int source) {
  using namespace files;
  const std::vector<CheckpointEntry> entries = agree_on_source(full, ranks, source);
  LoadProblems problems;
  at::Tensor buffer;
  run_on_all(ranks, kFunctionName, [&] {
    compare(entries, targets, problems);
    buffer = piece_buffer(entries);
  });
  problems.raise(ranks, std::string(kFunctionName) + ": source and targets do not match");
  const std::unordered_map<std::string, at::Tensor> given(full.begin(), full.end()),
      wanted(targets.begin(), targets.end());
  std::string error;
  for (const CheckpointEntry& e : entries) {
    const auto found = given.find(e.name);
    broadcast_one(found == given.end() ? at::Tensor() : found->second, wanted.at(e.name), buffer, ranks, source, error);
  }
  raise_on_all(ranks, kFunctionName, error);
}

StateTensors broadcast_state(const StateTensors& full, const DeviceMesh& mesh,
                             const std::function<Placements(const std::string& name, at::IntArrayRef sizes)>& place,
                             int source) {
  using namespace files;
  const Communicator ranks = mesh.world();
  StateTensors targets;
  const auto entries = agree_on_source(full, ranks, source);
  run_on_all(ranks, kFunctionName, [&] {
    for (const CheckpointEntry& e : entries) {
      targets.emplace_back(e.name, empty(e.sizes, mesh, place(e.name, e.sizes), at::TensorOptions(e.dtype)));
    }
  });
  broadcast_state(full, ranks, targets, source);
  return targets;
}

}  // namespace dtensor
