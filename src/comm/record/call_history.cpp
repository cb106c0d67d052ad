// The rank's own thread writes entries. Others read them only after a collective found different hashes, possibly
// while the rank continues; entries overwritten meanwhile are skipped.
#include "comm/record/call_history.h"

#include <algorithm>
#include <memory>
#include <sstream>

#include "comm/error_messages.h"
#include "comm/record/hash.h"
#include "comm/record/interned_text.h"
#include "internal/ranks/named_calls.h"

namespace dtensor {
namespace {

const CallHistory::Line* line_at(const RankCalls& member, std::uint64_t number) {
  const auto it =
      std::find_if(member.lines.begin(), member.lines.end(), [&](const auto& l) { return l.number == number; });
  return it == member.lines.end() ? nullptr : &*it;
}

// The members' calls at one number, each with its ranks; calls that are no longer stored are skipped.
struct OperatorsAt {
  std::uint64_t signature;
  std::string text;
  std::vector<std::int64_t> ranks;
};

std::vector<OperatorsAt> operators_at(const std::vector<RankCalls>& members, std::uint64_t number) {
  std::vector<OperatorsAt> variants;
  for (const auto& member : members) {
    const auto* line = line_at(member, number);
    if (line == nullptr && member.operators >= number) continue;
    const auto signature = line == nullptr ? 0 : line->signature;
    auto it = std::find_if(variants.begin(), variants.end(), [&](const auto& d) { return d.signature == signature; });
    if (it == variants.end()) {
      variants.push_back(
          {signature,
           line == nullptr ? (number == 1 ? "called none" : "called none after it") : "called " + line->text,
           {}});
      it = variants.end() - 1;
    }
    it->ranks.push_back(member.rank);
  }
  return variants;
}

// The oldest call that every member still stores, or has not reached.
std::uint64_t oldest_known(const std::vector<RankCalls>& members) {
  std::uint64_t oldest = 1;
  for (const auto& member : members) {
    if (!member.lines.empty()) oldest = std::max(oldest, member.lines.front().number);
  }
  return oldest;
}

// Returns the object at `place`; creates it on first use, on any thread.
template <class T>
T& made(std::atomic<T*>& place) {
  auto* known = place.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto fresh = std::make_unique<T>();
  return place.compare_exchange_strong(known, fresh.get()) ? *fresh.release() : *known;
}

}  // namespace

void CallHistory::add(const OperatorCall& call) {
  const auto number = operators_.load(std::memory_order_relaxed) + 1;
  const auto signature = std::max<std::uint64_t>(
      hash_combine(signature_.load(std::memory_order_relaxed), call.hash) & ~kOfNumbers, kNone + 1);
  Entry& entry = made(entries_)[number % kKept];
  entry.number.store(0, std::memory_order_relaxed);
  entry.text.store(call.text, std::memory_order_release);
  entry.module.store(call.module, std::memory_order_release);
  entry.signature.store(signature, std::memory_order_release);
  for (std::size_t i = 0; i < std::min(call.numbers.size(), OperatorCall::kMaxNumbers); ++i) {
    entry.numbers[i].store(call.numbers[i], std::memory_order_relaxed);
  }
  entry.number.store(number, std::memory_order_release);
  signature_.store(signature, std::memory_order_relaxed);
  operators_.store(number, std::memory_order_release);
}

std::string CallHistory::text_of(const Entry& entry) {
  std::ostringstream out;
  std::size_t next = 0;
  for (const char c : *entry.text.load(std::memory_order_acquire)) {
    const bool number = c == '%' && next < OperatorCall::kMaxNumbers;
    number ? out << entry.numbers[next++].load(std::memory_order_relaxed) : out << c;
  }
  if (const auto* module = entry.module.load(std::memory_order_acquire)) out << " in " << *module;
  return out.str();
}

std::vector<CallHistory::Line> CallHistory::lines() const {
  const auto last = operators_.load(std::memory_order_acquire);
  std::vector<Line> lines;
  const auto* entries = entries_.load(std::memory_order_acquire);
  if (entries == nullptr) return lines;
  for (auto number = last - std::min<std::uint64_t>(last, kKept - 1) + 1; number <= last; ++number) {
    const Entry& entry = (*entries)[number % kKept];
    if (entry.number.load(std::memory_order_acquire) != number) continue;
    Line line{number, entry.signature.load(std::memory_order_acquire), text_of(entry)};
    if (entry.number.load(std::memory_order_acquire) == number) lines.push_back(std::move(line));
  }
  return lines;
}

void CallHistory::note_node(std::uint64_t node, const std::string* module) {
  Node& entry = made(nodes_)[node % kNodes];
  if (entry.number.load(std::memory_order_relaxed) == node + 1) return;  // by the first operator below it
  entry.module.store(module, std::memory_order_relaxed);
  entry.number.store(node + 1, std::memory_order_relaxed);
}

const std::string* CallHistory::module_of_node(std::uint64_t node) const {
  const auto* nodes = nodes_.load(std::memory_order_acquire);
  if (nodes == nullptr) return nullptr;
  const Node& entry = (*nodes)[node % kNodes];
  return entry.number.load(std::memory_order_relaxed) == node + 1 ? entry.module.load(std::memory_order_relaxed)
                                                                  : nullptr;
}

namespace {

// The calls with numbers since the communicator's previous collective, numbered from 1.
std::vector<CallHistory::Line> number_lines(const CollectiveCall& call) {
  std::vector<CallHistory::Line> lines;
  const auto last = call.history->numbers().last(call.operators);
  for (const auto& [hash, text] : last) {
    lines.push_back({call.operators - last.size() + lines.size() + 1, hash, text});
  }
  return lines;
}

}  // namespace

RankCalls calls_of(std::int64_t rank, const CollectiveCall& call) {
  RankCalls calls{rank, call.operators, call.signature, {}};
  if (call.history) calls.lines = is_of_numbers(call.signature) ? number_lines(call) : call.history->lines();
  return calls;
}

std::string first_difference(const std::vector<RankCalls>& members) {
  std::uint64_t last = 0;
  for (const auto& member : members) last = std::max(last, member.operators);
  const auto comparable = [&](const RankCalls& member) { return are_comparable(members.front(), member); };
  if (!std::all_of(members.begin(), members.end(), comparable)) return "";
  const auto oldest = oldest_known(members);
  for (auto number = oldest; number <= last; ++number) {
    const auto variants = operators_at(members, number);
    if (variants.size() < 2) continue;
    std::string out = number == oldest && number > 1 ? "before or in call " : "first in call ";
    out += std::to_string(number) + ":";
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const bool same_words = i > 0 && variants[i].text == variants[0].text;
      out += (i > 0 ? "; " : " ") + ranks_text(variants[i].ranks) + " " + variants[i].text;
      out += same_words ? " (with other arguments)" : "";
    }
    return out;
  }
  return "";
}

