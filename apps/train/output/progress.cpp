// Terminal output: a progress bar during training and a table at the end.
#include "train/output/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "train/layouts/flops.h"

namespace train {

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

std::string received_bytes_text(const BytesByAxis& moved, std::size_t steps) {
  std::string text;
  for (const auto& [axis, bytes] : moved) {
    if (!text.empty()) text += ", ";
    text += axis + " " + bytes_text(static_cast<double>(bytes) / static_cast<double>(steps));
  }
  return text.empty() ? "nothing" : text;
}

// Shortens a line, since a line that the terminal wraps cannot be overwritten.
std::string cut_to_terminal(std::string line, int descriptor) {
  winsize size{};
  const bool known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  const std::size_t width = known ? size.ws_col - 1u : 79u;
  if (line.size() > width) line.resize(width);
  return line;
}

Progress::Progress(std::int64_t steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::show(const StepRecord& record) {
  std::int64_t received = 0;
  for (const auto& [axis, bytes] : record.moved) received += bytes;
  const std::int64_t done = record.step + 1;
  smooth_seconds_ = smooth_seconds_ == 0 ? record.seconds : 0.9 * smooth_seconds_ + 0.1 * record.seconds;
  const bool last = done == steps_;
  if (!terminal_ && !last && record.step % std::max<std::int64_t>(1, steps_ / 10) != 0) return;
  constexpr std::int64_t kWidth = 24;
  const std::string bar = fmt::format("{:=<{}}", "", kWidth * done / steps_);
  const std::string line = fmt::format("step {:>{}}/{} [{:<{}}] loss {:.4f}  {:.0f} tokens/s  received {}", done,
                                       std::to_string(steps_).size(), steps_, bar, kWidth, record.loss,
                                       static_cast<double>(record.tokens) / std::max(smooth_seconds_, 1e-9),
                                       bytes_text(static_cast<double>(received)));
  const std::string shown =
      terminal_ ? "\r\033[K" + cut_to_terminal(line, STDERR_FILENO) + (last ? "\n" : "") : line + "\n";
  std::fputs(shown.c_str(), stderr);
  std::fflush(stderr);
}

namespace {

double peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;  // Linux reports KiB.
}

// Skips the first step, which creates caches and touches memory, if there are others.
double tokens_per_second(const std::vector<StepRecord>& records) {
  const std::size_t from = records.size() > 1 ? 1 : 0;
  double tokens = 0, seconds = 0;
  for (std::size_t i = from; i < records.size(); ++i) {
    tokens += static_cast<double>(records[i].tokens);
    seconds += records[i].seconds;
  }
  return tokens / std::max(seconds, 1e-9);
}

BytesByAxis total_received(const std::vector<StepRecord>& records) {
  BytesByAxis total;
  for (const StepRecord& record : records) {
    for (const auto& [axis, bytes] : record.moved) total[axis] += bytes;
  }
  return total;
}

// Model FLOPs utilization of the devices by both formulas.
std::string utilization(const Options& options, double tokens_a_second) {
  const auto rate = [&](AttentionFlops attention) {
    return tokens_a_second * flops_per_token(gpt_config(options), options.seq, attention) / 1e12;
  };
  const double full = rate(AttentionFlops::full), causal = rate(AttentionFlops::causal);
  return fmt::format("{:.2f} TFLOP/s, {:.1f} % of {:g} (MFU of PaLM), {:.1f} % if attention counts its causal half",
                     full, 100 * full / options.peak_tflops, options.peak_tflops, 100 * causal / options.peak_tflops);
}

}  // namespace

Table summary(const Options& options, const std::string& where, const std::vector<StepRecord>& records) {
  const std::int64_t parameters = parameter_count(gpt_config(options));
  const double speed = tokens_per_second(records);
  Table table = {
      {"ranks", where},
      {"model", fmt::format("{}, {:.2f} M parameters, {}", options.model, static_cast<double>(parameters) / 1e6,
                            to_string(options.dtype))},
      {"batch", fmt::format("{} x {} tokens", options.batch, options.seq)},
      {"loss", fmt::format("{:.4f} -> {:.4f} in {} steps", records.front().loss, records.back().loss, records.size())},
      {"speed", fmt::format("{:.0f} tokens/s", speed)},
      {"received a step", received_bytes_text(total_received(records), records.size())},
      {"peak memory", bytes_text(peak_memory()) + " (this process)"},
  };
  if (options.peak_tflops > 0) table.push_back({"arithmetic", utilization(options, speed)});
  return table;
}

namespace {

std::string both(std::int64_t predicted, std::int64_t measured) {
  return "predicted " + bytes_text(static_cast<double>(predicted)) + ", measured " +
         bytes_text(static_cast<double>(measured));
}

void add_rows(Table& rows, const RankMemory& predicted, const RankMemory& measured) {
  rows.push_back({"memory: parameters", both(predicted.parameters, measured.parameters)});
  rows.push_back({"gradients", both(predicted.gradients, measured.gradients)});
  rows.push_back({"optimizer", both(predicted.optimizer, measured.optimizer)});
  rows.push_back({"gathered, at most", both(predicted.gathered, measured.gathered)});
  rows.push_back({"unreduced gradients", both(predicted.unreduced, measured.unreduced)});
  rows.push_back({"together, at most", both(predicted.total(), measured.total())});
}

}  // namespace

Table memory_table(const MemoryUse& memory) {
  Table rows;
  const auto measured = memory.ranks();
  for (std::size_t part = 0; part < measured.size(); ++part) {
    if (measured.size() > 1) rows.push_back({fmt::format("rank {}", measured[part].rank), fmt::format("pp {}", part)});
    add_rows(rows, memory.predicted.at(part), measured[part]);
  }
  rows.push_back({"resident", fmt::format("peak {}; grew by {} during training, including activations of {} rank(s)",
                                          bytes_text(static_cast<double>(memory.resident)),
                                          bytes_text(static_cast<double>(memory.resident - memory.resident_before)),
                                          memory.ranks_here)});
  rows.push_back({"memory pool", fmt::format("{} of at most {} (set_memory_pool_limit)",
                                             bytes_text(static_cast<double>(memory.pool.cached_bytes)),
                                             bytes_text(static_cast<double>(memory.pool.limit_bytes)))});
  return rows;
}

void print(const Table& table) {
  std::size_t width = 0;
  for (const auto& row : table) width = std::max(width, row.first.size());
  for (const auto& [key, value] : table) fmt::print("  {:<{}}  {}\n", key, width, value);
  std::fflush(stdout);
}

}  // namespace train
