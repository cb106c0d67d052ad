// A schedule drawn: time to the right, one row a rank. Communication is thin and lies below the boxes of computation,
// so that waiting shows.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <algorithm>

#include "dtensor/pipeline_schedule.h"

namespace dtensor::pipeline {
namespace {

constexpr double kLeft = 60, kTop = 30, kWidth = 1200, kRow = 30, kBox = 20, kThin = 6;

// Forward, backward (with its two halves) and others, a little apart by stage, so that the chunks of a rank can be
// told.
std::string colour(const Action& action, int stages) {
  constexpr int kHues[kActionKinds] = {210, 130, 90, 40, 210, 210, 130, 130, 280, 280, 0};
  const int light = 78 - (stages > 1 ? 28 * action.stage / (stages - 1) : 0);
  return fmt::format("hsl({}, 60%, {}%)", kHues[static_cast<std::size_t>(action.kind)], light);
}

std::string box(const TimedAction& timed, double x, double y, double width, int stages) {
  const bool compute = is_compute(timed.action.kind);
  const std::string name = to_string(timed.action);
  std::string svg = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"black\" "
      "stroke-width=\"0.5\">"
      "<title>{} {:.6g} to {:.6g}</title></rect>",
      x, compute ? y : y + kBox, width, compute ? kBox : kThin, colour(timed.action, stages), name, timed.begin,
      timed.end);
  constexpr double kLetter = 7;
  if (compute && width > kLetter * static_cast<double>(name.size())) {
    svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>", x + width / 2,
                       y + kBox * 0.7, name);
  }
  return svg + "\n";
}

}  // namespace

std::string schedule_svg(const std::vector<std::vector<TimedAction>>& ranks) {
  double first = 0, last = 0;
  int stages = 0;
  bool any = false;
  for (const std::vector<TimedAction>& row : ranks) {
    for (const TimedAction& timed : row) {
      first = any ? std::min(first, timed.begin) : timed.begin;
      last = any ? std::max(last, timed.end) : timed.end;
      stages = std::max(stages, timed.action.stage + 1);
      any = true;
    }
  }
  const double scale = last > first ? kWidth / (last - first) : 0;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
      "font-size=\"11\" fill=\"#222\"><rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>"
      "<text x=\"8\" y=\"18\">{2} ranks, {3} stages, {4:.6g} long</text>\n",
      kLeft + kWidth + 20, kTop + kRow * static_cast<double>(ranks.size()) + 10, ranks.size(), stages, last - first);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    svg += fmt::format("<text x=\"8\" y=\"{:.1f}\">rank {}</text>\n", y + kBox * 0.7, rank);
    for (const TimedAction& timed : ranks[rank]) {
      svg += box(timed, kLeft + scale * (timed.begin - first), y, scale * (timed.end - timed.begin), stages);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace dtensor::pipeline
