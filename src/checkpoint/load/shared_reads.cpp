// Groups of ranks that share reads, and the order in which they read.
#include "checkpoint/load/shared_reads.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/files/folder_lock.h"
#include "checkpoint/local_part.h"
#include "dtensor/tensor.h"
#include "internal/shard_segments.h"

namespace dtensor::files {
namespace {

// All parts as lines of one string.
std::string common_text(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
  }
  return lines;
}

char* data_of(const at::Tensor& memory) { return static_cast<char*>(memory.mutable_data_ptr()); }

}  // namespace

SharedReads::SharedReads(const Communicator& ranks, const std::vector<std::string>& parts)
    : groups_(parts.size(), nullptr) {
  if (ranks.size() == 1) return;
  const std::string machine = machine_name();
  std::vector<std::vector<std::string>> all;
  for (const auto& text : all_gather_strings(ranks, machine + "\n" + common_text(parts))) all.push_back(lines_of(text));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty()) continue;
    std::vector<std::int64_t> members;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][0] == machine && all[rank][i + 1] == parts[i]) members.push_back(static_cast<std::int64_t>(rank));
    }
    if (members.size() < 2) continue;
    auto found = communicators_.find(members);
    // All members iterate over the tensors in the same order, so they create their groups in the same order.
    if (found == communicators_.end()) found = communicators_.emplace(members, ranks.subgroup(members, "file")).first;
    groups_[i] = &found->second;
  }
}

std::size_t SharedReads::readers(std::size_t i) const {
  return groups_[i] == nullptr ? 1 : static_cast<std::size_t>(groups_[i]->size());
}

// Number of elements of a piece, a multiple of `inner`.
std::int64_t SharedReads::most(std::size_t i, at::ScalarType stored, std::int64_t inner) const {
  const std::int64_t bytes = kBufferBytes / static_cast<std::int64_t>(readers(i));
  return std::max<std::int64_t>(1, bytes / static_cast<std::int64_t>(c10::elementSize(stored)) / inner) * inner;
}

void SharedReads::reserve(std::size_t i, std::int64_t numel, at::ScalarType stored, std::int64_t inner) {
  const std::int64_t round = most(i, stored, inner) * static_cast<std::int64_t>(readers(i));
  const std::int64_t bytes = std::min(numel, round) * static_cast<std::int64_t>(c10::elementSize(stored));
  if (buffer_.defined() && buffer_.numel() >= bytes) return;
  buffer_.reset();
  buffer_ = at::detail::empty_cpu({bytes}, at::kByte);  // not affected by a MeshScope
}

void SharedReads::prepare(std::size_t i, const at::Tensor& to, at::ScalarType stored) {
  if (!is_contiguous_host_memory(to, stored)) reserve(i, to.numel(), stored);
}

// The part of the buffer after the pieces of this round.
at::Tensor SharedReads::memory_after(const std::vector<Piece>& round, at::IntArrayRef sizes,
                                     at::ScalarType stored) const {
  std::size_t used = 0;
  for (const Piece& piece : round) used += piece.memory.nbytes();
  return at::from_blob(data_of(buffer_) + used, sizes, stored);
}

// All ranks read their pieces of a round before the first broadcast, so they read concurrently. Data is still in the
// cache when it is broadcast or summed. The first reader depends on the tensor index, which distributes small tensors.
void SharedReads::fill_round(std::size_t i, const std::vector<Piece>& pieces, const OnElements& read) {
  const Communicator* group = groups_[i];
  const auto turn = [&](std::size_t piece) {
    return group == nullptr ? 0 : static_cast<int>((piece + i) % static_cast<std::size_t>(group->size()));
  };
  const int own = group == nullptr ? 0 : group->rank();
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const at::Tensor& memory = pieces[p].memory;
    if (turn(p) == own) keep_error([&] { read(pieces[p].first, data_of(memory), memory.numel()); });
  }
  if (group == nullptr) return;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const auto bytes = static_cast<std::int64_t>(pieces[p].memory.nbytes());
    group->broadcast(at::from_blob(data_of(pieces[p].memory), {bytes}, at::kByte), turn(p)).wait();
  }
}

void SharedReads::fill(std::size_t i, const at::Tensor& to, at::ScalarType stored, const OnElements& read,
                       const OnElements& filled) {
  if (to.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const bool direct = is_contiguous_host_memory(to, stored);
  prepare(i, to, stored);
  std::vector<Piece> round;
  const auto finish = [&] {
    fill_round(i, round, read);
    keep_error([&] {
      for (const Piece& piece : round) {
        filled(piece.first, data_of(piece.memory), piece.memory.numel());
        if (!direct) piece.to.copy_(piece.memory);
      }
    });
    round.clear();
  };
  split_by_sizes(to.detach(), most(i, stored), [&](const at::Tensor& part, std::int64_t first) {
    round.push_back({part, direct ? part : memory_after(round, part.sizes(), stored), first});
    if (round.size() == readers(i)) finish();
  });
  if (!round.empty()) finish();
}

void SharedReads::each_block(std::size_t i, std::int64_t numel, std::int64_t inner, at::ScalarType stored,
                             const OnElements& read, const OnElements& take) {
  const at::NoGradGuard no_grad;
  reserve(i, numel, stored, inner);
  const std::int64_t step = most(i, stored, inner);
  for (std::int64_t first = 0; first < numel;) {
    std::vector<Piece> round;
    for (; first < numel && round.size() < readers(i); first += step) {
      round.push_back({{}, memory_after(round, {std::min(step, numel - first)}, stored), first});
    }
    fill_round(i, round, read);
    keep_error([&] {
      for (const Piece& piece : round) take(piece.first, data_of(piece.memory), piece.memory.numel());
    });
  }
}

void SharedReads::keep_error(const std::function<void()>& fn) {
  if (error_.empty()) error_ = error_of(fn);
}

std::string segments_text(const Segments& segments) {
  std::string text;
  for (const Segment& s : segments) text += std::to_string(s.offset) + "+" + std::to_string(s.length) + " ";
  return text + ",";
}

std::string part_text(const at::Tensor& tensor) {
  const LocalShard held = local_shard_of(tensor);
  if (!held.local.defined()) return "";
  std::string text;
  bool all = true;
  for (std::size_t d = 0; d < held.segments.size(); ++d) {
    const Segments& segments = held.segments[d];
    all = all && segments.size() == 1 && segments[0].length == tensor.size(static_cast<std::int64_t>(d));
    text += segments_text(segments);
  }
  return all ? "all" : text;
}

}  // namespace dtensor::files
