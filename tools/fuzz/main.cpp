// Runs invalid calls: `fuzz --draws 20000 --seed 7`. Prints failures and the number of draws by result; `--first N
// --draws 1` repeats one. `--sweep --draws 1000000` calls every overload with tensors of 0 to 6 dimensions.
#include <ATen/Parallel.h>

#include <iostream>

#include "fuzz/guard.h"
#include "fuzz/run.h"
#include "fuzz/sweep.h"
#include "run_tool.h"

namespace dtensor::fuzz {
namespace {

// Prints during the run.
Report run_and_print(const DrawAt& draw_at, int first, int count, bool list_refused) {
  Report all;
  for (int i = 0; i < count; i += kBlock) {
    const Report some = run_draws(draw_at, first + i, std::min(kBlock, count - i));
    for (const auto& text : some.wrong) std::cout << text << std::endl;
    for (const auto& text : some.refused) {
      if (list_refused)
        std::cout << text << std::endl;  // Flushed, since unflushed output before a fork is printed twice.
    }
    for (const auto& [word, number] : some.counts) all.counts[word] += number;
    all.wrong.insert(all.wrong.end(), some.wrong.begin(), some.wrong.end());
  }
  return all;
}

Report run_mistakes(const std::string& data, std::uint64_t seed, int first, int count, bool list_refused) {
  CallSource source(data);
  keep_valid(source);
  std::cout << source.overloads() << " overloads, seed " << seed << std::endl;
  const auto draw_at = [&](int i) { return draw_call(source, seed, static_cast<std::uint64_t>(i)); };
  return run_and_print(draw_at, first, count, list_refused);
}

Report run_sweep(std::uint64_t seed, int first, int count, bool list_refused) {
  const auto calls = sweep_calls();
  std::cout << calls.size() << " calls, seed " << seed << std::endl;
  const auto draw_at = [&](int i) { return sweep_draw(calls, seed, static_cast<std::size_t>(i)); };
  count = std::clamp(static_cast<int>(calls.size()) - first, 0, count);
  return run_and_print(draw_at, first, count, list_refused);
}

}  // namespace
}  // namespace dtensor::fuzz

int main(int argc, char** argv) {
  using namespace dtensor;
  std::uint64_t seed = 1;
  int first = 0, draws = 1000;
  std::string data = DTENSOR_CASES;
  CLI::App app("Calls operators with tensors of wrong sizes, dtypes or devices.", "fuzz");
  app.add_option("--seed", seed, "of the draws");
  app.add_option("--first", first, "number of the first draw");
  app.add_option("--draws", draws, "how many");
  bool sweep = false;
  app.add_flag("--sweep", sweep, "call every overload with tensors of 0 to 6 dimensions instead");
  app.add_option("--data", data, "folder of recorded calls");
  bool list_refused = false;
  app.add_flag("--refused", list_refused, "list calls that one device accepts and all ranks refuse");
  return run_tool(app, argc, argv, [&] {
    at::set_num_threads(1);  // Child processes have no thread pool.
    fuzz::guard_memory();
    const fuzz::Report report = sweep ? fuzz::run_sweep(seed, first, draws, list_refused)
                                      : fuzz::run_mistakes(data, seed, first, draws, list_refused);
    for (const auto& [word, count] : report.counts) std::cout << word << " " << count << "\n";
    return report.wrong.empty() ? 0 : 1;
  });
}
