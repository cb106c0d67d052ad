// Draws a schedule: time to the right, one row per rank. Communication is thin and below the boxes of computation,
// so that waiting is visible.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <algorithm>

#include "chart/canvas.h"
#include "dtensor/pipeline_schedule.h"

namespace dtensor::pipeline {
namespace {

constexpr double kLeft = 60, kTop = 30, kWidth = 1200, kRow = 30, kBox = 20, kThin = 6, kFont = 10;

// Hues for forward, backward (and its two halves) and others; lightness varies by stage, to distinguish the chunks of a
// rank.
std::string color(const Action& action, int stages) {
  constexpr int kHues[kActionKinds] = {210, 130, 90, 40, 210, 210, 130, 130, 280, 280, 0};
  const int light = 78 - (stages > 1 ? 28 * action.stage / (stages - 1) : 0);
  return fmt::format("hsl({}, 60%, {}%)", kHues[static_cast<std::size_t>(action.kind)], light);
}

void draw_box(SvgCanvas& canvas, const TimedAction& timed, double x, double y, double width, int stages) {
  const bool compute = is_compute(timed.action.kind);
  const std::string name = to_string(timed.action);
  canvas.rect(x, compute ? y : y + kBox, width, compute ? kBox : kThin,
              "fill=\"" + color(timed.action, stages) + "\" stroke=\"black\" stroke-width=\"0.5\"",
              fmt::format("{} {:.6g} to {:.6g}", name, timed.begin, timed.end));
  if (compute && width > text_width(name, kFont)) {
    canvas.text(x + width / 2, y + kBox * 0.7, Anchor::middle, name);
  }
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
  SvgCanvas canvas(kFont);
  canvas.text(8, 18, Anchor::start,
              fmt::format("{} ranks, {} stages, {:.6g} long", ranks.size(), stages, last - first));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    canvas.text(8, y + kBox * 0.7, Anchor::start, fmt::format("rank {}", rank));
    for (const TimedAction& timed : ranks[rank]) {
      draw_box(canvas, timed, kLeft + scale * (timed.begin - first), y, scale * (timed.end - timed.begin), stages);
    }
  }
  return canvas.str(kLeft + kWidth + 20, kTop + kRow * static_cast<double>(ranks.size()) + 10);
}

}  // namespace dtensor::pipeline
