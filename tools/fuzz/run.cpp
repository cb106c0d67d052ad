// Draws run in blocks, since the results of a block are in shared memory.
#include "fuzz/run.h"

#include <set>

namespace dtensor::fuzz {
namespace {

constexpr int kSecondsPerDraw = 40;

void run_block(const DrawAt& draw_at, int first, int count, Report& report) {
  const auto at = [&](int i) { return draw_at(first + i); };
  const auto regular =
      run_isolated(count, kSecondsPerDraw, [&](int i, const Note&) { return run_regular(at(i).mistaken); });
  const auto endings = run_isolated(count, kSecondsPerDraw, [&](int i, const Note& note) {
    const auto& one_device = regular[static_cast<std::size_t>(i)];
    const std::string& word = one_device.word;
    if (word == "crash" || word == "hang" || word == "beside") return DrawResult{"left out", ""};
    const Draw draw = at(i);
    note(draw.str());
    return run_on_ranks(draw, one_device);
  });
  for (int i = 0; i < count; ++i) {
    const auto& ending = endings[static_cast<std::size_t>(i)];
    ++report.counts[ending.word];
    const std::string text = ending.word + " " + std::to_string(first + i) + ": " + at(i).str() + "\n  " + ending.text;
    if (!is_fine(ending)) report.wrong.push_back(text);
    if (ending.word == "refused") report.refused.push_back(text);
  }
}

}  // namespace

void keep_valid(CallSource& source) {
  std::vector<const RegularCall*> all;
  for (std::size_t i = 0; i < source.overloads(); ++i) {
    for (const auto& call : source.calls(i)) all.push_back(&call);
  }
  const auto endings = run_isolated(static_cast<int>(all.size()), kSecondsPerDraw,
                                    [&](int i, const Note&) { return run_regular(*all[static_cast<std::size_t>(i)]); });
  std::set<const RegularCall*> valid;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (endings[i].word == "ok") valid.insert(all[i]);
  }
  source.keep([&](const RegularCall& call) { return valid.count(&call) != 0; });
}

Report run_draws(const DrawAt& draw_at, int first, int count) {
  Report report;
  for (int i = 0; i < count; i += kBlock) run_block(draw_at, first + i, std::min(kBlock, count - i), report);
  return report;
}

}  // namespace dtensor::fuzz
