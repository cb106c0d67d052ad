// The command line of aten_cases, and the loop over the cases.
#include "aten_cases/program.h"

#include <ATen/Context.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <thread>

#include "aten_cases/run_case.h"
#include "aten_cases/selection.h"
#include "run_tool.h"

namespace dtensor::cases {
namespace {

struct Flags {
  Selection selection = {.data = DTENSOR_CASES};
  std::string config;
  int id = -1, ranks = 4, from = 0, to = std::numeric_limits<int>::max();
  std::string device = "cpu";
  std::vector<int> except = {};

  bool takes(const Case& c) const {
    const bool excepted = std::find(except.begin(), except.end(), c.id()) != except.end();
    return selection.takes(c) && !excepted && (id < 0 || c.id() == id) && c.id() >= from && c.id() <= to;
  }
  double seconds = 60;
  bool table = false;
};

struct Counts {
  int pass = 0, wrong = 0, raise = 0, elsewhere = 0;
  bool broken = false;
  void add(Outcome::Kind kind) {
    if (kind == Outcome::Kind::pass) ++pass;
    if (kind == Outcome::Kind::wrong) ++wrong;
    if (kind == Outcome::Kind::raise) ++raise;
    if (kind == Outcome::Kind::elsewhere) ++elsewhere;
  }
  void add(const Counts& other) {
    pass += other.pass, wrong += other.wrong, raise += other.raise, elsewhere += other.elsewhere;
    broken |= other.broken;
  }
};

// Ends the program with the name of a case that takes too long.
class Watchdog {
 public:
  explicit Watchdog(double seconds) : thread_([this, seconds] { watch(seconds); }) {}
  ~Watchdog() {
    over_ = true;
    thread_.join();
  }
  void start(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
    since_ = std::chrono::steady_clock::now();
  }

 private:
  void watch(double seconds) {
    while (!over_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const std::lock_guard lock(mutex_);
      if (std::chrono::steady_clock::now() - since_ < std::chrono::duration<double>(seconds)) continue;
      std::cout << "HANGS " << text_ << std::endl;
      std::_Exit(3);
    }
  }
  std::mutex mutex_;
  std::string text_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// Printed if the program crashes.
char current[512];
void on_crash(int) {
  const char* text = "CRASHES ";
  (void)!write(STDOUT_FILENO, text, strlen(text));
  (void)!write(STDOUT_FILENO, current, strlen(current));
  (void)!write(STDOUT_FILENO, "\n", 1);
  std::_Exit(4);
}

// Whether an error makes the device unusable for the process.
bool breaks_device(const std::string& text) { return text.find("CUDA error") != std::string::npos; }

std::string first_line(const std::string& text) { return text.substr(0, text.find("\nException raised")); }

c10::DeviceType device_type(const Flags& flags) {
  if (flags.device == "cpu") return c10::kCPU;
  TORCH_CHECK(at::hasCUDA(), "--device cuda: no GPU, or a build without CUDA (PRESET=cuda)");
  at::globalContext().setAllowTF32CuDNN(false);  // TF32 rounds convolutions to ten bits.
  return c10::kCUDA;
}

// Runs each placement that the flags select, and adds to the counts of the operator.
void run_placements(const Case& c, const Flags& flags, c10::DeviceType device, Watchdog& watchdog, Counts& counts) {
  // The recorded LibTorch may be newer than that of the device.
  if (device != c10::kCPU && !c.exists()) return counts.add(Outcome::Kind::elsewhere);
  for (const Config* config : distinct_configs(c)) {
    if (!flags.config.empty() && config->name != flags.config) continue;
    const std::string text = config->name + " " + c.text();
    watchdog.start(text);
    std::strncpy(current, text.c_str(), sizeof current - 1);
    const Outcome outcome = run_case(c, *config, flags.ranks, device);
    counts.add(outcome.kind);
    if (outcome.kind == Outcome::Kind::elsewhere) return;
    if (outcome.kind == Outcome::Kind::pass) continue;
    std::cout << (outcome.kind == Outcome::Kind::wrong ? "WRONG " : "RAISE ") << text << "\n    "
              << first_line(outcome.text) << std::endl;
    counts.broken = breaks_device(outcome.text);
    if (counts.broken) return;
  }
}

void print_counts(const std::map<std::string, Counts>& per_op, const Counts& all, const Flags& flags) {
  for (const auto& [op, counts] : per_op) {
    if (!flags.table && counts.wrong + counts.raise == 0) continue;
    std::cout << op << ": " << counts.pass << " pass, " << counts.wrong << " wrong, " << counts.raise << " raise\n";
  }
  std::cout << all.pass << " pass, " << all.wrong << " wrong, " << all.raise << " raise";
  if (flags.device != "cpu") std::cout << "; " << all.elsewhere << " cases without a kernel on " << flags.device;
  std::cout << std::endl;
}

int run(const Flags& flags, const std::vector<Case>& cases) {
  std::signal(SIGSEGV, on_crash);
  std::signal(SIGABRT, on_crash);
  const auto device = device_type(flags);
  Watchdog watchdog(flags.seconds);
  std::map<std::string, Counts> per_op;
  Counts all;
  for (const Case& c : cases) {
    if (!flags.takes(c)) continue;
    Counts counts;
    run_placements(c, flags, device, watchdog, counts);
    per_op[c.op()].add(counts);
    all.add(counts);
    if (all.broken) break;
  }
  flags.selection.check_any(!per_op.empty());
  print_counts(per_op, all, flags);
  if (all.broken) return 5;
  return all.wrong + all.raise == 0 ? 0 : 1;
}

}  // namespace

int run_program(int argc, char** argv) {
  Flags flags;
  CLI::App app("Compares recorded calls of ATen operators on DTensors with one device.", "aten_cases");
  flags.selection.add_flags(app);
  app.add_option("--config", flags.config, "only this placement: R S0 Sl S0_first Sl_first P 2d_S0_Sl 2d_P_S0");
  app.add_option("--id", flags.id, "only this case");
  app.add_option("--from", flags.from, "only cases from this number on (after a crash)");
  app.add_option("--except", flags.except, "skip these cases");
  app.add_option("--to", flags.to, "only cases up to this number");
  app.add_option("--device", flags.device,
                 "cpu: compare with the recorded results; cuda: compare with a call on regular CUDA tensors")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--ranks", flags.ranks, "thread ranks")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", flags.seconds, "time limit of a case; a case that exceeds it ends the program")
      ->check(CLI::PositiveNumber);
  app.add_flag("--table", flags.table, "print all operators, not only those that fail");
  return run_tool(app, argc, argv, [&] { return run(flags, load_cases(flags.selection.data)); });
}

}  // namespace dtensor::cases
