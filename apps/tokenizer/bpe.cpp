// Byte-pair encoding: merges adjacent tokens, the pair that was learned first before others.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <string_view>

#include "tokenizer/error.h"
#include "tokenizer/model.h"
#include "tokenizer/unicode.h"

namespace tokenizer {
namespace {

using nlohmann::json;

struct Merge {
  std::int32_t rank, result;
};

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

class Bpe : public Model {
 public:
  explicit Bpe(const json& d) {
    for (const char* option : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const json value = d.value(option, json());
      if (!value.is_null() && value != "") throw Error(fmt::format("{} {} is not supported", option, value.dump()));
    }
    for (const auto& [token, id] : d.at("vocab").items()) add(token, id.get<std::int64_t>());
    for (const json& merge : d.at("merges")) add_merge(merge);
    by_bytes_ = d.value("byte_fallback", false);
    joins_unknown_ = d.value("fuse_unk", false);
    full_first_ = d.value("ignore_merges", false);
    const json unknown = d.value("unk_token", json());
    if (unknown.is_string()) unknown_ = id_of(unknown);
  }

  Ids encode(const std::string& piece) const override {
    if (full_first_ && find(piece) >= 0) return {find(piece)};
    Ids ids = characters(piece);
    merge(ids);
    return ids;
  }

 private:
  void add_merge(const json& merge) {  // "a b", or ["a", "b"]
    std::string left, right;
    if (merge.is_array() && merge.size() == 2) {
      left = merge[0], right = merge[1];
    } else {
      const std::string text = merge.is_string() ? merge.get<std::string>() : "";
      const auto space = text.find(' ');
      if (space == std::string::npos) throw Error("expected a merge of two tokens, got " + merge.dump());
      left = text.substr(0, space), right = text.substr(space + 1);
    }
    const auto rank = static_cast<std::int32_t>(merges_.size());
    const auto key = key_of(id_of(left), id_of(right));
    merges_.insert_or_assign(key, Merge{rank, id_of(left + right)});
  }

  Ids characters(const std::string& piece) const {
    Ids ids;
    bool unknown_before = false;
    for (std::size_t at = 0, end = 0; at < piece.size(); at = end) {
      end = character_at(piece, at).end;
      const std::string text = piece.substr(at, end - at);
      const std::int32_t id = find(text);
      const bool known = id >= 0 || (by_bytes_ && append_bytes(text, ids));
      if (id >= 0) ids.push_back(id);
      if (!known && unknown_ && !(joins_unknown_ && unknown_before)) ids.push_back(*unknown_);
      unknown_before = !known;
    }
    return ids;
  }

  struct Candidate {
    std::int32_t rank, result;
    std::size_t at;
    bool operator<(const Candidate& other) const {  // The top of the queue is the largest.
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  // A linked list within a vector, since a text without spaces is one long piece.
  void merge(Ids& ids) const {
    const std::size_t count = ids.size();
    std::vector<std::size_t> next(count), before(count);
    std::priority_queue<Candidate> queue;
    const auto consider = [&](std::size_t at) {
      if (at >= count || next[at] >= count) return;
      const auto found = merges_.find(key_of(ids[at], ids[next[at]]));
      if (found != merges_.end()) queue.push({found->second.rank, found->second.result, at});
    };
    for (std::size_t i = 0; i < count; ++i) next[i] = i + 1, before[i] = i == 0 ? count : i - 1;
    for (std::size_t i = 0; i < count; ++i) consider(i);
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      if (ids[top.at] < 0 || next[top.at] >= count) continue;
      const std::size_t right = next[top.at];
      const auto found = merges_.find(key_of(ids[top.at], ids[right]));
      if (found == merges_.end() || found->second.result != top.result) continue;  // The pair no longer exists.
      ids[top.at] = top.result;
      ids[right] = -1;
      next[top.at] = next[right];
      if (next[right] < count) before[next[right]] = top.at;
      consider(before[top.at]);
      consider(top.at);
    }
    std::erase(ids, -1);
  }

  std::unordered_map<std::uint64_t, Merge> merges_;
  std::optional<std::int32_t> unknown_;
  bool by_bytes_ = false, joins_unknown_ = false, full_first_ = false;
};

}  // namespace

std::unique_ptr<Model> make_bpe(const json& description) { return std::make_unique<Bpe>(description); }

}  // namespace tokenizer
