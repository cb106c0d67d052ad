// Saving: rank 0 creates the files at full size, and each rank writes the ranges of its own elements.
#include "checkpoint/save/save.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <unordered_map>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/format/files/file.h"
#include "checkpoint/format/files/saved_folder.h"
#include "dtensor/comm.h"
#include "dtensor/tensor.h"
#include "internal/ranks/heartbeat_scope.h"

namespace dtensor::files {
namespace {

std::vector<CheckpointEntry> entries_of(const Manifest& manifest) {
  std::vector<CheckpointEntry> entries;
  for (const ManifestEntry& t : manifest.tensors)
    entries.push_back({.name = t.name, .dtype = t.dtype, .sizes = t.sizes});
  return entries;
}

void make_files(const std::string& folder, const FileLayout& layout) {
  const std::string error = error_of([&] {
    for (const Header& header : layout.headers) {
      const File file = File::create(folder + "/" + header.file, header.bytes);
      file.write(header.text.data(), static_cast<std::int64_t>(header.text.size()), 0);
    }
  });
  if (!error.empty()) remove_folder(folder);
  TORCH_CHECK(error.empty(), error);
}

std::vector<at::Tensor> by_manifest(const Manifest& manifest, const StateTensors& tensors) {
  std::unordered_map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  std::vector<at::Tensor> result;
  for (const ManifestEntry& t : manifest.tensors) result.push_back(t.owner_group < 0 ? at::Tensor() : by_name[t.name]);
  return result;
}

// A copy of the elements that this rank owns.
Part copy_of(const Part& part) {
  Part copy = part;
  copy.local = at::detail::empty_cpu({part.end - part.begin}, part.local.scalar_type());
  copy.base = part.begin;
  char* to = static_cast<char*>(copy.local.mutable_data_ptr());
  const std::int64_t item = part.element_bytes();
  for_each_piece(part.local, part.begin, part.end, [&](std::int64_t first, const char* data, std::int64_t count) {
    std::memcpy(to + (first - part.begin) * item, data, static_cast<std::size_t>(count * item));
  });
  return copy;
}

}  // namespace

Saver::Saver(std::string directory, const Communicator& ranks, const StateTensors& tensors,
             const CheckpointValues& values, const SaveOptions& options)
    : what_("save " + directory), ranks_(ranks), options_(options) {
  manifest_ = build_manifest(tensors, ranks_, Purpose::save, what_, values);
  file_layout_ = make_file_layout(entries_of(manifest_), options_.max_file_bytes);
  tensors_ = by_manifest(manifest_, tensors);
  own_.resize(tensors_.size());
  const HeartbeatScope heartbeats(ranks_);  // all ranks are here; rank 0 may wait for a lock or a disk
  const std::string error = ranks_.rank() == 0 ? begin(directory) : "";
  raise_on_all(ranks_, what_, error);
  temporary_ = broadcast_string(ranks_, temporary_, 0);  // unique to this save
}

std::string Saver::begin(const std::string& directory) {
  return error_of([&] {
    directory_ = resolve(directory);
    check_may_replace(directory_, options_.keep_foreign);
    make_parent(directory_);
    lock_ = std::make_unique<FolderLock>(directory_);
    clean_up(directory_);
    temporary_ = make_temporary(directory_);
    make_files(temporary_, file_layout_);
  });
}

Part Saver::part(std::size_t index) const {
  return index < parts_.size() ? parts_[index]
                               : part_of(prepare_for_write(tensors_[index]), static_cast<std::int64_t>(index));
}

void Saver::copy_parts() {
  const at::NoGradGuard no_grad;
  std::vector<Part> parts;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    parts.push_back(part_of({}, 0));
    if (!tensors_[i].defined()) continue;
    keep_error([&] {
      Part own = part(i);
      if (own.local.defined() && error_.empty()) parts.back() = copy_of(own);
    });
    tensors_[i].reset();
  }
  parts_ = std::move(parts);
}

