// Draws a schedule: time to the right, one row per rank, and below them an axis and a legend. Communication is thin and
// below the boxes of computation, so that waiting is visible.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "chart/canvas.h"
#include "chart/scale.h"
#include "dtensor/pipeline_schedule.h"
#include "internal/action_kinds.h"

namespace dtensor::pipeline {
namespace {

constexpr double kLeft = 60, kTop = 30, kWidth = 1200, kRow = 30, kBox = 20, kThin = 6, kFont = 10;
constexpr double kAxis = 40, kLegend = 30, kSwatch = 12;  // heights below the rows, and a width

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

// Its ends, and the largest stage; times from 0 on.
struct Step {
  double first = 0, last = 0;
  int stages = 0;
  std::set<Action::Kind> kinds = {};

  explicit Step(const std::vector<std::vector<TimedAction>>& ranks) {
    for (const std::vector<TimedAction>& row : ranks) {
      for (const TimedAction& timed : row) {
        first = kinds.empty() ? timed.begin : std::min(first, timed.begin);
        last = kinds.empty() ? timed.end : std::max(last, timed.end);
        stages = std::max(stages, timed.action.stage + 1);
        kinds.insert(timed.action.kind);
      }
    }
  }
};

void draw_axis(SvgCanvas& canvas, const Step& step, double y) {
  const Scale scale({0, step.last - step.first}, {kLeft, kLeft + kWidth});
  canvas.line(kLeft, y, kLeft + kWidth, y, "stroke=\"#555\"");
  for (const auto& tick : scale.ticks(10)) {
    canvas.line(scale(tick.value), y, scale(tick.value), y + 4, "stroke=\"#555\"");
    canvas.text(scale(tick.value), y + 16, Anchor::middle, tick.label);
  }
  canvas.text(kLeft + kWidth / 2, y + 32, Anchor::middle, "time: costs of a simulated step, seconds of a measured one");
}

// The kinds that the step has, and how to read a box.
void draw_legend(SvgCanvas& canvas, const Step& step, double y) {
  constexpr const char* kMeaning[] = {"F: forward", "B: backward", "I: backward, gradients of inputs",
                                      "W: backward, gradients of weights"};
  double x = kLeft;
  for (const Action::Kind kind : step.kinds) {
    if (!is_compute(kind)) continue;
    const std::string text = kMeaning[static_cast<std::size_t>(kind)];
    canvas.line(x, y - 4, x + kSwatch, y - 4, "stroke-width=\"10\" stroke=\"" + color({kind, 0, 0}, 1) + "\"");
    canvas.text(x + kSwatch + 6, y, Anchor::start, text);
    x += kSwatch + 24 + text_width(text, kFont);
  }
  canvas.text(x, y, Anchor::start,
              "2F5: stage 2, microbatch 5; darker: later stage; thin: communication and waiting for it");
}

}  // namespace

std::string schedule_svg(const std::vector<std::vector<TimedAction>>& ranks) {
  const Step step(ranks);
  const double first = step.first, length = step.last - step.first, scale = length > 0 ? kWidth / length : 0;
  SvgCanvas canvas(kFont);
  canvas.text(8, 18, Anchor::start,
              fmt::format("{} ranks, {} stages; the step takes {:.6g}", ranks.size(), step.stages, length));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    canvas.text(8, y + kBox * 0.7, Anchor::start, fmt::format("rank {}", rank));
    for (const TimedAction& timed : ranks[rank]) {
      draw_box(canvas, timed, kLeft + scale * (timed.begin - first), y, scale * (timed.end - timed.begin), step.stages);
    }
  }
  const double below = kTop + kRow * static_cast<double>(ranks.size());
  if (length > 0) draw_axis(canvas, step, below);
  if (!step.kinds.empty()) draw_legend(canvas, step, below + kAxis + kLegend / 2);
  return canvas.str(kLeft + kWidth + 20, below + kAxis + kLegend);
}

}  // namespace dtensor::pipeline