std::string describe_difference(const std::vector<RankCalls>& members) {
  auto difference = first_difference(members);
  const auto same = [&](const RankCalls& member) { return same_operators(members.front(), member); };
  if (difference.empty() && !std::all_of(members.begin(), members.end(), same)) difference = "in an earlier call";
  if (difference.empty()) return "";
  if (!is_of_numbers(members.front().signature)) return "their operators differ, " + difference + "; ";
  return "expected a number or 0-dimensional regular tensor beside DTensors to be equal on all ranks, got a "
         "difference " +
         difference + " (calls with numbers since the previous collective). Multiply to_local() by a number of this " +
         "rank, or make the number a DTensor (DTensor::from_local); ";
}

namespace {
thread_local const NamedCallScope::Name* innermost_name = nullptr;
}  // namespace

// A history of one call: backends compare histories already, and print where they differ.
NamedCallScope::Name NamedCallScope::name(const std::string& what) {
  struct Named {
    std::string text;  // not interned: each unit has names of its own
    CallHistory history;
  };
  const auto named = std::make_shared<Named>();
  named->text = what;
  named->history.add({hash_of(what), &named->text});
  return {named, &named->history};
}

NamedCallScope::NamedCallScope(Name name) : name_(std::move(name)), outer_(innermost_name) {
  if (name_ != nullptr) innermost_name = &name_;
}
NamedCallScope::~NamedCallScope() { innermost_name = outer_; }
const NamedCallScope::Name* NamedCallScope::current() { return innermost_name; }

}  // namespace dtensor
