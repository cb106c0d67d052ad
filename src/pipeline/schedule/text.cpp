// Writes and parses schedules as text. The notation is PyTorch's, so its schedule tables can be parsed.
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ostream>

#include "dtensor/pipeline_schedule.h"
#include "internal/action_kinds.h"

namespace dtensor::pipeline {
namespace {

constexpr std::array<std::string_view, kActionKinds> kWords = {
    "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"};
constexpr std::string_view kDigits = "0123456789";
constexpr std::size_t kMostDigits = 6;  // bounds the size of tables

// Removes the leading digits of `text` and returns their value; -1 without digits.
int take_number(std::string_view& text) {
  const std::string_view digits = text.substr(0, text.find_first_not_of(kDigits));
  text.remove_prefix(digits.size());
  int value = -1;
  if (digits.size() <= kMostDigits) std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

std::optional<Action> parse_action(std::string_view word) {
  Action action;
  action.stage = take_number(word);
  const std::string_view name = word.substr(0, word.find_first_of(kDigits));
  word.remove_prefix(name.size());
  const bool numbered = !word.empty();
  action.microbatch = take_number(word);
  const auto kind = std::find(kWords.begin(), kWords.end(), name);
  if (action.stage < 0 || kind == kWords.end() || !word.empty()) return std::nullopt;
  action.kind = static_cast<Action::Kind>(kind - kWords.begin());
  const bool fits = has_microbatch(action.kind) ? action.microbatch >= 0 : !numbered;
  return fits ? std::optional(action) : std::nullopt;
}

// The words of one line; empty for a line of blanks and comments.
std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kSeparators = ", \t\r\f\v";
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  for (std::size_t begin; (begin = line.find_first_not_of(kSeparators)) != line.npos;) {
    line.remove_prefix(begin);
    words.push_back(line.substr(0, line.find_first_of(kSeparators)));
    line.remove_prefix(words.back().size());
  }
  return words;
}

std::vector<Action> parse_rank(const std::vector<std::string_view>& words, int line) {
  std::vector<Action> actions;
  if (words.size() == 1 && words[0] == "-") return actions;
  for (const std::string_view word : words) {
    const std::optional<Action> action = parse_action(word);
    TORCH_CHECK(action, "pipeline schedule, line ", line, ": \"", word, "\" is no action; expected a stage, one of ",
                c10::Join(", ", kWords), ", and a microbatch for F, B, I, W, SEND and RECV, as 0F3, ",
                "1RECV_F3 or 2UNSHARD (numbers have at most ", kMostDigits, " digits)");
    actions.push_back(*action);
  }
  return actions;
}

}  // namespace

std::string to_string(const Action& action) {
  std::string text = c10::str(action.stage, kWords.at(static_cast<std::size_t>(action.kind)));
  if (has_microbatch(action.kind)) text += std::to_string(action.microbatch);
  return text;
}

std::ostream& operator<<(std::ostream& out, const Action& action) { return out << to_string(action); }

std::string Schedule::str() const {
  std::string text;
  for (const std::vector<Action>& actions : ranks) {
    if (actions.empty()) text += "-";
    for (std::size_t i = 0; i < actions.size(); ++i) text += (i == 0 ? "" : " ") + to_string(actions[i]);
    text += "\n";
  }
  return text;
}

Schedule Schedule::parse(std::string_view text) {
  Schedule schedule;
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    if (!words.empty()) schedule.ranks.push_back(parse_rank(words, line));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return schedule;
}

}  // namespace dtensor::pipeline
