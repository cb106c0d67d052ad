// The segmentation of a piece with the largest sum of log probabilities (Kudo 2018, arXiv:1804.10959), by Viterbi.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tokenizer/error.h"
#include "tokenizer/model.h"
#include "tokenizer/unicode.h"

namespace tokenizer {
namespace {

using nlohmann::json;
constexpr double kUnknownPenalty = 10;  // Below the least likely token.

class Unigram : public Model {
 public:
  explicit Unigram(const json& d) {
    double least = 0;
    for (const json& entry : d.at("vocab")) {
      const std::string token = entry.at(0);
      const double score = entry.at(1);
      if (find(token) < 0) add(token, static_cast<std::int64_t>(scores_.size()));
      longest_ = std::max(longest_, token.size());
      least = scores_.empty() ? score : std::min(least, score);
      scores_.push_back(score);
    }
    unknown_score_ = least - kUnknownPenalty;
    const json unknown = d.value("unk_id", json());
    if (!unknown.is_number_integer() || unknown < 0 || unknown >= scores_.size())
      throw Error("Unigram: expected an unk_id within its vocabulary");
    unknown_ = unknown;
    by_bytes_ = d.value("byte_fallback", false);
  }

  Ids encode(const std::string& piece) const override {
    const std::vector<Node> nodes = best(piece);
    std::vector<std::string> tokens;  // From the end on; consecutive unknown characters are one token.
    bool unknown_before = false;
    for (std::size_t end = piece.size(); end > 0; end = nodes[end].begin) {
      const std::string text = piece.substr(nodes[end].begin, end - nodes[end].begin);
      const bool unknown = nodes[end].id == unknown_;
      if (unknown && unknown_before) {
        tokens.back() = text + tokens.back();
      } else {
        tokens.push_back(text);
      }
      unknown_before = unknown;
    }
    Ids ids;
    for (auto token = tokens.rbegin(); token != tokens.rend(); ++token) {
      const std::int32_t id = find(*token);
      if (id >= 0) {
        ids.push_back(id);
      } else if (!by_bytes_ || !append_bytes(*token, ids)) {
        ids.push_back(unknown_);
      }
    }
    return ids;
  }

 private:
  struct Node {  // The best segmentation up to a position: the last token.
    std::size_t begin = std::string::npos;
    double score = 0;
    std::int32_t id = 0;
  };

  std::vector<Node> best(const std::string& piece) const {
    std::vector<Node> nodes(piece.size() + 1);
    const auto offer = [&](std::size_t begin, std::size_t end, double score, std::int32_t id) {
      const double sum = score + nodes[begin].score;
      if (nodes[end].begin == std::string::npos || sum > nodes[end].score) nodes[end] = {begin, sum, id};
    };
    for (std::size_t at = 0, after = 0; at < piece.size(); at = after) {
      after = character_at(piece, at).end;
      bool single = false;
      for (std::size_t end = after; end <= piece.size() && end - at <= longest_; end = end_after(piece, end)) {
        const std::int32_t id = find(piece.substr(at, end - at));
        if (id < 0) continue;
        offer(at, end, scores_[static_cast<std::size_t>(id)], id);
        single = single || end == after;
      }
      if (!single) offer(at, after, unknown_score_, unknown_);
    }
    return nodes;
  }

  static std::size_t end_after(const std::string& piece, std::size_t at) {
    return at < piece.size() ? character_at(piece, at).end : at + 1;
  }

  std::vector<double> scores_;
  double unknown_score_ = 0;
  std::size_t longest_ = 0;
  std::int32_t unknown_ = 0;
  bool by_bytes_ = false;
};

}  // namespace

std::unique_ptr<Model> make_unigram(const json& description) { return std::make_unique<Unigram>(description); }

}  // namespace tokenizer
