// Groups of ranks, and turns of reading.
#include "checkpoint/shared_reads.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "checkpoint/collective_errors.h"
#include "checkpoint/lock.h"
#include "checkpoint/part.h"
#include "dtensor/shards.h"
#include "dtensor/tensor.h"

namespace dtensor::files {
namespace {

// One text for all parts: lines.
std::string one_text(const std::vector<std::string>& lines) {
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

// Into parts of at most so many elements that follow each other, by sizes alone: alike on all ranks, whatever the
// strides.
template <class F>
void cut_by_sizes(const at::Tensor& to, std::int64_t most, std::int64_t first, const F& fn) {
  if (to.dim() == 0 || to.numel() <= most) return fn(to, first);
  const std::int64_t inner = to.numel() / to.size(0), rows = std::max<std::int64_t>(1, most / inner);
  for (std::int64_t row = 0; row < to.size(0); row += rows) {
    if (inner > most) {
      cut_by_sizes(to.select(0, row), most, first + row * inner, fn);
    } else {
      fn(to.narrow(0, row, std::min(rows, to.size(0) - row)), first + row * inner);
    }
  }
}

char* data_of(const at::Tensor& memory) { return static_cast<char*>(memory.mutable_data_ptr()); }

}  // namespace

SharedReads::SharedReads(const Communicator& ranks, const std::vector<std::string>& parts)
    : groups_(parts.size(), nullptr) {
  if (ranks.size() == 1) return;
  const std::string machine = machine_name();
  std::vector<std::vector<std::string>> all;
  for (const auto& text : gather_texts(ranks, machine + "\n" + one_text(parts))) all.push_back(lines_of(text));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty()) continue;
    std::vector<std::int64_t> members;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][0] == machine && all[rank][i + 1] == parts[i]) members.push_back(static_cast<std::int64_t>(rank));
    }
    if (members.size() < 2) continue;
    auto found = made_.find(members);
    // All members meet the tensors in the same order, so they make their groups in the same order.
    if (found == made_.end()) found = made_.emplace(members, ranks.subgroup(members, "file")).first;
    groups_[i] = &found->second;
  }
}

std::size_t SharedReads::readers(std::size_t i) const {
  return groups_[i] == nullptr ? 1 : static_cast<std::size_t>(groups_[i]->size());
}

// Elements of a piece.
std::int64_t SharedReads::most(std::size_t i, at::ScalarType stored) const {
  const std::int64_t bytes = kBufferBytes / static_cast<std::int64_t>(readers(i));
  return std::max<std::int64_t>(1, bytes / static_cast<std::int64_t>(c10::elementSize(stored)));
}

// All read their pieces of a round before any is handed on, so that they read at the same time, and what is handed on
// or summed is in a cache still. Who reads first depends on the tensor, so that small ones take turns.
void SharedReads::fill_round(std::size_t i, const std::vector<Piece>& pieces, const OnElements& read) {
  const Communicator* group = groups_[i];
  const auto turn = [&](std::size_t piece) {
    return group == nullptr ? 0 : static_cast<int>((piece + i) % static_cast<std::size_t>(group->size()));
  };
  const int own = group == nullptr ? 0 : group->rank();
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const at::Tensor& memory = pieces[p].memory;
    if (turn(p) != own || !error_.empty()) continue;
    error_ = error_of([&] { read(pieces[p].first, data_of(memory), memory.numel()); });
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
  const bool direct = to.is_cpu() && to.is_contiguous() && to.scalar_type() == stored && !to.is_conj() && !to.is_neg();
  std::vector<Piece> round;
  const auto finish = [&] {
    fill_round(i, round, read);
    for (const Piece& piece : round) {
      filled(piece.first, data_of(piece.memory), piece.memory.numel());
      if (!direct) piece.to.copy_(piece.memory);
    }
    round.clear();
  };
  cut_by_sizes(to.detach(), most(i, stored), 0, [&](const at::Tensor& part, std::int64_t first) {
    round.push_back({part, direct ? part : at::Tensor(at::detail::empty_cpu(part.sizes(), stored)), first});
    if (round.size() == readers(i)) finish();
  });
  if (!round.empty()) finish();
}

void SharedReads::each_block(std::size_t i, std::int64_t numel, std::int64_t inner, at::ScalarType stored,
                             const OnElements& read, const OnElements& take) {
  const at::NoGradGuard no_grad;
  const std::int64_t step = std::max<std::int64_t>(1, most(i, stored) / inner) * inner;
  for (std::int64_t first = 0; first < numel;) {
    std::vector<Piece> round;
    for (; first < numel && round.size() < readers(i); first += step) {
      const std::int64_t count = std::min(step, numel - first);
      round.push_back({{}, at::Tensor(at::detail::empty_cpu({count}, stored)), first});
    }
    fill_round(i, round, read);
    for (const Piece& piece : round) take(piece.first, data_of(piece.memory), piece.memory.numel());
  }
}

std::string part_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "";
  if (!is_dtensor(tensor)) return "all";
  const DTensor placed(tensor);
  const auto coordinate = placed.mesh().coordinate();
  if (!coordinate) return "";
  std::string text;
  bool all = true;
  for (std::int64_t d = 0; d < placed.dim(); ++d) {
    const auto held = shard_segments(placed.size(d), d, placed.placements(), placed.mesh().shape(), *coordinate);
    all = all && held.size() == 1 && held[0].length == placed.size(d);
    for (const Segment& s : held) text += std::to_string(s.offset) + "+" + std::to_string(s.length) + " ";
    text += ", ";
  }
  return all ? "all" : text;
}

}  // namespace dtensor::files