void Saver::write_part(const Part& part, std::size_t index) {
  if (!part.local.defined() || part.begin == part.end) return;
  const CheckpointEntry& entry = file_layout_.entries[index];
  const ManifestEntry& listed = manifest_.tensors[index];
  const bool writes = static_cast<std::int64_t>(index) % listed.owner_groups ==
                      listed.owner_group;  // other groups only compare checksums
  std::optional<File> file;
  if (writes) file.emplace(File::open_to_write(temporary_ + "/" + entry.file));
  const std::int64_t item = part.element_bytes();
  for_each_piece(part.local, part.begin - part.base, part.end - part.base,
                 [&](std::int64_t first, const char* data, std::int64_t count) {
                   first += part.base;
                   part.ranges.each(first, first + count, [&](std::int64_t local, const Range& range) {
                     const char* from = data + (local - first) * item;
                     own_[index] += checksum(from, item, range.length, range.global);
                     if (file) file->write(from, range.length * item, entry.offset + range.global * item);
                   });
                 });
}

// A rank with a disk or memory error must still participate in later reductions of Partial tensors.
void Saver::keep_error(const std::function<void()>& fn) {
  const std::string error = error_of(fn);
  if (error_.empty()) error_ = error;
}

void Saver::write() noexcept {
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const bool copied = i < parts_.size();
    if (!copied && !tensors_[i].defined()) continue;
    keep_error([&] {
      const Part p = part(i);
      if (error_.empty()) write_part(p, i);
    });
  }
  if (!error_.empty() || !options_.sync) return;
  error_ = error_of([&] {
    for (const Header& header : file_layout_.headers) File::open_to_write(temporary_ + "/" + header.file).sync();
  });
}

void Saver::check_sums() {
  std::vector<Checksum> written(own_.size());
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const ManifestEntry& t = manifest_.tensors[i];
    if (static_cast<std::int64_t>(i) % t.owner_groups == t.owner_group) written[i] = own_[i];
  }
  const std::vector<Checksum> all = sum_over_ranks(ranks_, own_);
  written = sum_over_ranks(ranks_, written);
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const ManifestEntry& t = manifest_.tensors[i];
    const std::int64_t numel = numel_of(t.sizes);
    TORCH_CHECK(written[i].count == numel, what_, ": ", written[i].count, " of the ", numel, " elements of tensor '",
                t.name, "' were written");
    TORCH_CHECK(all[i] == times(written[i], t.owner_groups), what_, ": tensor '", t.name, "' is on ", t.owner_groups,
                " ranks or meshes with different values", kPerRankHint);
    file_layout_.entries[i].checksum = written[i].sum;
  }
}

void Saver::finish(const std::function<void()>& before_waiting) {
  try {
    ranks_.barrier();
  } catch (...) {
    if (before_waiting) before_waiting();  // the writing thread must end before its folder is removed
    drop();
    throw;
  }
  const HeartbeatScope heartbeats(ranks_);  // all ranks are here; they wait for a disk
  if (before_waiting) before_waiting();
  std::string error = error_of([&] { raise_on_all(ranks_, what_, error_); });
  if (error.empty()) error = error_of([&] { check_sums(); });
  if (!error.empty()) drop();
  TORCH_CHECK(error.empty(), error);
  error = ranks_.rank() != 0 ? "" : error_of([&] {
    write_text(temporary_ + "/" + kValuesFile,
               checkpoint_text(manifest_.values, file_layout_.entries, manifest_.aliases), options_.sync);
    if (!file_layout_.index.empty()) write_text(temporary_ + "/" + kIndexFile, file_layout_.index, options_.sync);
    lock_->check_held();
    move_into_place(temporary_, directory_, options_.sync);
  });
  if (!error.empty()) drop();
  lock_.reset();
  raise_on_all(ranks_, what_, error);
}

void Saver::drop() noexcept {
  if (lock_) remove_folder(temporary_);
  lock_.reset();
}

}  // namespace dtensor::files
