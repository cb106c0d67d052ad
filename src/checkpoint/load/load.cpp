// Loading: each rank reads the ranges of its own elements; checksums are verified collectively.
#include "checkpoint/load/load.h"

#include <ATen/ATen.h>

#include <unordered_set>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/load/read_ranges.h"
#include "checkpoint/load/shared_reads.h"
#include "checkpoint/local_part.h"
#include "dtensor/comm.h"
#include "internal/ranks/heartbeat_scope.h"

namespace dtensor::files {
namespace {

CheckpointIndex shared_index(const std::string& path, const Communicator& ranks, const std::string& what) {
  std::string text, error, refused;
  ranks.barrier();
  const HeartbeatScope heartbeats(ranks);  // all ranks are here; they wait for rank 0's disk
  if (ranks.rank() == 0) {
    error = error_of([&] {
      try {
        text = index_text(read_checkpoint_index(path));
      } catch (const c10::ValueError& e) {
        refused = e.what_without_backtrace();
      }
    });
  }
  raise_on_all(ranks, what, error);
  refused = broadcast_string(ranks, refused, 0);
  TORCH_CHECK_VALUE(refused.empty(), what, ": ", refused);
  return parse_index(broadcast_string(ranks, text, 0));
}

// Reads the elements of the part and returns the checksum of those that this rank owns.
Checksum read_part(const Part& part, const CheckpointEntry& entry, Files& files, SharedReads& reads, std::size_t i,
                   bool verify) {
  Checksum sum;
  reads.fill(
      i, part.local, entry.dtype,
      [&](std::int64_t first, char* data, std::int64_t count) {
        read_ranges(part.ranges, entry, files.of(entry.file), first, data, count);
      },
      [&](std::int64_t first, const char* data, std::int64_t count) {
        const std::int64_t from = std::max(first, part.begin), to = std::min(first + count, part.end);
        if (verify)
          sum += checksum_of(part.ranges, entry, from, data + (from - first) * element_bytes(entry), to - from);
      });
  return sum;
}

}  // namespace

Loader::Loader(const std::string& path, const Communicator& ranks, const LoadOptions& options)
    : what_("load " + path), ranks_(ranks), options_(options), index_(shared_index(path, ranks, what_)) {
  for (std::size_t i = 0; i < index_.entries.size(); ++i) position_.emplace(index_.entries[i].name, i);
  CheckpointValues values;
  for (auto& [name, value] : index_.values) values.emplace(renamed(name, options.names, false), std::move(value));
  index_.values = std::move(values);
}

const CheckpointEntry* Loader::find(const std::string& name) const {
  const auto found = position_.find(name);
  return found == position_.end() ? nullptr : &index_.entries[found->second];
}

// Uses the entry's name, because the tensor may have several.
void Loader::compare(const ManifestEntry& tensor, const CheckpointEntry& entry, LoadProblems& problems) const {
  if (at::IntArrayRef(tensor.sizes) != entry.sizes) {
    problems.mismatched.push_back(c10::str("'", entry.name, "' has sizes ", at::IntArrayRef(entry.sizes),
                                           " in the checkpoint, ", at::IntArrayRef(tensor.sizes), " in the target"));
  } else {
    compare_dtype(tensor, entry, problems);
  }
}

void Loader::compare_dtype(const ManifestEntry& tensor, const CheckpointEntry& entry, LoadProblems& problems) const {
  // Except dtypes that ATen lacks, or supports for storage only.
  const bool castable = entry.dtype != at::ScalarType::Undefined && entry.dtype != at::ScalarType::Float4_e2m1fn_x2;
  if (tensor.dtype == entry.dtype || (options_.allow_cast && castable)) return;
  problems.mismatched.push_back(
      c10::str("'", entry.name, "' is ", castable ? c10::str(entry.dtype) : entry.format_dtype, " in the checkpoint, ",
               tensor.dtype, " in the target", castable ? " (set allow_cast to convert)" : ""));
}

std::vector<Loader::LoadRequest> Loader::match(const Manifest& manifest, const StateTensors& targets,
                                               LoadProblems& problems) const {
  const std::unordered_map<std::string, at::Tensor> mine(targets.begin(), targets.end());
  std::unordered_map<std::string, std::size_t> listed;
  std::vector<LoadRequest> requests;
  std::unordered_set<std::string> names;
  const auto want = [&](const std::string& name, std::size_t tensor) {
    names.insert(name);
    const CheckpointEntry* entry = find(name);
    if (entry == nullptr) {
      if (!options_.allow_missing) problems.missing.push_back(name);
      return;
    }
    const ManifestEntry& as = manifest.tensors[tensor];
    compare(as, *entry, problems);
    const auto found = mine.find(name);
    requests.push_back({name, entry, as.owner_groups, tensor, found == mine.end() ? at::Tensor() : found->second, {}});
  };
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    listed.emplace(manifest.tensors[i].name, i);
    want(manifest.tensors[i].name, i);
  }
  for (const Alias& alias : manifest.aliases) want(alias.name, listed.at(alias.entry));
  for (const CheckpointEntry& entry : index_.entries) {
    problems.available.push_back(entry.name);
    if (!options_.allow_unexpected && !names.contains(entry.name)) problems.unexpected.push_back(entry.name);
  }
  problems.requested.insert(problems.requested.end(), names.begin(), names.end());
  return requests;
}

