// Each rank reads the ranges of its own elements, and all together verify what they read.
#include "checkpoint/load/load.h"

#include <ATen/ATen.h>

#include <unordered_set>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/load/read_ranges.h"
#include "checkpoint/load/shared_reads.h"
#include "checkpoint/part.h"
#include "dtensor/debug_rank.h"

namespace dtensor::files {
namespace {

CheckpointIndex shared_index(const std::string& path, const Communicator& ranks, const std::string& what) {
  std::string text, error, refused;
  ranks.barrier();
  const NoTimeout patience;  // all ranks are here; what is waited for is rank 0's disk
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
  refused = broadcast_text(ranks, refused, 0);
  TORCH_CHECK_VALUE(refused.empty(), what, ": ", refused);
  return parse_index(broadcast_text(ranks, text, 0));
}

// The part's elements from the file, and the checksum of those that this rank answers for.
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
        if (verify) sum += checksum_of(part.ranges, entry, from, data + (from - first) * item_of(entry), to - from);
      });
  return sum;
}

}  // namespace

Loader::Loader(const std::string& path, const Communicator& ranks, const LoadOptions& options)
    : what_("load " + path), ranks_(ranks), options_(options), index_(shared_index(path, ranks, what_)) {
  for (std::size_t i = 0; i < index_.entries.size(); ++i) position_.emplace(index_.entries[i].name, i);
}

const CheckpointEntry* Loader::find(const std::string& name) const {
  const auto found = position_.find(name);
  return found == position_.end() ? nullptr : &index_.entries[found->second];
}

// The entry's name counts: the tensor may have several.
void Loader::compare(const Listed& tensor, const CheckpointEntry& entry, Problems& problems) const {
  if (at::IntArrayRef(tensor.sizes) != entry.sizes) {
    problems.mismatched.push_back(c10::str("'", entry.name, "' has sizes ", at::IntArrayRef(entry.sizes), " there, ",
                                           at::IntArrayRef(tensor.sizes), " here"));
  } else {
    compare_dtype(tensor, entry, problems);
  }
}

void Loader::compare_dtype(const Listed& tensor, const CheckpointEntry& entry, Problems& problems) const {
  // Not those that ATen does not have, or has for storage only.
  const bool castable = entry.dtype != at::ScalarType::Undefined && entry.dtype != at::ScalarType::Float4_e2m1fn_x2;
  if (tensor.dtype == entry.dtype || (options_.allow_cast && castable)) return;
  problems.mismatched.push_back(c10::str("'", entry.name, "' is ",
                                         castable ? c10::str(entry.dtype) : entry.format_dtype, " there, ",
                                         tensor.dtype, " here", castable ? " (allow_cast converts)" : ""));
}

std::vector<Loader::Wanted> Loader::match(const Manifest& manifest, const StateTensors& targets,
                                          Problems& problems) const {
  const std::unordered_map<std::string, at::Tensor> mine(targets.begin(), targets.end());
  std::unordered_map<std::string, std::size_t> listed;
  std::vector<Wanted> wanted;
  std::unordered_set<std::string> names;
  const auto want = [&](const std::string& name, std::size_t tensor) {
    names.insert(name);
    const CheckpointEntry* entry = find(name);
    if (entry == nullptr) {
      if (!options_.allow_missing) problems.missing.push_back(name);
      return;
    }
    const Listed& as = manifest.tensors[tensor];
    compare(as, *entry, problems);
    const auto found = mine.find(name);
    wanted.push_back({name, entry, as.homes, tensor, found == mine.end() ? at::Tensor() : found->second, {}});
  };
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    listed.emplace(manifest.tensors[i].name, i);
    want(manifest.tensors[i].name, i);
  }
  for (const Alias& alias : manifest.aliases) want(alias.name, listed.at(alias.entry));
  for (const CheckpointEntry& entry : index_.entries) {
    problems.there.push_back(entry.name);
    if (!options_.allow_unexpected && !names.contains(entry.name)) problems.unexpected.push_back(entry.name);
  }
  problems.here.insert(problems.here.end(), names.begin(), names.end());
  return wanted;
}

void Loader::read(const StateTensors& targets, Problems problems) {
  if (!options_.names.empty()) return read_named(targets, std::move(problems));
  const Manifest manifest = agree_on(targets, ranks_, Purpose::load, what_);
  std::vector<Wanted> wanted = match(manifest, targets, problems);
  problems.raise(ranks_, what_);
  std::vector<std::string> texts;
  std::vector<Part> parts;
  run_on_all(ranks_, what_, [&] {
    for (Wanted& w : wanted) {
      if (w.target.defined()) w.landing = landing_of(w.target);
      texts.push_back(part_text(w.landing));
      parts.push_back(part_of(w.landing, std::ssize(parts)));
    }
  });
  SharedReads reads(ranks_, texts);
  run_on_all(ranks_, what_, [&] {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (parts[i].local.defined()) reads.prepare(i, parts[i].local, wanted[i].entry->dtype);
    }
  });
  std::vector<Checksum> sums(wanted.size());
  Files files;
  const NoTimeout patience;  // as for the index
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!parts[i].local.defined()) continue;
    sums[i] = read_part(parts[i], *wanted[i].entry, files, reads, i, options_.verify);
    mark_written(wanted[i].landing);
  }
  raise_on_all(ranks_, what_, reads.error());
  if (options_.verify) verify(wanted, sums);
  for (const Wanted& w : wanted) {
    if (w.target.defined()) take_landing(w.target, w.landing);
  }
}

void Loader::verify(const std::vector<Wanted>& wanted, const std::vector<Checksum>& own) const {
  const std::vector<Checksum> all = sum_over_ranks(ranks_, own);
  std::vector<std::string> damaged;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Wanted& w = wanted[i];
    const std::int64_t numel = numel_of(w.entry->sizes);
    const bool whole = all[i].count == w.homes * numel;  // else some rank of its mesh did not ask for it
    if (!whole || !w.entry->checksum) continue;
    if (all[i] != times({*w.entry->checksum, numel}, w.homes)) damaged.push_back("'" + w.name + "'");
  }
  TORCH_CHECK(damaged.empty(), what_, ": the checksum of ", c10::Join(", ", damaged),
              " is not that of what was read: the file is damaged");
  check_tied(wanted, all);
}

// Names of one tensor here may be several tensors there, of which the last one read would win. What was read is only
// comparable where it is the same part: a rank need not ask for each name.
void Loader::check_tied(const std::vector<Wanted>& wanted, const std::vector<Checksum>& all) const {
  std::unordered_map<std::size_t, std::size_t> first;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::size_t other = first.emplace(wanted[i].tensor, i).first->second;
    const auto &said = wanted[i].entry->checksum, &said_of_other = wanted[other].entry->checksum;
    const bool told = said && said_of_other;
    const bool same = told ? *said == *said_of_other : all[i].count != all[other].count || all[i] == all[other];
    TORCH_CHECK(same, what_, ": '", wanted[other].name, "' and '", wanted[i].name,
                "' are one tensor here and differ there");
  }
}

}  // namespace dtensor::files