void Loader::read(const StateTensors& targets, LoadProblems problems) {
  if (!options_.names.empty()) return read_named(targets, std::move(problems));
  const Manifest manifest = build_manifest(targets, ranks_, Purpose::load, what_);
  std::vector<LoadRequest> requests = match(manifest, targets, problems);
  problems.raise(ranks_, what_);
  std::vector<std::string> texts;
  std::vector<Part> parts;
  run_on_all(ranks_, what_, [&] {
    for (LoadRequest& w : requests) {
      if (w.target.defined()) w.read_buffer = read_buffer_for(w.target);
      texts.push_back(part_text(w.read_buffer));
      parts.push_back(part_of(w.read_buffer, std::ssize(parts)));
    }
  });
  SharedReads reads(ranks_, texts);
  run_on_all(ranks_, what_, [&] {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (parts[i].local.defined()) reads.prepare(i, parts[i].local, requests[i].entry->dtype);
    }
  });
  std::vector<Checksum> sums(requests.size());
  Files files;
  const HeartbeatScope heartbeats(ranks_);  // a disk may be slow on one rank
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!parts[i].local.defined()) continue;
    sums[i] = read_part(parts[i], *requests[i].entry, files, reads, i, options_.verify);
    mark_written(requests[i].read_buffer);
  }
  raise_on_all(ranks_, what_, reads.error());
  if (options_.verify) verify(requests, sums);
  for (const LoadRequest& w : requests) {
    if (w.target.defined()) copy_from_read_buffer(w.target, w.read_buffer);
  }
}

void Loader::verify(const std::vector<LoadRequest>& requests, const std::vector<Checksum>& own) const {
  const std::vector<Checksum> all = sum_over_ranks(ranks_, own);
  std::vector<std::string> damaged;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const LoadRequest& w = requests[i];
    const std::int64_t numel = numel_of(w.entry->sizes);
    const bool full = all[i].count == w.owner_groups * numel;  // otherwise some rank of its mesh did not request it
    if (!full || !w.entry->checksum) continue;
    if (all[i] != times({*w.entry->checksum, numel}, w.owner_groups)) damaged.push_back("'" + w.name + "'");
  }
  TORCH_CHECK(damaged.empty(), what_, ": the checksum of ", c10::Join(", ", damaged),
              " does not match the data: the file is damaged");
  check_tied(requests, all);
}

// If several names refer to one tensor in the program but to different stored tensors, the last one read would win.
// Sums are comparable only for equal parts, because a rank need not request each name.
void Loader::check_tied(const std::vector<LoadRequest>& requests, const std::vector<Checksum>& all) const {
  std::unordered_map<std::size_t, std::size_t> first;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::size_t other = first.emplace(requests[i].tensor, i).first->second;
    const auto &own_sum = requests[i].entry->checksum, &other_sum = requests[other].entry->checksum;
    const bool both_known = own_sum && other_sum;
    const bool same = both_known ? *own_sum == *other_sum : all[i].count != all[other].count || all[i] == all[other];
    TORCH_CHECK(same, what_, ": '", requests[other].name, "' and '", requests[i].name,
                "' are tied here, but differ in the checkpoint");
  }
}

}  // namespace dtensor::files
